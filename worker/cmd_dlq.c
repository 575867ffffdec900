/* sheaf dlq: the dead letters of a job topic are listed, shown, sent again, deleted. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "base/log.h"
#include "cli.h"
#include "dlq_print.h"
#include "dlq_topic.h"
#include "io/dlq.h"

/* What a verb knows of. */
struct call {
    const struct cli *cli;
    const char *topic;
    struct dlq *letters;
    int64_t n_rows;
    int code; /* of the process, when there is no error */
};

/* ------------------------------------------------------------------ ls and show */

static int print_row(void *ctx, const struct dlq_letter *letter, bool *stop, struct err *e)
{
    struct call *d = ctx;
    if (d->cli->limit >= 0 && d->n_rows == d->cli->limit) {
        *stop = true;
        log_info("there are more dead letters in %s than --limit %" PRId64, d->topic,
                 d->cli->limit);
        return 0;
    }
    d->n_rows++;
    if (d->cli->json)
        return dlq_print_row_json(letter, e);
    dlq_print_row(letter);
    return 0;
}

static int list(struct call *d, struct err *e)
{
    if (!d->cli->json)
        dlq_print_titles();
    return dlq_walk(d->letters, print_row, d, e);
}

static int print_letter(void *ctx, const struct dlq_letter *letter, bool *stop, struct err *e)
{
    const struct call *d = ctx;
    *stop = true;
    if (d->cli->json)
        return dlq_print_letter_json(letter, d->topic, e);
    if (!d->cli->quiet)
        dlq_print_headers(letter);
    fwrite(letter->value ? letter->value : "", 1, letter->value_length, stdout);
    return 0;
}

static int refuse_place(struct err *e)
{
    return ERR_SET(e, ERR_USAGE,
                   "a dead letter is named by PARTITION OFFSET, or PARTITION/OFFSET, with the "
                   "topic before it if you like (topic/0/17 or topic-0-17)");
}

static bool parse_digits(const char *text, size_t length, int64_t max, int64_t *out)
{
    char digits[20];
    if (length == 0 || length >= sizeof digits)
        return false;
    memcpy(digits, text, length);
    digits[length] = '\0';
    *out = strtoll(digits, NULL, 10);
    return strspn(digits, "0123456789") == length && *out <= max;
}

/* The number behind the last / or - before `end`; *end moves to before it. */
static bool take_last(const char *text, size_t *end, int64_t max, int64_t *out)
{
    size_t from = *end;
    while (from > 0 && text[from - 1] != '/' && text[from - 1] != '-')
        from--;
    const bool is_number = parse_digits(text + from, *end - from, max, out);
    *end = from > 0 ? from - 1 : 0;
    return is_number;
}

static int parse_place(const struct call *d, int32_t *partition, int64_t *offset, struct err *e)
{
    const char *const *args = d->cli->args + 1; /* behind the verb */
    const size_t n_args = d->cli->n_args - 1;
    int64_t p = -1;
    size_t end = strlen(args[0]);
    bool is_good;
    if (n_args == 2) {
        is_good = parse_digits(args[0], end, INT32_MAX, &p) &&
                  parse_digits(args[1], strlen(args[1]), INT64_MAX, offset);
    } else {
        is_good = take_last(args[0], &end, INT64_MAX, offset) &&
                  take_last(args[0], &end, INT32_MAX, &p);
        if (is_good && end > 0 &&
            (strlen(d->topic) != end || memcmp(args[0], d->topic, end) != 0))
            return ERR_SET(e, ERR_USAGE, "%.*s is not the dead-letter topic, that is %s",
                           (int)end, args[0], d->topic);
    }
    *partition = (int32_t)p;
    return is_good ? 0 : refuse_place(e);
}

static int show(struct call *d, struct err *e)
{
    int32_t partition = -1;
    int64_t offset = -1;
    TRY(parse_place(d, &partition, &offset, e));
    return dlq_show(d->letters, partition, offset, print_letter, d, e);
}

/* ------------------------------------------------------------------ redrive */

static int check_redrive(const struct cli *cli, struct err *e)
{
    const bool is_one = cli->n_args > 1, is_some = cli->code || cli->id;
    if (is_one + is_some + cli->all == 1)
        return 0;
    return ERR_SET(e, ERR_USAGE,
                   "say which dead letters are sent again: --code CODE or --id JOB (or both), "
                   "--all, or PARTITION OFFSET");
}

static int choose(const struct call *d, struct dlq_choice *choice, struct err *e)
{
    const struct cli *cli = d->cli;
    *choice = (struct dlq_choice){.code = cli->code,
                                  .job_id = cli->id,
                                  .partition = -1,
                                  .offset = -1,
                                  .limit = cli->limit,
                                  .again = cli->again};
    return cli->n_args > 1 ? parse_place(d, &choice->partition, &choice->offset, e) : 0;
}

static void say_redriven(const struct call *d, const struct redrive_report *r)
{
    if (d->cli->json) {
        printf("{\"redriven\":%" PRIu64 ",\"already\":%" PRIu64 ",\"elsewhere\":%" PRIu64
               ",\"beyond\":%" PRIu64 "}\n",
               r->redriven, r->already, r->elsewhere, r->beyond);
        return;
    }
    log_info("%" PRIu64 " dead letters sent again to %s", r->redriven,
             d->cli->settings.jobs_topic);
    if (r->already > 0)
        log_info("%" PRIu64 " were sent again before, and are not now (--again does that)",
                 r->already);
    if (r->elsewhere > 0)
        log_info("%" PRIu64 " belong to another group than %s or another topic than %s (-G, "
                 "-t)",
                 r->elsewhere, d->cli->settings.group, d->cli->settings.jobs_topic);
    if (r->beyond > 0)
        log_warn("%" PRIu64 " are left: they lie %d offsets or more above the first that was "
                 "never sent again, and only so far can be noted which were; send that one "
                 "again or purge it",
                 r->beyond, INFLIGHT_SPAN_MAX);
}

static int redrive(struct call *d, struct err *e)
{
    struct dlq_choice choice;
    struct redrive_report report;
    TRY(choose(d, &choice, e));
    const int rc = dlq_redrive(d->letters, &choice, &report, e);
    if (rc == 0 || report.redriven > 0)
        say_redriven(d, &report);
    TRY(rc);
    d->code = report.beyond > 0 ? EXIT_SOME_FAILED : 0;
    const bool is_named = choice.code || choice.job_id || choice.offset >= 0;
    if (is_named && report.redriven + report.already + report.elsewhere + report.beyond == 0)
        return ERR_SET(e, ERR_NOTFOUND, "%s has no such dead letter", d->topic);
    return 0;
}

/* ------------------------------------------------------------------ purge */

static int check_purge(const struct cli *cli, struct err *e)
{
    if (cli->all != (cli->before >= 0))
        return 0;
    return ERR_SET(e, ERR_USAGE, "say what is deleted: --before OFFSET or --all");
}

static int choose_purge(const struct call *d, int32_t *partition, int64_t *before,
                        struct err *e)
{
    const struct cli *cli = d->cli;
    int64_t p = -1;
    if (cli->n_args > 1 && !parse_digits(cli->args[1], strlen(cli->args[1]), INT32_MAX, &p))
        return ERR_SET(e, ERR_USAGE, "'%s' is no partition", cli->args[1]);
    const int n = dlq_count_partitions(d->letters);
    if (cli->before >= 0 && p < 0 && n > 1)
        return ERR_SET(e, ERR_USAGE,
                       "%s has %d partitions: name the one (sheaf dlq purge PARTITION --before "
                       "OFFSET)",
                       d->topic, n);
    *partition = (int32_t)(p < 0 && cli->before >= 0 ? 0 : p);
    *before = cli->all ? INT64_MAX : cli->before;
    return 0;
}

static int say_purged(struct call *d, const struct purge_report *r, struct err *e)
{
    char text[256];
    snprintf(text, sizeof text,
             "%" PRIu64 " dead letters of %s, of which %" PRIu64 " were never sent again (and "
             "%" PRIu64 " of other groups or topics, %" PRIu64 " records of another kind)",
             r->letters, d->cli->settings.group, r->open, r->elsewhere, r->foreign);
    if (!d->cli->yes)
        return ERR_SET(e, ERR_USAGE, "%s would be deleted from %s for good: add --yes", text,
                       d->topic);
    log_info("%s are deleted from %s", text, d->topic);
    return 0;
}

static int purge(struct call *d, struct err *e)
{
    int32_t partition = -1;
    int64_t before = 0;
    struct purge_report report;
    TRY(choose_purge(d, &partition, &before, e));
    TRY(dlq_purge(d->letters, partition, before, d->cli->yes, &report, e));
    return say_purged(d, &report, e);
}

/* ------------------------------------------------------------------ command */

enum { TAKES_LIMIT = 1, TAKES_CHOICE = 2, TAKES_ALL = 4, TAKES_PURGE = 8, TAKES_JSON = 16 };

static const struct verb {
    const char *name;
    int (*run)(struct call *d, struct err *e);
    size_t args_min, args_max; /* behind the verb */
    unsigned takes;
    int (*check)(const struct cli *cli, struct err *e); /* or NULL */
} verbs[] = {
    {"ls", list, 0, 0, TAKES_LIMIT | TAKES_JSON, NULL},
    {"show", show, 1, 2, TAKES_JSON, NULL},
    {"redrive", redrive, 0, 2, TAKES_LIMIT | TAKES_CHOICE | TAKES_ALL | TAKES_JSON,
     check_redrive},
    {"purge", purge, 0, 1, TAKES_ALL | TAKES_PURGE, check_purge},
};

static const struct verb *find_verb(const struct cli *cli, struct err *e)
{
    for (size_t i = 0; cli->n_args > 0 && i < sizeof verbs / sizeof verbs[0]; i++)
        if (strcmp(cli->args[0], verbs[i].name) == 0)
            return &verbs[i];
    ERR_SET(e, ERR_USAGE, "usage: sheaf dlq ls|show|redrive|purge (sheaf dlq --help)");
    return NULL;
}

static int check_usage(const struct cli *cli, const struct verb *verb, struct err *e)
{
    const struct {
        bool is_given;
        unsigned takes;
        const char *name;
    } options[] = {
        {cli->limit >= 0, TAKES_LIMIT, "--limit"},
        {cli->code, TAKES_CHOICE, "--code"},
        {cli->id, TAKES_CHOICE, "--id"},
        {cli->again, TAKES_CHOICE, "--again"},
        {cli->all, TAKES_ALL, "--all"},
        {cli->before >= 0, TAKES_PURGE, "--before"},
        {cli->yes, TAKES_PURGE, "--yes"},
        {cli->json, TAKES_JSON, "--json"},
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        if (options[i].is_given && !(verb->takes & options[i].takes))
            return ERR_SET(e, ERR_USAGE, "sheaf dlq %s takes no %s (sheaf dlq --help)",
                           verb->name, options[i].name);
    if (cli->n_args - 1 < verb->args_min || cli->n_args - 1 > verb->args_max)
        return ERR_SET(e, ERR_USAGE, "sheaf dlq %s takes %zu to %zu arguments", verb->name,
                       verb->args_min, verb->args_max);
    return verb->check ? verb->check(cli, e) : 0;
}

static int open_and_run(struct call *d, const struct verb *verb, struct err *e)
{
    const struct settings *s = &d->cli->settings;
    const struct kafka_options kafka = {.brokers = s->brokers,
                                        .group = s->group,
                                        .jobs_topic = s->jobs_topic,
                                        .props = (const char *const *)s->props};
    struct dlq_topic topic;
    TRY(dlq_topic_find(s, &topic, e));
    if (!topic.name[0])
        return ERR_SET(e, ERR_CONFIG, "there are no dead letters: dead_letters is off");
    d->topic = topic.name;
    const struct dlq_options options = {.kafka = &kafka, .topic = topic.name};
    TRY(dlq_open(&options, &d->letters, e));
    const int rc = verb->run(d, e);
    dlq_close(d->letters);
    return rc;
}

static int run(struct cli *cli, struct err *e)
{
    const struct verb *verb = find_verb(cli, e);
    if (!verb || check_usage(cli, verb, e) != 0)
        return EXIT_USAGE;
    struct call d = {.cli = cli};
    return open_and_run(&d, verb, e) == 0 ? d.code : cli_exit_code(e);
}

const struct command cmd_dlq = {
    .name = "dlq",
    .summary = "list, show, send again and delete dead letters",
    .usage = "ls|show|redrive|purge [-b HOST:PORT] [-t TOPIC] [-G GROUP]",
    .text =
        "Jobs that failed for good lie in the dead-letter topic as they were submitted, with "
        "the\n"
        "reason in their headers.\n"
        "  ls                      lists them; state: open, redriven (sent again), elsewhere\n"
        "                          (of another group or topic), foreign (no dead letter)\n"
        "  show PARTITION OFFSET   the job's bytes on stdout, its headers on stderr\n"
        "  redrive                 sends the jobs again, each once, as they were, with the\n"
        "                          header sheaf.replay_of: where each was. Which: --code,\n"
        "                          --id, --all, or PARTITION OFFSET\n"
        "  purge [PARTITION]       deletes them, up to --before OFFSET or --all, with --yes\n"
        "-t and -G name the job topic and the workers' group, of which the dead letters "
        "are.\n\n"
        "Examples:\n"
        "  sheaf dlq ls --limit 20\n"
        "  sheaf dlq show 0 17\n"
        "  sheaf dlq redrive --code context_length_exceeded\n"
        "  sheaf dlq purge --all --yes",
    .takes = CLI_JSON | CLI_LIMIT | CLI_KAFKA | CLI_DLQ,
    .settings = "brokers group topic dead_letters",
    .args_max = 3,
    .run = run,
};
