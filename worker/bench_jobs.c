#include "bench.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "io/queue_file.h"
#include "job_parse.h"
#include "setup.h"

static int grow(struct bench_jobs *jobs, struct err *e)
{
    if (jobs->n < jobs->capacity)
        return 0;
    const size_t capacity = jobs->capacity ? 2 * jobs->capacity : 64;
    struct bench_job *items = realloc(jobs->items, capacity * sizeof items[0]);
    if (!items)
        return ERR_SET(e, ERR_NOMEM, "no memory for the jobs");
    jobs->items = items;
    jobs->capacity = capacity;
    return 0;
}

static int prepare(struct bench_job *item, const struct answer_context *ctx,
                   struct documents *documents, struct err *e)
{
    bool waits; /* never: that is for topics */
    if (item->job->error.status == 0)
        TRY(documents_resolve(documents, item->job, 0, &waits, e));
    if (item->job->error.status == 0)
        TRY(answer_tokenize(ctx, item->job, e));
    if (item->job->error.status == 0)
        TRY(answer_request(ctx, item->job, &item->req, &item->bias, e));
    return 0;
}

static void free_item(struct bench_job *item)
{
    job_free(item->job);
    free(item->bias);
}

int bench_jobs_add(struct bench_jobs *jobs, const struct answer_context *ctx, const char *path,
                   int64_t number, const char *bytes, size_t length, struct err *e)
{
    TRY(grow(jobs, e));
    const struct file_line line = {.bytes = bytes, .length = length, .number = number};
    struct bench_job item = {0};
    TRY(setup_parse_line(ctx->settings, path, &line, &item.job, e));
    const int rc = prepare(&item, ctx, jobs->documents, e);
    if (rc != 0 || item.job->error.status != 0) {
        if (rc == 0) {
            jobs->refused++;
            log_warn("%s line %lld: %s", path, (long long)number, item.job->error.message);
        }
        free_item(&item);
        return rc;
    }
    const size_t longest = item.req.n_prompt + item.req.max_tokens;
    if (longest > jobs->context)
        jobs->context = longest;
    jobs->items[jobs->n++] = item;
    return 0;
}

static int read_lines(struct bench_jobs *jobs, const struct answer_context *ctx,
                      const char *path, struct file_source *source, struct err *e)
{
    struct file_line line;
    for (;;) {
        TRY(file_source_next(source, &line, e));
        if (!line.bytes)
            return 0;
        if (!job_line_is_blank(line.bytes, line.length))
            TRY(bench_jobs_add(jobs, ctx, path, line.number, line.bytes, line.length, e));
    }
}

int bench_jobs_read(struct bench_jobs *jobs, const struct answer_context *ctx, const char *path,
                    struct err *e)
{
    struct file_source *source = NULL;
    jobs->concurrency = (size_t)ctx->settings->batch;
    TRY(file_source_open(path, &source, e));
    int rc = read_lines(jobs, ctx, path, source, e);
    file_source_close(source);
    if (rc == 0 && jobs->n == 0)
        rc = ERR_SET(e, ERR_INVALID, "%s has no job that could be answered", path);
    return rc;
}

void bench_jobs_fini(struct bench_jobs *jobs)
{
    for (size_t i = 0; i < jobs->n; i++)
        free_item(&jobs->items[i]);
    free(jobs->items);
    *jobs = (struct bench_jobs){0};
}
