/* sheaf submit: the lines of files become records of the job topic. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cli.h"
#include "io/queue_file.h"
#include "io/queue_kafka.h"
#include "job_parse.h"
#include "prompt.h"
#include "setup.h"

enum { SEND_BATCH = 256, SEND_BYTES = 16 << 20 };

struct submission {
    struct cli *cli;
    struct kafka_sink *sink;
    struct kafka_message messages[SEND_BATCH];
    size_t n;
    uint64_t sent;
    size_t bytes;     /* of the messages */
    uint64_t bad;     /* lines that will be answered with an error */
    uint64_t skipped; /* lines too long for a record */
};

static int flush(struct submission *s, struct err *e)
{
    const int rc = s->n > 0 ? kafka_sink_send(s->sink, s->messages, s->n, e) : 0;
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

/* Jobs over one document share a key, so that they meet on one worker. A job that cannot be
 * read goes where its line hashes to: it is the worker that answers it with the error. */
static int choose_key(const struct job *job, char **key, struct err *e)
{
    struct prompt prompt = {0};
    int rc = 0;
    if (job->error.status == 0)
        rc = prompt_build(job, &prompt, e);
    if (rc == 0) {
        *key = strdup(*prompt.group ? prompt.group : job->payload_sha256);
        rc = *key ? 0 : ERR_SET(e, ERR_NOMEM, "no memory for a record's key");
    }
    prompt_fini(&prompt);
    return rc;
}

static int add_line(struct submission *s, const char *path, const struct file_line *line,
                    struct err *e)
{
    struct job *job = NULL;
    TRY(setup_parse_line(&s->cli->settings, path, line, &job, e));
    if (job->error.status != 0) {
        s->bad++;
        log_warn("%s line %lld: %s", path, (long long)line->number, job->error.message);
    }
    char *key = NULL;
    char *value = malloc(line->length + 1);
    char *id = job->has_custom_id ? strdup(job->custom_id) : NULL;
    int rc = choose_key(job, &key, e);
    if (!value || (job->has_custom_id && !id))
        rc = ERR_SET(e, ERR_NOMEM, "no memory for a record");
    job_free(job);
    if (rc != 0) {
        free(key);
        free(value);
        free(id);
        return rc;
    }
    memcpy(value, line->bytes, line->length);
    s->messages[s->n++] = (struct kafka_message){.topic = s->cli->settings.jobs_topic,
                                                 .key = key,
                                                 .key_length = strlen(key),
                                                 .value = value,
                                                 .value_length = line->length,
                                                 .custom_id = id};
    s->bytes += line->length;
    return s->n == SEND_BATCH || s->bytes > SEND_BYTES ? flush(s, e) : 0;
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
    return kafka_sink_create_topic(s->sink, s->cli->settings.results_topic, partitions, NULL,
                                   e);
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

static int run(struct cli *cli, struct err *e)
{
    const struct settings *settings = &cli->settings;
    if ((cli->input != NULL) == (cli->n_args > 0)) {
        ERR_SET(e, ERR_USAGE,
                "give one or more files of job lines, or - (sheaf submit --help)");
        return EXIT_USAGE;
    }
    struct submission *s = calloc(1, sizeof *s);
    if (!s) {
        ERR_SET(e, ERR_NOMEM, "no memory for a submission");
        return cli_exit_code(e);
    }
    s->cli = cli;
    const struct kafka_options options = {.brokers = settings->brokers,
                                          .props = (const char *const *)settings->props};
    int rc = kafka_sink_open(&options, &s->sink, e);
    if (rc == 0)
        rc = submit_all(s, e);
    if (rc == ERR_BROKER)
        err_prefix(e, "%s", settings->brokers);
    if (rc == 0 && !cli->quiet)
        log_info(
            "%llu jobs submitted to %s, %llu of them bad (each is answered with its error)",
            (unsigned long long)s->sent, settings->jobs_topic, (unsigned long long)s->bad);
    kafka_sink_close(s->sink);
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
        "error.\n\n"
        "Examples:\n"
        "  sheaf submit jobs.jsonl -b localhost:9092\n"
        "  generate-jobs | sheaf submit - -t sheaf.jobs",
    .takes = CLI_INPUT | CLI_KAFKA | CLI_PARTITIONS,
    .settings = "brokers topic results_topic strict max_tokens",
    .args_max = SIZE_MAX,
    .run = run,
};
