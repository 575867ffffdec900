/* sheaf work: jobs from a topic, answers to a topic and a database. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/fault.h"
#include "cli.h"
#include "dead_letter.h"
#include "dlq_topic.h"
#include "io/queue_kafka.h"
#include "setup.h"
#include "signals.h"
#include "topic_roles.h"

static void default_run_id(const struct settings *s, char *out, size_t capacity)
{
    if (*s->run_id) {
        snprintf(out, capacity, "%s", s->run_id);
        return;
    }
    const time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    char date[16];
    strftime(date, sizeof date, "%Y-%m-%d", &utc);
    snprintf(out, capacity, "%s-%s", s->jobs_topic, date);
}

enum { TRANSACTIONAL_ID_BYTES = 320 };

/* The database tells a worker from others, and the same worker when it starts again: a broker
 * then ends at once what its former self left open. */
static int name_producer(const struct settings *s, struct store *store,
                         char out[TRANSACTIONAL_ID_BYTES], const char **id, struct err *e)
{
    *id = NULL;
    if (strcmp(s->delivery, "at-least-once") == 0 || !GUARD("transactions"))
        return 0;
    if (strcmp(s->delivery, "exactly-once") != 0)
        return ERR_SET(e, ERR_CONFIG,
                       "delivery must be exactly-once or at-least-once, not \"%s\"",
                       s->delivery);
    int64_t identity;
    TRY(store_identity(store, &identity, e));
    snprintf(out, TRANSACTIONAL_ID_BYTES, "%.256s.%016" PRIx64, s->group, identity);
    *id = out;
    return 0;
}

static struct kafka_options kafka_options_of(const struct settings *s)
{
    return (struct kafka_options){
        .brokers = s->brokers,
        .group = s->group,
        .jobs_topic = s->jobs_topic,
        .results_topic = s->results_topic,
        .props = (const char *const *)s->props,
        .inflight_jobs_max = (size_t)s->inflight_jobs,
        .inflight_bytes_max = (size_t)s->inflight_mb << 20,
    };
}

/* librdkafka takes no membership with others into a transaction. */
static int check_group(const struct settings *s, struct err *e)
{
    for (const char *c = s->group; strcmp(s->delivery, "exactly-once") == 0 && *c; c++)
        if (*c < ' ' || *c > '~')
            return ERR_SET(e, ERR_CONFIG,
                           "group=%s has other characters than ASCII letters, digits and "
                           "signs, which exactly-once delivery cannot have",
                           s->group);
    return 0;
}

/* Where jobs go that got no answer; off: nowhere. topic is storage. */
static int choose_dead_letters(const struct settings *s, struct dlq_topic *topic,
                               struct dead_letters *out, struct err *e)
{
    *out = (struct dead_letters){.group = s->group};
    TRY(dead_letter_parse_headers(s->dlq_headers, &out->headers, e));
    TRY(dlq_topic_find(s, topic, e));
    TRY(topic_roles_check(s, topic->name, e));
    out->topic = topic->name[0] ? topic->name : NULL;
    return 0;
}

static int run(struct cli *cli, struct err *e)
{
    const struct settings *s = &cli->settings;
    signals_install();
    char run_id[JOB_ID_BYTES_MAX + 1];
    default_run_id(s, run_id, sizeof run_id);
    struct dlq_topic letters_topic;
    struct dead_letters letters;
    if (check_group(s, e) != 0 || choose_dead_letters(s, &letters_topic, &letters, e) != 0)
        return cli_exit_code(e);
    struct setup setup;
    if (setup_open(&setup, s, *s->db ? s->db : "sheaf.db", run_id, cli->quiet, e) != 0)
        return cli_exit_code(e);
    struct kafka_options options = kafka_options_of(s);
    char transactional_id[TRANSACTIONAL_ID_BYTES];
    letters.worker = setup.worker_id;
    struct transport transport;
    struct pipeline_totals totals;
    int code;
    int rc = setup_open_documents(s, &options, &setup.documents, e);
    if (rc == 0)
        rc =
            name_producer(s, setup.store.store, transactional_id, &options.transactional_id, e);
    if (rc == 0)
        rc = transport_open_kafka(&options, &letters, cli->exit_when_empty, &setup.store,
                                  &transport, e);
    if (rc == 0) {
        code = setup_run(&setup, s, &transport, cli->quiet, &totals, e);
        transport.close(transport.ctx);
    } else {
        setup_abandon_run(&setup);
        code = cli_exit_code(e);
    }
    setup_close(&setup);
    return code;
}

const struct command cmd_work = {
    .name = "work",
    .summary = "answer the jobs of a Kafka topic",
    .usage = "[-b HOST:PORT] [-t TOPIC] [--results-topic TOPIC] [--db FILE]",
    .text =
        "Takes jobs from a topic as a member of a consumer group, answers them, and writes\n"
        "each answer with its metrics to the database and to the result topic. Any number of\n"
        "workers share the work; each has a database of its own. The first SIGTERM lets "
        "running\n"
        "jobs finish, the second stops at once; what is unanswered is computed by the next\n"
        "worker. Documents that jobs refer to come from --documents, then from the documents\n"
        "topic; a job waits for one that is not there yet, and fails when it does not come.\n\n"
        "Examples:\n"
        "  sheaf work -b localhost:9092 --db night.db\n"
        "  sheaf work -b localhost:9092 --db night.db --exit-when-empty",
    .takes = CLI_KAFKA | CLI_EXIT_EMPTY,
    .settings =
        SETUP_SETTINGS " brokers group delivery topic results_topic dead_letters dlq.headers "
                       "documents_topic documents.wait_s inflight.jobs inflight.mb",
    .args_max = 0,
    .run = run,
};
