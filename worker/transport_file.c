#include "transport.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "io/queue_file.h"
#include "job_parse.h"

struct file_transport {
    char *path; /* the topic of its lines */
    struct file_source *source;
    struct file_sink *sink;
    struct shared_store *store;
    int64_t blank_from; /* first line of the present run of blank lines, 0: none */
    int64_t last_line;
    _Atomic int64_t bytes_read;
    int64_t bytes_total;
};

/* Lines that hold no job any more may have held one when an earlier run was killed. */
static int drop_lines(struct file_transport *t, int64_t first, int64_t last, struct err *e)
{
    pthread_mutex_lock(&t->store->lock);
    const int rc = store_drop_lines(t->store->store, t->path, first, last, e);
    pthread_mutex_unlock(&t->store->lock);
    return rc;
}

static int end_blank_lines(struct file_transport *t, struct err *e)
{
    if (t->blank_from == 0)
        return 0;
    const int64_t first = t->blank_from;
    t->blank_from = 0;
    return drop_lines(t, first, t->last_line, e);
}

static int take(void *ctx, bool may_wait, struct transport_input *in,
                enum transport_event *event, struct err *e)
{
    (void)may_wait;
    struct file_transport *t = ctx;
    struct file_line line;
    for (;;) {
        TRY(file_source_next(t->source, &line, e));
        int64_t read, total;
        file_source_progress(t->source, &read, &total);
        atomic_store(&t->bytes_read, read);
        if (!line.bytes) {
            *event = TRANSPORT_END;
            return end_blank_lines(t, e);
        }
        if (!job_line_is_blank(line.bytes, line.length))
            break;
        if (t->blank_from == 0)
            t->blank_from = line.number;
        t->last_line = line.number;
    }
    TRY(end_blank_lines(t, e));
    t->last_line = line.number;
    *event = TRANSPORT_INPUT;
    *in = (struct transport_input){
        .bytes = line.bytes,
        .length = line.length,
        .source = {.topic = t->path,
                   .offset = line.number,
                   .timestamp_us = clock_wall_us(),
                   .is_file = true},
    };
    return 0;
}

static int deliver(void *ctx, const struct transport_output *outputs, size_t n, struct err *e)
{
    struct file_transport *t = ctx;
    const struct job_source *sources[TRANSPORT_BATCH_MAX];
    const char *lines[TRANSPORT_BATCH_MAX];
    size_t n_lines = 0;
    ASSERT(n <= TRANSPORT_BATCH_MAX);
    for (size_t i = 0; i < n; i++) {
        if (!outputs[i].line)
            continue;
        sources[n_lines] = outputs[i].source;
        lines[n_lines++] = outputs[i].line;
    }
    if (n_lines == 0)
        return 0;
    pthread_mutex_lock(&t->store->lock);
    const int rc = file_sink_write(t->sink, sources, lines, n_lines, e);
    pthread_mutex_unlock(&t->store->lock);
    return rc;
}

static void stop(void *ctx)
{
    struct file_transport *t = ctx;
    file_source_stop(t->source);
}

static void progress(void *ctx, struct transport_progress *out)
{
    struct file_transport *t = ctx;
    *out = (struct transport_progress){
        .unit = "bytes", .taken = atomic_load(&t->bytes_read), .total = t->bytes_total};
}

static int finish(void *ctx, bool whole, struct err *e)
{
    struct file_transport *t = ctx;
    if (!whole)
        return 0;
    /* Only an input that was read to its end tells that there is nothing behind it. */
    TRY(drop_lines(t, t->last_line + 1, INT64_MAX, e));
    return file_sink_finish(t->sink, e);
}

static void close_files(void *ctx)
{
    struct file_transport *t = ctx;
    if (!t)
        return;
    file_sink_close(t->sink);
    file_source_close(t->source);
    free(t->path);
    free(t);
}

/* An absolute path, so that a resumed run finds its lines from any directory. */
static char *full_path(const char *input)
{
    if (strcmp(input, "-") == 0)
        return strdup(input);
    char *path = realpath(input, NULL);
    return path ? path : strdup(input); /* a pipe has no path of its own */
}

int transport_open_files(const char *input, const char *output, size_t queue_max,
                         struct shared_store *store, struct transport *out, struct err *e)
{
    struct file_transport *t = calloc(1, sizeof *t);
    if (!t)
        return ERR_SET(e, ERR_NOMEM, "no memory for the input file");
    int rc = 0;
    t->store = store;
    TRY_OUT(rc, file_source_open(input, &t->source, e));
    t->path = full_path(input);
    if (!t->path) {
        rc = ERR_SET(e, ERR_NOMEM, "no memory for the path of %s", input);
        goto out;
    }
    int64_t read;
    file_source_progress(t->source, &read, &t->bytes_total);
    TRY_OUT(rc, file_sink_open(output, t->path, store->store, false, &t->sink, e));
    *out = (struct transport){.ctx = t,
                              .has_end = true,
                              .unique_ids = true,
                              .queue_max = queue_max,
                              .take = take,
                              .stop = stop,
                              .deliver = deliver,
                              .progress = progress,
                              .finish = finish,
                              .close = close_files};
out:
    if (rc != 0)
        close_files(t);
    return rc;
}
