/* Results built by hand and a temporary folder, for the tests that need a database. */
#ifndef SHEAF_TEST_STORE_MAKE_H
#define SHEAF_TEST_STORE_MAKE_H

#include <dirent.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/store.h"

/* The pieces of one result; the pointers in it lead into this struct. */
struct made {
    char custom_id[32], line[64], text[64], question[64], doc_id[32];
    struct job_message message;
    struct job_document document;
    struct job job;
    struct result result;
};

/* A succeeded answer to line or record n; all metrics follow from n and hold their identities.
 */
static inline struct result *make_result(struct made *m, const char *topic, bool is_file, int n)
{
    *m = (struct made){0};
    snprintf(m->custom_id, sizeof m->custom_id, "q-%d", n);
    snprintf(m->line, sizeof m->line, "{\"custom_id\":\"q-%d\"}", n);
    snprintf(m->text, sizeof m->text, "answer %d", n);
    snprintf(m->question, sizeof m->question, "question %d?", n);
    snprintf(m->doc_id, sizeof m->doc_id, "doc-%d", n % 3);
    m->message = (struct job_message){JOB_USER, m->question, strlen(m->question)};
    m->document = (struct job_document){.id = m->doc_id, .text = m->text, .length = 8};
    m->job = (struct job){
        .dialect = DIALECT_NATIVE,
        .source = {.topic = (char *)topic,
                   .offset = n,
                   .timestamp_us = 1700000000000000,
                   .is_file = is_file},
        .custom_id = m->custom_id,
        .messages = &m->message,
        .n_messages = 1,
        .documents = &m->document,
        .n_documents = 1,
        .admitted_wall_us = 1700000001000000 + n,
        .prefix_group = (char *)"0123456789abcdef",
    };
    snprintf(m->job.payload_sha256, sizeof m->job.payload_sha256, "%064d", n);
    m->result = (struct result){
        .job = &m->job,
        .status = RESULT_SUCCEEDED,
        .text = m->text,
        .text_length = strlen(m->text),
        .finish_reason = "stop",
        .stop_reason = "eos",
        .created_s = 1700000002,
        .model = "tiny",
        .worker_id = "w1",
    };
    snprintf(m->result.id, sizeof m->result.id, "batch_req_%d", n);
    m->result.metrics = (struct result_metrics){
        .queue_us = 1000000 + n,
        .group_wait_us = 10 * n,
        .prefill_us = 1000,
        .ttft_us = 10 * n + 1000,
        .decode_us = 9000 * n,
        .e2e_us = 9010 * n + 1000,
        .gap_us_max = 70,
        .prompt_tokens = 100 + n,
        .cached_tokens = n,
        .computed_tokens = 100,
        .completion_tokens = 10,
        .draft_tokens = 7,
        .accepted_tokens = 3,
        .engine_steps = 11,
        .prefill_chunks = 2,
        .preemptions = 1,
        .kv_pages_peak = 4,
    };
    return &m->result;
}

static inline struct result *make_failure(struct made *m, const char *topic, bool is_file,
                                          int n, const char *code)
{
    struct result *r = make_result(m, topic, is_file, n);
    r->status = RESULT_FAILED;
    r->finish_reason = NULL;
    r->stop_reason[0] = '\0';
    r->text = NULL;
    r->metrics = (struct result_metrics){0};
    m->job.admitted_wall_us = 0;
    r->error.status = 400;
    snprintf(r->error.code, sizeof r->error.code, "%s", code);
    snprintf(r->error.type, sizeof r->error.type, "invalid_request_error");
    snprintf(r->error.message, sizeof r->error.message, "line %d: %s", n, code);
    return r;
}

static const struct store_run made_run = {
    .run_id = "night",
    .label = "first",
    .model = "tiny",
    .model_sha256 = "aa",
    .quant = "Q4_1",
    .kernels = "ref",
    .engine_json = "{\"batch\":8}",
    .version = "0.1.0",
    .started_s = 1700000000,
};

static inline int put_made(struct store *s, const char *run_id, struct made *m, struct err *e)
{
    const struct result *results[] = {&m->result};
    const char *lines[] = {m->line};
    return store_put(s, run_id, results, lines, 1, e);
}

/* The integer that a query of one row and column gives; -1: no row. */
static inline int64_t ask_s64(struct store *s, const char *sql)
{
    sqlite3_stmt *st = NULL;
    int64_t n = -1;
    if (sqlite3_prepare_v2(store_handle(s), sql, -1, &st, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(store_handle(s)));
    if (sqlite3_step(st) == SQLITE_ROW)
        n = sqlite3_column_int64(st, 0);
    sqlite3_finalize(st);
    return n;
}

/* A folder of its own for each test; *state is its path. */
static inline int make_folder(void **state)
{
    const char *base = getenv("TMPDIR");
    char *path = malloc(4096);
    snprintf(path, 4096, "%s/sheaf-test-XXXXXX", base ? base : "/tmp");
    *state = path;
    return mkdtemp(path) ? 0 : -1;
}

static inline int remove_folder(void **state)
{
    char path[4600];
    DIR *dir = opendir(*state);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        snprintf(path, sizeof path, "%s/%s", (char *)*state, entry->d_name);
        unlink(path);
    }
    closedir(dir);
    rmdir(*state);
    free(*state);
    return 0;
}

static inline const char *path_in(void **state, const char *name)
{
    static char paths[4][4600];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", (char *)*state, name);
    return path;
}

/* The jobs room supplies this one when it is linked. */
__attribute__((weak)) const char *job_dialect_name(enum job_dialect dialect)
{
    static const char *const names[] = {"native", "openai-chat", "openai-completion"};
    return names[dialect];
}

#endif
