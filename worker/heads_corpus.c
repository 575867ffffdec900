#include "heads_corpus.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "answer.h"
#include "base/buf.h"
#include "io/queue_file.h"
#include "job_parse.h"
#include "report/answers.h"
#include "setup.h"

enum {
    TEXT_TOKENS = 1024, /* a paragraph is cut into pieces of so many */
    TOKENS_MAX = 64 << 20,
    INPUTS_MAX = 1024, /* files that a database names */
};

/* The answer to a job line. */
struct known_answer {
    char payload_sha256[65];
    size_t number; /* as the database told it: of two the first counts */
    char *text;
    size_t length;
};

struct reading {
    const struct heads_corpus_options *o;
    struct corpus *corpus;
    struct heads_corpus_counts *counts;
    struct answer_context context;
    struct documents *documents;
    size_t n_max; /* tokens of a text */
    uint64_t n_tokens;

    struct known_answer *answers;
    size_t n_answers, capacity;
    bool wants_answers;
    char *inputs[INPUTS_MAX];
    size_t n_inputs;
    bool has_topics; /* some answers are to records of a topic */
};

static int open_input(const char *path, FILE **out, struct err *e)
{
    *out = fopen(path, "re");
    if (*out)
        return 0;
    return ERR_SET(e, errno == ENOENT ? ERR_NOTFOUND : ERR_IO, "cannot open %s: %s", path,
                   strerror(errno));
}

static int add_text(struct reading *r, const int32_t *prompt, size_t n_prompt,
                    const int32_t *answer, size_t n_answer, struct err *e)
{
    if (n_prompt == 0)
        return 0;
    r->n_tokens += n_prompt + n_answer;
    if (r->n_tokens > TOKENS_MAX)
        return ERR_SET(e, ERR_LIMIT, "%s holds more than %d tokens; give a part of it",
                       r->o->path, TOKENS_MAX);
    r->counts->texts++;
    return corpus_add(r->corpus, prompt, n_prompt, answer, n_answer, r->n_max, e);
}

/* ------------------------------------------------------------------ answers */

static int note_input(struct reading *r, const struct report_answer *answer, struct err *e)
{
    if (!answer->is_file || strcmp(answer->topic, "-") == 0) {
        r->has_topics = true;
        return 0;
    }
    for (size_t i = r->n_inputs; i > 0; i--)
        if (strcmp(r->inputs[i - 1], answer->topic) == 0)
            return 0;
    if (r->n_inputs == INPUTS_MAX)
        return ERR_SET(e, ERR_LIMIT, "%s names more than %d input files; name one with --input",
                       r->o->path, INPUTS_MAX);
    char *path = strdup(answer->topic);
    if (!path)
        return ERR_SET(e, ERR_NOMEM, "no memory for a path");
    r->inputs[r->n_inputs++] = path;
    return 0;
}

static int keep_answer(void *ctx, const struct report_answer *answer, struct err *e)
{
    struct reading *r = ctx;
    if (r->n_answers == r->capacity) {
        const size_t capacity = 2 * r->capacity + 256;
        struct known_answer *answers = realloc(r->answers, capacity * sizeof answers[0]);
        if (!answers)
            return ERR_SET(e, ERR_NOMEM, "no memory for %zu answers", capacity);
        r->answers = answers;
        r->capacity = capacity;
    }
    char *text = malloc(answer->length + 1);
    if (!text)
        return ERR_SET(e, ERR_NOMEM, "no memory for an answer");
    memcpy(text, answer->text, answer->length);
    struct known_answer *kept = &r->answers[r->n_answers];
    *kept =
        (struct known_answer){.number = r->n_answers, .text = text, .length = answer->length};
    snprintf(kept->payload_sha256, sizeof kept->payload_sha256, "%s", answer->payload_sha256);
    r->n_answers++;
    return note_input(r, answer, e);
}

static int compare_answers(const void *a, const void *b)
{
    const struct known_answer *x = a, *y = b;
    const int order = strcmp(x->payload_sha256, y->payload_sha256);
    return order ? order : (x->number > y->number) - (x->number < y->number);
}

static int read_answers(struct reading *r, struct err *e)
{
    struct store *store = NULL;
    TRY(store_open(r->o->path, STORE_READER, &store, e));
    const int rc = report_answers(store, keep_answer, r, e);
    store_close(store);
    TRY(rc);
    if (r->n_answers == 0)
        return ERR_SET(e, ERR_INVALID, "%s holds no answers", r->o->path);
    qsort(r->answers, r->n_answers, sizeof r->answers[0], compare_answers);
    r->wants_answers = true;
    return 0;
}

/* Of the run begun last. */
static const struct known_answer *find_answer(const struct reading *r, const char *sha256)
{
    size_t low = 0, high = r->n_answers;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (strcmp(r->answers[middle].payload_sha256, sha256) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    const bool found =
        low < r->n_answers && strcmp(r->answers[low].payload_sha256, sha256) == 0;
    return found ? &r->answers[low] : NULL;
}

/* ------------------------------------------------------------------ job lines */

static int add_job(struct reading *r, const struct job *job, const struct known_answer *answer,
                   struct err *e)
{
    struct token_list tokens = {0};
    int rc = 0;
    if (answer) {
        const struct token_span span = {.text = answer->text, .length = answer->length};
        rc = tokenizer_encode(r->o->model->tokenizer, &span, 1, false, &tokens, e);
        r->counts->answers += rc == 0;
    }
    if (rc == 0)
        rc = add_text(r, job->tokens, job->n_tokens, tokens.ids, tokens.length, e);
    token_list_fini(&tokens);
    return rc;
}

static bool fits(const struct reading *r, const struct job *job)
{
    const struct seq_request req = {.prompt = job->tokens, .n_prompt = job->n_tokens};
    return engine_check_tokens(r->o->model, &req, NULL) == 0;
}

static int use_job(struct reading *r, struct job *job, struct err *e)
{
    const struct known_answer *answer = NULL;
    bool waits; /* never: that is for topics */
    if (r->wants_answers && !(answer = find_answer(r, job->payload_sha256))) {
        r->counts->unmatched++;
        return 0;
    }
    if (job->error.status == 0)
        TRY(documents_resolve(r->documents, job, 0, &waits, e));
    if (job->error.status == 0)
        TRY(answer_tokenize(&r->context, job, e));
    if (job->error.status != 0 || !fits(r, job)) {
        r->counts->bad++;
        return 0;
    }
    return add_job(r, job, answer, e);
}

static int use_line(struct reading *r, const char *path, const struct file_line *line,
                    struct err *e)
{
    struct job *job = NULL;
    TRY(setup_parse_line(r->o->settings, path, line, &job, e));
    const int rc = use_job(r, job, e);
    job_free(job);
    return rc;
}

static int read_jobs(struct reading *r, const char *path, struct err *e)
{
    struct file_source *source = NULL;
    TRY(file_source_open(path, &source, e));
    struct file_line line;
    int rc;
    while ((rc = file_source_next(source, &line, e)) == 0 && line.bytes) {
        if (job_line_is_blank(line.bytes, line.length))
            continue;
        rc = use_line(r, path, &line, e);
        if (rc != 0)
            break;
    }
    file_source_close(source);
    return rc;
}

static int read_database(struct reading *r, struct err *e)
{
    TRY(read_answers(r, e));
    if (r->o->input)
        return read_jobs(r, r->o->input, e);
    if (r->n_inputs == 0)
        return ERR_SET(
            e, ERR_CONFIG,
            "the jobs of %s came from a topic or from standard input, and a database "
            "does not keep prompts; name a file of their lines with --input",
            r->o->path);
    for (size_t i = 0; i < r->n_inputs; i++)
        if (read_jobs(r, r->inputs[i], e) != 0) {
            err_prefix(e,
                       "%s names an input file that is not there any more (--input names "
                       "another)",
                       r->o->path);
            return e ? e->code : ERR_NOTFOUND;
        }
    return 0;
}

/* ------------------------------------------------------------------ plain text */

static int add_paragraph(struct reading *r, const char *text, size_t length, struct err *e)
{
    struct token_list tokens = {0};
    const struct token_span span = {.text = text, .length = length};
    int rc = tokenizer_encode(r->o->model->tokenizer, &span, 1, true, &tokens, e);
    for (size_t at = 0; rc == 0 && at < tokens.length; at += TEXT_TOKENS) {
        const size_t left = tokens.length - at;
        rc = add_text(r, tokens.ids + at, left < TEXT_TOKENS ? left : TEXT_TOKENS, NULL, 0, e);
    }
    token_list_fini(&tokens);
    return rc;
}

/* Appends a line to the paragraph; a blank one ends it. */
static int read_text(struct reading *r, struct err *e)
{
    FILE *in;
    TRY(open_input(r->o->path, &in, e));
    struct buf paragraph = {0};
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    int rc = 0;
    while (rc == 0 && (n = getline(&line, &capacity, in)) >= 0) {
        if (strspn(line, " \t\r\n") < (size_t)n) {
            buf_append(&paragraph, line, (size_t)n);
        } else {
            rc = add_paragraph(r, buf_str(&paragraph), paragraph.length, e);
            buf_truncate(&paragraph, 0);
        }
        if (!buf_ok(&paragraph))
            rc = ERR_SET(e, ERR_NOMEM, "no memory for a paragraph of %s", r->o->path);
    }
    if (rc == 0 && ferror(in))
        rc = ERR_SET(e, ERR_IO, "cannot read %s: %s", r->o->path, strerror(errno));
    if (rc == 0)
        rc = add_paragraph(r, buf_str(&paragraph), paragraph.length, e);
    buf_fini(&paragraph);
    free(line);
    fclose(in);
    return rc;
}

/* ------------------------------------------------------------------ what it is */

enum kind { KIND_DATABASE, KIND_JOBS, KIND_TEXT };

static int find_kind(const char *path, enum kind *out, struct err *e)
{
    FILE *in;
    TRY(open_input(path, &in, e));
    char head[4096];
    const size_t n = fread(head, 1, sizeof head - 1, in);
    const bool failed = ferror(in) != 0;
    fclose(in);
    if (failed)
        return ERR_SET(e, ERR_IO, "cannot read %s", path);
    head[n] = '\0';
    *out = strcmp(head, "SQLite format 3") == 0               ? KIND_DATABASE
           : head[strspn(head, "\xef\xbb\xbf \t\r\n")] == '{' ? KIND_JOBS
                                                              : KIND_TEXT;
    return 0;
}

static int read_kind(struct reading *r, enum kind kind, struct err *e)
{
    if (kind == KIND_TEXT)
        return read_text(r, e);
    TRY(answer_context_init(&r->context, r->o->model, r->o->settings, "", e));
    TRY(setup_open_documents(r->o->settings, NULL, &r->documents, e));
    return kind == KIND_DATABASE ? read_database(r, e) : read_jobs(r, r->o->path, e);
}

int heads_corpus_read(const struct heads_corpus_options *o, struct corpus *out,
                      struct heads_corpus_counts *counts, struct err *e)
{
    *out = (struct corpus){0};
    *counts = (struct heads_corpus_counts){0};
    enum kind kind;
    TRY(find_kind(o->path, &kind, e));
    struct reading *r = calloc(1, sizeof *r);
    if (!r)
        return ERR_SET(e, ERR_NOMEM, "no memory for the texts");
    *r = (struct reading){.o = o, .corpus = out, .counts = counts};
    const size_t context =
        o->settings->context ? (size_t)o->settings->context : o->model->config.context;
    r->n_max = context - 1;
    const int rc = read_kind(r, kind, e);
    documents_close(r->documents);
    for (size_t i = 0; i < r->n_answers; i++)
        free(r->answers[i].text);
    free(r->answers);
    for (size_t i = 0; i < r->n_inputs; i++)
        free(r->inputs[i]);
    free(r);
    if (rc != 0)
        corpus_fini(out);
    return rc;
}
