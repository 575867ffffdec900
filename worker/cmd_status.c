/* sheaf status: how far a group of workers is with a topic. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "cli.h"
#include "dlq_topic.h"
#include "io/group_status.h"
#include "text_excerpt.h"

/* Of the jobs that are there; -1 when there are none. */
static double percent_done(const struct group_status *s)
{
    return s->records > 0 ? 100.0 * (double)(s->records - s->lag_jobs) / (double)s->records
                          : -1;
}

static double age_s(int64_t wall_us)
{
    const double age = (double)(clock_wall_us() - wall_us) / 1e6;
    return age > 0 ? age : 0;
}

/* ------------------------------------------------------------------ a table */

static void print_partitions(const struct group_status *s)
{
    printf("%9s %10s %10s %10s %8s %10s %10s  %s\n", "partition", "beginning", "end",
           "committed", "above", "lag", "unsettled", "owner");
    for (size_t i = 0; i < s->n_partitions; i++) {
        const struct partition_status *p = &s->partitions[i];
        char committed[24] = "-";
        if (p->committed >= 0)
            snprintf(committed, sizeof committed, "%" PRId64, p->committed);
        printf("%9zu %10" PRId64 " %10" PRId64 " %10s %8" PRIu64 " %10" PRIu64 " %10" PRIu64
               "  ",
               i, p->begin, p->end, committed, p->settled_above, p->lag_offsets, p->lag_jobs);
        if (p->member >= 0) {
            const struct member_status *m = &s->members[p->member];
            excerpt_print(m->client, strlen(m->client));
            putchar(' ');
            excerpt_print(m->host, strlen(m->host));
            putchar(' ');
            excerpt_print(m->id, strlen(m->id));
        } else {
            putchar('-');
        }
        putchar('\n');
    }
}

static void print_oldest(const struct group_status *s)
{
    if (s->oldest_wall_us > 0)
        printf("oldest unsettled job: submitted %.0f s ago\n", age_s(s->oldest_wall_us));
}

static void print_topics(const struct settings *settings, const struct group_status *s,
                         const char *dead_letters)
{
    if (s->results.n_partitions > 0)
        printf("results in %s: about %" PRIu64
               " (offsets; the marks of transactions count too)\n",
               settings->results_topic, s->results.records_max);
    else
        printf("results in %s: none, the topic does not exist\n", settings->results_topic);
    if (!dead_letters)
        return;
    if (s->dead_letters.n_partitions > 0)
        printf("dead letters in %s: about %" PRIu64 ", of which about %" PRIu64
               " were not sent again\n",
               dead_letters, s->dead_letters.records_max, s->open_letters_max);
    else
        printf("dead letters in %s: none, the topic does not exist\n", dead_letters);
}

static void print_status(const struct settings *settings, const struct group_status *s,
                         const char *dead_letters)
{
    printf("group %s is %s, with %zu members, on topic %s\n\n", settings->group, s->state,
           s->n_members, settings->jobs_topic);
    print_partitions(s);
    printf("\n%" PRIu64 " jobs, %" PRIu64 " unsettled (lag %" PRIu64 " offsets, %" PRIu64
           " settled above the committed ones)",
           s->records, s->lag_jobs, s->lag_offsets, s->settled_above);
    if (s->records > 0)
        printf(", %.1f %% done", percent_done(s));
    putchar('\n');
    if (s->lost > 0)
        printf("%" PRIu64 " jobs were lost: the topic's retention deleted them unsettled\n",
               s->lost);
    print_oldest(s);
    print_topics(settings, s, dead_letters);
}

/* ------------------------------------------------------------------ JSON */

static json_t *integer(int64_t value)
{
    return value >= 0 ? json_integer(value) : json_null();
}

static json_t *age(int64_t wall_us)
{
    return wall_us > 0 ? json_real(age_s(wall_us)) : json_null();
}

static json_t *partitions_json(const struct group_status *s)
{
    json_t *list = json_array();
    for (size_t i = 0; i < s->n_partitions; i++) {
        const struct partition_status *p = &s->partitions[i];
        json_array_append_new(
            list,
            json_pack("{s:I, s:I, s:I, s:o, s:I, s:I, s:I, s:I, s:o, s:o}", "partition",
                      (json_int_t)i, "beginning", (json_int_t)p->begin, "end",
                      (json_int_t)p->end, "committed", integer(p->committed), "settled_above",
                      (json_int_t)p->settled_above, "lag_offsets", (json_int_t)p->lag_offsets,
                      "lag_jobs", (json_int_t)p->lag_jobs, "lost_jobs", (json_int_t)p->lost,
                      "oldest_unsettled_age_s", age(p->oldest_wall_us), "member",
                      p->member >= 0 ? json_string(s->members[p->member].id) : json_null()));
    }
    return list;
}

static json_t *members_json(const struct group_status *s)
{
    json_t *list = json_array();
    for (size_t i = 0; i < s->n_members; i++) {
        const struct member_status *m = &s->members[i];
        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:s, s:s?}", "member", m->id, "client",
                                        m->client, "host", m->host, "instance", m->instance));
    }
    return list;
}

/* records_max NULL: the topic is not there. */
static json_t *topic_json(const char *name, const struct topic_status *t)
{
    return json_pack("{s:s, s:o}", "topic", name, "records_max",
                     t->n_partitions > 0 ? json_integer((json_int_t)t->records_max)
                                         : json_null());
}

static json_t *dead_letters_json(const struct group_status *s, const char *name)
{
    if (!name)
        return json_null();
    json_t *object = topic_json(name, &s->dead_letters);
    json_object_set_new(object, "open_max", json_integer((json_int_t)s->open_letters_max));
    return object;
}

static int print_json(const struct settings *settings, const struct group_status *s,
                      const char *dead_letters, struct err *e)
{
    json_t *root = json_pack(
        "{s:s, s:s, s:s, s:o, s:o, s:{s:I, s:I, s:I, s:I, s:I, s:o, s:o}, s:o, s:o}", "topic",
        settings->jobs_topic, "group", settings->group, "state", s->state, "members",
        members_json(s), "partitions", partitions_json(s), "total", "jobs",
        (json_int_t)s->records, "lag_offsets", (json_int_t)s->lag_offsets, "lag_jobs",
        (json_int_t)s->lag_jobs, "settled_above", (json_int_t)s->settled_above, "lost_jobs",
        (json_int_t)s->lost, "oldest_unsettled_age_s", age(s->oldest_wall_us), "percent_done",
        s->records > 0 ? json_real(percent_done(s)) : json_null(), "results",
        topic_json(settings->results_topic, &s->results), "dead_letters",
        dead_letters_json(s, dead_letters));
    if (!root)
        return ERR_SET(e, ERR_INVALID, "the status is not JSON: a name is not UTF-8");
    json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(root);
    return 0;
}

/* ------------------------------------------------------------------ command */

/* What could be told is told; that there is no group is what the exit code says. */
static int print(const struct cli *cli, const struct group_status *s, const char *dead_letters,
                 struct err *e)
{
    const struct settings *settings = &cli->settings;
    if (cli->json)
        TRY(print_json(settings, s, dead_letters, e));
    else
        print_status(settings, s, dead_letters);
    if (s->is_known)
        return 0;
    return ERR_SET(e, ERR_NOTFOUND,
                   "the group %s is not there: no worker has begun with %s, or the group's "
                   "offsets have expired",
                   settings->group, settings->jobs_topic);
}

static int read_and_print(const struct cli *cli, struct err *e)
{
    const struct settings *s = &cli->settings;
    struct dlq_topic topic;
    TRY(dlq_topic_find(s, &topic, e));
    const char *dead_letters = topic.name[0] ? topic.name : NULL;
    const struct kafka_options options = {.brokers = s->brokers,
                                          .group = s->group,
                                          .jobs_topic = s->jobs_topic,
                                          .results_topic = s->results_topic,
                                          .props = (const char *const *)s->props};
    struct group_status *status;
    TRY(group_status_read(&options, dead_letters, &status, e));
    const int rc = print(cli, status, dead_letters, e);
    group_status_free(status);
    return rc;
}

static int run(struct cli *cli, struct err *e)
{
    return read_and_print(cli, e) == 0 ? 0 : cli_exit_code(e);
}

const struct command cmd_status = {
    .name = "status",
    .summary = "how far a group is with a topic",
    .usage = "[-b HOST:PORT] [-t TOPIC] [-G GROUP]",
    .text =
        "Tells for each partition what is committed, how many jobs are settled above that, "
        "what\n"
        "is left and which worker has it; then sums, the age of the oldest unsettled job, and\n"
        "how many results and dead letters there are. Joins no group and changes nothing.\n"
        "Exit code 66 when the topic or the group is not there, 69 when no broker answers.\n\n"
        "Examples:\n"
        "  sheaf status -b localhost:9092\n"
        "  sheaf status -t sheaf.jobs -G sheaf --json",
    .takes = CLI_JSON | CLI_KAFKA,
    .settings = "brokers group topic results_topic dead_letters",
    .args_max = 0,
    .run = run,
};
