#include "readahead.h"

#include <stdlib.h>

#include "base/clock.h"
#include "group.h"

enum {
    LULL_US = 50000,       /* without a new job: nothing more comes soon */
    PATIENCE_US = 1000000, /* of an idle engine */
};

struct queued {
    struct job *job;
    struct prefix_path *wanted;
};

struct readahead {
    struct group_window *window;
    struct engine *engine;
    int64_t waiting_since_us; /* the window went from empty to not */
    int64_t added_us;         /* the last job */
};

int readahead_open(const struct settings *s, struct engine *eng, struct readahead **out,
                   struct err *e)
{
    struct readahead *r = calloc(1, sizeof *r);
    if (!r)
        return ERR_SET(e, ERR_NOMEM, "no memory for the window");
    const struct group_limits limits = {
        .jobs_max = (size_t)s->window_jobs,
        .tokens_max = (size_t)s->window_tokens,
        .bytes_max = (size_t)s->window_mb << 20,
        .open_max = (size_t)s->group_open,
        .max_wait_us = s->group_max_wait_s * 1000000,
        .enabled = s->grouping,
    };
    r->engine = eng;
    const int rc = group_open(&limits, &r->window, e);
    if (rc != 0) {
        free(r);
        return rc;
    }
    *out = r;
    return 0;
}

static struct job *release(struct readahead *r, struct queued *queued)
{
    struct job *job = queued->job;
    engine_unwant(r->engine, queued->wanted);
    free(queued);
    return job;
}

void readahead_close(struct readahead *r)
{
    if (!r)
        return;
    struct queued *queued;
    while ((queued = group_take_any(r->window)))
        job_free(release(r, queued));
    group_close(r->window);
    free(r);
}

bool readahead_has_room(const struct readahead *r)
{
    return group_has_room(r->window);
}

size_t readahead_length(const struct readahead *r)
{
    return group_length(r->window);
}

static size_t bytes_of(const struct job *job)
{
    size_t bytes = sizeof *job + job->prompt_length +
                   (job->n_tokens + job->n_prediction_tokens) * sizeof job->tokens[0];
    for (size_t i = 0; i < job->n_messages; i++)
        bytes += job->messages[i].length;
    return bytes;
}

/* The wall clock's deadline on the monotonic one. */
static int64_t deadline_of(const struct job *job)
{
    if (job->deadline_us == 0)
        return 0;
    const int64_t at_us = job->admitted_us + (job->deadline_us - job->admitted_wall_us);
    return at_us > 0 ? at_us : 1;
}

int readahead_add(struct readahead *r, struct job *job, struct err *e)
{
    struct queued *queued = calloc(1, sizeof *queued);
    if (!queued)
        return ERR_SET(e, ERR_NOMEM, "no memory for a job in the window");
    queued->job = job;
    const struct group_job item = {
        .tokens = job->tokens,
        .n_tokens = job->n_tokens,
        .salt = job->cache_salt,
        .bytes = bytes_of(job),
        .priority = job->priority,
        .deadline_us = deadline_of(job),
        .added_us = job->admitted_us,
        .user = queued,
    };
    int rc =
        engine_want(r->engine, job->cache_salt, job->tokens, job->n_tokens, &queued->wanted, e);
    if (rc == 0)
        rc = group_add(r->window, &item, e);
    if (rc != 0) {
        release(r, queued);
        return rc;
    }
    r->added_us = clock_mono_us();
    if (group_length(r->window) == 1)
        r->waiting_since_us = r->added_us;
    return 0;
}

bool readahead_is_ready(const struct readahead *r, bool more_may_come)
{
    if (group_length(r->window) == 0)
        return false;
    const int64_t now_us = clock_mono_us();
    return !more_may_come || !group_has_room(r->window) || now_us - r->added_us >= LULL_US ||
           now_us - r->waiting_since_us >= PATIENCE_US;
}

struct job *readahead_next(struct readahead *r)
{
    struct group_pick pick;
    if (!group_next(r->window, clock_mono_us(), &pick))
        return NULL;
    struct job *job = release(r, pick.user);
    job->group_jobs = pick.group_jobs;
    job->shared_tokens = pick.shared_tokens;
    return job;
}
