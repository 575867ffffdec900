/* sheaf submit: the lines of files become records of the job topic. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cli.h"
#include "io/queue_file.h"
#include "io/queue_kafka.h"
#include "job_parse.h"
#include "lift.h"
#include "prompt.h"
#include "setup.h"
#include "topic_roles.h"

enum { SEND_BATCH = 256, SEND_BYTES = 16 << 20 };

struct submission {
    struct cli *cli;
    struct kafka_sink *sink;
    struct documents *documents; /* of --documents */
    struct lift lift;
    struct kafka_message messages[SEND_BATCH];
    size_t n;
    uint64_t sent;
    size_t bytes;     /* of the messages */
    uint64_t bad;     /* lines that will be answered with an error */
    uint64_t skipped; /* lines too long for a record */
};

/* Documents before the jobs that refer to them. */
static int flush(struct submission *s, struct err *e)
{
    int rc = lift_flush(&s->lift, e);
    if (rc == 0 && s->n > 0)
        rc = kafka_sink_send(s->sink, s->messages, s->n, e);
    for (size_t i = 0; i < s->n; i++) {
        free((void *)(uintptr_t)s->messages[i].value);
        free((void *)(uintptr_t)s->messages[i].key);
        free((void *)(uintptr_t)s->messages[i].custom_id);
    }
    if (rc == 0)
        s->sent += s->n;
    s->n = 0;
    s->bytes = 0;
    return rc;
}

/* In the key a reference stands for its text, where only the workers have that. */
static int fill_references(struct job *job, struct err *e)
{
    for (size_t i = 0; i < job->n_documents; i++) {
        struct job_document *document = &job->documents[i];
        if (document->text)
            continue;
        document->text = strdup(document->ref);
        if (!document->text)
            return ERR_SET(e, ERR_NOMEM, "no memory for a record's key");
        document->length = strlen(document->text);
    }
    return 0;
}

/* Jobs over one document share a key, so that they meet on one worker. A job that cannot be
 * read goes where its line hashes to: it is the worker that answers it with the error. */
static int choose_key(struct job *job, char **key, struct err *e)
{
    struct prompt prompt = {0};
    int rc = 0;
    if (job->error.status == 0)
        rc = fill_references(job, e);
    if (rc == 0 && job->error.status == 0)
        rc = prompt_build(job, &prompt, e);
    if (rc == 0) {
        *key = strdup(*prompt.group ? prompt.group : job->payload_sha256);
        rc = *key ? 0 : ERR_SET(e, ERR_NOMEM, "no memory for a record's key");
    }
    prompt_fini(&prompt);
    return rc;
}

/* References are looked up only in --documents; a worker looks in the topic too. */
static int read_job(struct submission *s, const char *path, const struct file_line *line,
                    struct job **job, struct err *e)
{
    bool waits; /* never: that is for topics */
    TRY(setup_parse_line(&s->cli->settings, path, line, job, e));
    if (s->documents && (*job)->error.status == 0)
        TRY(documents_resolve(s->documents, *job, 0, &waits, e));
    if ((*job)->error.status != 0) {
        s->bad++;
        log_warn("%s line %lld: %s", path, (long long)line->number, (*job)->error.message);
    }
    return 0;
}

/* The line as it is sent: with references where documents are lifted. */
static int make_value(struct submission *s, const struct job *job, const struct file_line *line,
                      char **value, size_t *length, struct err *e)
{
    *value = NULL;
    if (s->cli->lift_documents && job->error.status == 0)
        TRY(lift_line(&s->lift, job, line->bytes, line->length, value, e));
    *length = *value ? strlen(*value) : line->length;
    if (*value)
        return 0;
    *value = malloc(line->length + 1);
    if (!*value)
        return ERR_SET(e, ERR_NOMEM, "no memory for a record");
    memcpy(*value, line->bytes, line->length);
    return 0;
}

static int add_job(struct submission *s, struct job *job, const struct file_line *line,
                   struct err *e)
{
    struct kafka_message m = {.topic = s->cli->settings.jobs_topic};
    char *key = NULL, *value = NULL, *id = NULL;
    int rc = make_value(s, job, line, &value, &m.value_length, e);
    if (rc == 0)
        rc = choose_key(job, &key, e);
    if (rc == 0 && job->has_custom_id && !(id = strdup(job->custom_id)))
        rc = ERR_SET(e, ERR_NOMEM, "no memory for a record");
    if (rc != 0) {
        free(key);
        free(value);
        return rc;
    }
    m.key = key;
    m.key_length = strlen(key);
    m.value = value;
    m.custom_id = id;
    s->messages[s->n++] = m;
    s->bytes += m.value_length;
    return s->n == SEND_BATCH || s->bytes > SEND_BYTES ? flush(s, e) : 0;
}

static int add_line(struct submission *s, const char *path, const struct file_line *line,
                    struct err *e)
{
    struct job *job = NULL;
    int rc = read_job(s, path, line, &job, e);
    if (rc == 0)
        rc = add_job(s, job, line, e);
    job_free(job);
    return rc;
}

static int submit_file(struct submission *s, const char *path, struct err *e)
{
    struct file_source *source = NULL;
    TRY(file_source_open(path, &source, e));
    struct file_line line;
    int rc;
    while ((rc = file_source_next(source, &line, e)) == 0 && line.bytes) {
        if (job_line_is_blank(line.bytes, line.length))
            continue;
        if (line.length > JOB_BYTES_MAX) {
            log_warn("%s line %lld is not sent: it has %llu bytes, at most %u fit a record",
                     path, (long long)line.number, (unsigned long long)line.size,
                     JOB_BYTES_MAX);
            s->skipped++;
            continue;
        }
        rc = add_line(s, path, &line, e);
        if (rc != 0)
            break;
    }
    file_source_close(source);
    const int flushed = flush(s, rc ? NULL : e);
    return rc ? rc : flushed;
}

static int create_topics(struct submission *s, struct err *e)
{
    const int partitions = (int)s->cli->partitions;
    bool created = false;
    TRY(kafka_sink_create_topic(s->sink, s->cli->settings.jobs_topic, partitions, &created, e));
    if (created)
        log_info("created topic %s with %d partitions", s->cli->settings.jobs_topic,
                 partitions);
    TRY(kafka_sink_create_topic(s->sink, s->cli->settings.results_topic, partitions, NULL, e));
    if (!s->cli->lift_documents)
        return 0;
    TRY(kafka_sink_create_compacted(s->sink, s->lift.topic, partitions, &created, e));
    if (created)
        log_info("created the compacted topic %s with %d partitions", s->lift.topic,
                 partitions);
    return 0;
}

static int submit_all(struct submission *s, struct err *e)
{
    TRY(create_topics(s, e));
    if (s->cli->input)
        return submit_file(s, s->cli->input, e);
    for (size_t i = 0; i < s->cli->n_args; i++)
        TRY(submit_file(s, s->cli->args[i], e));
    return 0;
}

static int open_and_submit(struct submission *s, struct err *e)
{
    const struct settings *settings = &s->cli->settings;
    const struct kafka_options options = {.brokers = settings->brokers,
                                          .props = (const char *const *)settings->props};
    if (*settings->documents)
        TRY(setup_open_documents(settings, NULL, &s->documents, e));
    TRY(kafka_sink_open(&options, &s->sink, e));
    s->lift.sink = s->sink;
    s->lift.topic = settings->documents_topic;
    s->lift.bytes_min = (size_t)settings->lift_bytes_min;
    const int rc = submit_all(s, e);
    if (rc == ERR_BROKER)
        err_prefix(e, "%s", settings->brokers);
    return rc;
}

static void say_totals(const struct submission *s)
{
    log_info("%llu jobs submitted to %s, %llu of them bad (each is answered with its error)",
             (unsigned long long)s->sent, s->cli->settings.jobs_topic,
             (unsigned long long)s->bad);
    if (s->cli->lift_documents)
        log_info("%llu documents lifted to %s, referred to %llu times; %lld bytes saved",
                 (unsigned long long)s->lift.n_documents, s->lift.topic,
                 (unsigned long long)s->lift.n_references, (long long)s->lift.bytes_saved);
}

static int check_usage(const struct cli *cli, struct err *e)
{
    if ((cli->input != NULL) == (cli->n_args > 0))
        return ERR_SET(e, ERR_USAGE,
                       "give one or more files of job lines, or - (sheaf submit --help)");
    if (cli->lift_documents && !*cli->settings.documents_topic)
        return ERR_SET(e, ERR_USAGE, "--lift-documents needs a topic (documents_topic)");
    return 0;
}

static int run(struct cli *cli, struct err *e)
{
    if (check_usage(cli, e) != 0)
        return EXIT_USAGE;
    struct submission *s = calloc(1, sizeof *s);
    if (!s) {
        ERR_SET(e, ERR_NOMEM, "no memory for a submission");
        return cli_exit_code(e);
    }
    s->cli = cli;
    int rc = topic_roles_check(&cli->settings, NULL, e);
    if (rc == 0)
        rc = open_and_submit(s, e);
    if (rc == 0 && !cli->quiet)
        say_totals(s);
    kafka_sink_close(s->sink);
    lift_fini(&s->lift);
    documents_close(s->documents);
    const uint64_t skipped = s->skipped;
    free(s);
    if (rc != 0)
        return cli_exit_code(e);
    return skipped > 0 ? EXIT_SOME_FAILED : 0;
}

const struct command cmd_submit = {
    .name = "submit",
    .summary = "send the jobs of files to a Kafka topic",
    .usage = "FILE... [-b HOST:PORT] [-t TOPIC]",
    .text =
        "Sends each job line as a record, keyed by its documents so that jobs over one "
        "document\n"
        "meet on one worker. Creates the job and result topics where they are missing. Bad\n"
        "lines are named here and sent all the same: the worker answers each with its "
        "error.\n"
        "With --lift-documents, a long text that jobs share is sent once, to a compacted "
        "topic,\n"
        "and the jobs refer to it.\n\n"
        "Examples:\n"
        "  sheaf submit jobs.jsonl -b localhost:9092\n"
        "  sheaf submit jobs.jsonl --lift-documents\n"
        "  generate-jobs | sheaf submit - -t sheaf.jobs",
    .takes = CLI_INPUT | CLI_KAFKA | CLI_PARTITIONS | CLI_LIFT,
    .settings = "brokers topic results_topic strict max_tokens documents documents.mb "
                "documents_topic lift.min_bytes",
    .args_max = SIZE_MAX,
    .run = run,
};
