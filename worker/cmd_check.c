/* sheaf check: validates a file of jobs, counts its tokens and looks at what they share,
 * without answering anything. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "check_sharing.h"
#include "cli.h"
#include "io/queue_file.h"
#include "job_parse.h"
#include "setup.h"
#include "text_excerpt.h"

enum {
    /* Prompts kept to see what they share; 1 GiB of tokens. */
    KEPT_JOBS_MAX = 1 << 20,
    KEPT_TOKENS_MAX = 256 << 20,
};

struct check {
    const struct cli *cli;
    const char *path;
    struct answer_context answers;
    struct hash_set ids;
    struct documents *documents;
    size_t context;
    uint64_t jobs, bad;
    uint64_t prompt_tokens, prompt_tokens_max;
    struct advice_sample sample;
    struct sharing sharing;
    json_t *errors; /* [{line, custom_id, code, param, message}] */
};

/* The id is a job's text: a terminal must not obey it. */
static void print_error(const char *path, const struct job *job)
{
    printf("%s line %lld (", path, (long long)job->source.offset);
    excerpt_print(job->custom_id, strlen(job->custom_id));
    printf("): %s: %s\n", job->error.code, job->error.message);
}

static int add_error(struct check *c, const struct job *job, struct err *e)
{
    c->bad++;
    json_t *entry =
        json_pack("{s:I, s:s, s:s, s:s, s:s}", "line", (json_int_t)job->source.offset,
                  "custom_id", job->custom_id, "code", job->error.code, "param",
                  job->error.param, "message", job->error.message);
    if (!entry || json_array_append_new(c->errors, entry) != 0)
        return ERR_SET(e, ERR_NOMEM, "no memory for the list of errors");
    if (!c->cli->json)
        print_error(c->path, job);
    return 0;
}

/* Refuses the ids that an engine would refuse. */
static int check_tokens(const struct check *c, struct job *job, struct err *e)
{
    struct seq_request req;
    struct logit_bias *bias = NULL;
    TRY(answer_request(&c->answers, job, &req, &bias, e));
    struct err refusal = {0};
    if (engine_check_tokens(c->answers.model, &req, &refusal) != 0)
        answer_refuse(job, &refusal);
    free(bias);
    return 0;
}

static int check_job(struct check *c, struct job *job, struct err *e)
{
    c->jobs++;
    if (job->has_custom_id &&
        hash_set_add(&c->ids, hash_bytes(job->custom_id, strlen(job->custom_id))) ==
            HASH_SET_KNOWN)
        job_fail(job, 400, "duplicate_custom_id", "custom_id",
                 "an earlier line of this input has the same custom_id");
    bool waits; /* never: that is for topics */
    if (job->error.status == 0)
        TRY(documents_resolve(c->documents, job, 0, &waits, e));
    if (job->error.status == 0)
        TRY(answer_tokenize(&c->answers, job, e));
    if (job->error.status == 0 && job->n_tokens >= c->context)
        job_fail(job, 413, "context_length_exceeded", "messages",
                 "the prompt has %zu tokens; the context is %zu", job->n_tokens, c->context);
    if (job->error.status == 0)
        TRY(check_tokens(c, job, e));
    if (job->error.status != 0)
        return add_error(c, job, e);
    advice_sample_add(&c->sample, job);
    c->prompt_tokens += job->n_tokens;
    if (job->n_tokens > c->prompt_tokens_max)
        c->prompt_tokens_max = job->n_tokens;
    return 0;
}

static int check_line(struct check *c, const struct file_line *line, struct err *e)
{
    struct job *job = NULL;
    TRY(setup_parse_line(&c->cli->settings, c->path, line, &job, e));
    const int rc = check_job(c, job, e);
    job_free(job);
    return rc;
}

static int check_file(struct check *c, struct err *e)
{
    struct file_source *source = NULL;
    TRY(file_source_open(c->path, &source, e));
    struct file_line line;
    int rc;
    while ((rc = file_source_next(source, &line, e)) == 0 && line.bytes) {
        if (job_line_is_blank(line.bytes, line.length))
            continue;
        rc = check_line(c, &line, e);
        if (rc != 0)
            break;
    }
    file_source_close(source);
    return rc;
}

static int print_json(const struct check *c, struct err *e)
{
    json_t *root =
        json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:O}", "file", c->path, "jobs",
                  (json_int_t)c->jobs, "good", (json_int_t)(c->jobs - c->bad), "bad",
                  (json_int_t)c->bad, "prompt_tokens", (json_int_t)c->prompt_tokens,
                  "prompt_tokens_max", (json_int_t)c->prompt_tokens_max, "errors", c->errors);
    int rc = root ? 0 : ERR_SET(e, ERR_NOMEM, "no memory for what was found");
    if (rc == 0)
        rc = sharing_add_json(&c->sharing, c->answers.model->tokenizer, root, e);
    if (rc == 0) {
        json_dumpf(root, stdout, JSON_INDENT(2));
        putchar('\n');
    }
    json_decref(root);
    return rc;
}

static int print_totals(const struct check *c, struct err *e)
{
    if (c->cli->json)
        return print_json(c, e);
    printf(
        "%s: %llu jobs, %llu good, %llu bad; %llu prompt tokens, longest prompt %llu of %zu\n",
        c->path, (unsigned long long)c->jobs, (unsigned long long)(c->jobs - c->bad),
        (unsigned long long)c->bad, (unsigned long long)c->prompt_tokens,
        (unsigned long long)c->prompt_tokens_max, c->context);
    return c->sample.n > 0 ? sharing_print(&c->sharing, c->answers.model->tokenizer, e) : 0;
}

static int check_with_model(struct check *c, const struct model *m, struct err *e)
{
    const struct settings *s = &c->cli->settings;
    TRY(answer_context_init(&c->answers, m, s, "", e));
    c->context = s->context ? (size_t)s->context : m->config.context;
    c->errors = json_array();
    if (!c->errors)
        return ERR_SET(e, ERR_NOMEM, "no memory for the list of errors");
    TRY(check_file(c, e));
    TRY(sharing_find(&c->sample, (size_t)s->prefix_tokens_min, &c->sharing, e));
    return print_totals(c, e);
}

static int run(struct cli *cli, struct err *e)
{
    struct check c = {.cli = cli};
    struct model *m = NULL;
    advice_sample_init(&c.sample, KEPT_JOBS_MAX, KEPT_TOKENS_MAX);
    int rc = cli_one_input(cli, &c.path, e);
    if (rc == 0)
        rc = setup_open_documents(&cli->settings, NULL, &c.documents, e);
    if (rc == 0)
        rc = setup_open_model(&cli->settings, &m, e);
    if (rc == 0)
        rc = check_with_model(&c, m, e);
    advice_sample_fini(&c.sample);
    json_decref(c.errors);
    hash_set_fini(&c.ids);
    documents_close(c.documents);
    model_close(m);
    if (rc != 0)
        return cli_exit_code(e);
    return c.bad > 0 ? EXIT_SOME_FAILED : 0;
}

const struct command cmd_check = {
    .name = "check",
    .summary = "validate a file of jobs and tell what their prompts share",
    .usage = "[-i] FILE",
    .text =
        "Reads every job line as a worker would, names each bad line with its error, and\n"
        "counts prompt tokens. Then tells the best hit ratio that the prefix cache can reach,\n"
        "the groups of jobs that share a prefix, and where a piece that differs from job to\n"
        "job (a time, a name, one space) breaks it. Exits with 1 when a line is bad.\n\n"
        "Examples:\n"
        "  sheaf check jobs.jsonl\n"
        "  sheaf check jobs.jsonl --json",
    .takes = CLI_INPUT | CLI_JSON,
    .settings =
        "model chat_template context max_tokens strict prefix_cache.min_tokens documents "
        "documents.mb",
    .args_max = 1,
    .run = run,
};
