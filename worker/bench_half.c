/*
 * All jobs answered once: window, engine, and what came out of it.
 *
 *     jobs --fill--> window (and wanted in the cache) --feed--> engine --collect--> answers
 */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "group.h"
#include "report/percentile.h"
#include "setup.h"

struct step_sample {
    size_t rows;
    int64_t us;
};

struct driver {
    const struct bench_jobs *jobs;
    struct bench_half *half;
    struct engine *engine;
    struct setup_drafts drafts; /* the engine's */
    struct group_window *window;
    struct prefix_path **wanted; /* [jobs->n], of those in the window */
    size_t next;                 /* job for the window */
    struct hash_set begun;       /* beginnings of prompts given out, by hash */
    struct step_sample *steps;   /* without a prompt's row */
    size_t n_steps, steps_capacity;
};

/* ------------------------------------------------------------------ one after the other */

static int add_to_window(struct driver *d, size_t i, struct err *e)
{
    const struct bench_job *item = &d->jobs->items[i];
    const struct seq_request *req = &item->req;
    TRY(engine_want(d->engine, req->salt, req->prompt, req->n_prompt, &d->wanted[i], e));
    const struct group_job job = {
        .tokens = req->prompt,
        .n_tokens = req->n_prompt,
        .salt = req->salt,
        .bytes = req->n_prompt * sizeof req->prompt[0],
        .priority = item->job->priority,
        .added_us = clock_mono_us(),
        .user = &d->half->answers[i],
    };
    return group_add(d->window, &job, e);
}

static int fill_window(struct driver *d, struct err *e)
{
    while (d->next < d->jobs->n && group_has_room(d->window))
        TRY(add_to_window(d, d->next++, e));
    return 0;
}

/* Did an earlier prompt begin with the first half of this one? Notes this one's beginnings. */
static int note_beginnings(struct driver *d, const struct seq_request *req, bool *known,
                           struct err *e)
{
    const size_t n_blocks = req->n_prompt / KV_PAGE_TOKENS;
    const size_t half_way = n_blocks > 1 ? n_blocks / 2 : 1;
    uint64_t chain[2] = {0, 0};
    *known = false;
    for (size_t k = 1; k <= n_blocks; k++) {
        chain[1] = hash_bytes(req->prompt + (k - 1) * KV_PAGE_TOKENS,
                              KV_PAGE_TOKENS * sizeof req->prompt[0]);
        chain[0] = hash_bytes(chain, sizeof chain);
        const enum hash_set_answer answer = hash_set_add(&d->begun, chain[0]);
        if (answer == HASH_SET_NOMEM)
            return ERR_SET(e, ERR_NOMEM, "no memory for what was seen");
        if (k == half_way)
            *known = answer == HASH_SET_KNOWN;
    }
    return 0;
}

static int submit(struct driver *d, struct bench_answer *answer, struct err *e)
{
    const size_t i = (size_t)(answer - d->half->answers);
    struct seq_request req = d->jobs->items[i].req;
    struct err refusal = {0};
    req.user = answer;
    TRY(note_beginnings(d, &req, &answer->is_warm, e));
    const int rc = engine_submit(d->engine, &req, &refusal);
    engine_unwant(d->engine, d->wanted[i]);
    d->wanted[i] = NULL;
    if (rc != 0 && !(refusal.flags & ERR_JOB))
        return ERR_SET(e, rc, "%s", refusal.text);
    return 0; /* a refused prompt stays without a text */
}

static int feed(struct driver *d, struct err *e)
{
    struct group_pick pick;
    TRY(fill_window(d, e));
    while (engine_active(d->engine) < d->jobs->concurrency && engine_has_room(d->engine) &&
           group_next(d->window, clock_mono_us(), &pick)) {
        TRY(submit(d, pick.user, e));
        TRY(fill_window(d, e));
    }
    return 0;
}

static int note_step(struct driver *d, const struct engine_counters *before, int64_t us,
                     struct err *e)
{
    const struct engine_counters after = engine_counters(d->engine);
    if (after.computed_tokens != before->computed_tokens || after.rows == before->rows)
        return 0;
    if (d->n_steps == d->steps_capacity) {
        const size_t capacity = d->steps_capacity ? 2 * d->steps_capacity : 1024;
        struct step_sample *steps = realloc(d->steps, capacity * sizeof steps[0]);
        if (!steps)
            return ERR_SET(e, ERR_NOMEM, "no memory for the steps' times");
        d->steps = steps;
        d->steps_capacity = capacity;
    }
    d->steps[d->n_steps++] = (struct step_sample){(size_t)(after.rows - before->rows), us};
    return 0;
}

static int keep_answer(const struct seq_result *r, struct err *e)
{
    struct bench_answer *a = r->user;
    char *text = r->reason == FINISH_NOMEM ? NULL : malloc(r->text_bytes + 1);
    if (!text)
        return ERR_SET(e, ERR_NOMEM, "no memory for an answer");
    memcpy(text, r->text, r->text_bytes);
    a->out = (struct experiment_answer){text, r->text_bytes, r->n_tokens, (int)r->reason};
    a->n_prompt = r->n_prompt;
    a->n_cached = r->n_cached;
    a->n_yielding_steps = r->n_steps - r->n_chunks;
    a->n_drafted = r->n_drafted;
    a->n_accepted = r->n_accepted;
    a->ttft_us = r->first_token_us - r->submitted_us;
    a->e2e_us = r->last_token_us - r->submitted_us;
    a->tpot_us = r->n_tokens < 2
                     ? -1
                     : (r->last_token_us - r->first_token_us) / ((int64_t)r->n_tokens - 1);
    return 0;
}

static int step(struct driver *d, struct err *e)
{
    bool worked, collected = false;
    struct seq_result r;
    const struct engine_counters before = engine_counters(d->engine);
    const int64_t began_us = clock_mono_us();
    TRY(engine_step(d->engine, &worked, e));
    TRY(note_step(d, &before, clock_mono_us() - began_us, e));
    for (; engine_collect(d->engine, &r); collected = true)
        TRY(keep_answer(&r, e));
    if (!worked && !collected && engine_active(d->engine) > 0)
        return ERR_SET(e, ERR_STATE, "the engine stands still with %zu jobs",
                       engine_active(d->engine));
    return 0;
}

static int answer_all(struct driver *d, struct err *e)
{
    const struct engine_counters before = engine_counters(d->engine);
    const int64_t began_us = clock_mono_us();
    do {
        TRY(feed(d, e));
        TRY(step(d, e));
    } while (d->next < d->jobs->n || group_length(d->window) > 0 ||
             engine_active(d->engine) > 0);
    d->half->wall_us = clock_mono_us() - began_us;
    const struct engine_counters after = engine_counters(d->engine);
    d->half->prefill_us = after.prefill_us - before.prefill_us;
    d->half->decode_us = after.decode_us - before.decode_us;
    return 0;
}

/* ------------------------------------------------------------------ figures of the process */

/* From here on the kernel counts the peak anew; where it may not, peaks only grow. */
static void reset_memory_peak(void)
{
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (!f)
        return;
    fputs("5\n", f);
    fclose(f);
}

static int64_t memory_peak_bytes(void)
{
    char line[256];
    int64_t kib = -1;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "VmHWM:", 6) == 0)
            kib = strtoll(line + 6, NULL, 10);
    if (f)
        fclose(f);
    return kib < 0 ? -1 : kib * 1024;
}

/* The steps with the most rows are those in which all that fits decodes. */
static int summarize_steps(struct driver *d, struct err *e)
{
    struct bench_half *half = d->half;
    half->decode_step_ms = NAN;
    if (engine_counters(d->engine).drafts.drafted > 0)
        return 0; /* steps with as many rows are not alike */
    for (size_t i = 0; i < d->n_steps; i++)
        if (d->steps[i].rows > half->decode_rows)
            half->decode_rows = d->steps[i].rows;
    if (d->n_steps == 0)
        return 0;
    int64_t *us = malloc(d->n_steps * sizeof us[0]);
    if (!us)
        return ERR_SET(e, ERR_NOMEM, "no memory for the steps' times");
    size_t n = 0;
    for (size_t i = 0; i < d->n_steps; i++)
        if (d->steps[i].rows == half->decode_rows)
            us[n++] = d->steps[i].us;
    percentile_sort(us, n);
    half->decode_step_ms = (double)percentile_of(us, n, 50) / 1000;
    free(us);
    return 0;
}

/* ------------------------------------------------------------------ opening and closing */

/* The threads' first work and the first touch of their memory are not measured. The prompt
 * lies under a salt of its own: no job finds it in the cache. */
static int warm_up(struct engine *eng, struct err *e)
{
    const int32_t prompt[] = {0};
    const struct seq_request req = {.prompt = prompt,
                                    .n_prompt = 1,
                                    .max_tokens = 1,
                                    .sample = sample_params_greedy(),
                                    .salt = "warm-up"};
    struct seq_result ignored;
    TRY(engine_submit(eng, &req, e));
    while (engine_active(eng) > 0) {
        bool worked;
        TRY(engine_step(eng, &worked, e));
        while (engine_collect(eng, &ignored))
            ;
    }
    return 0;
}

static int open_engine(struct driver *d, const struct model *m, const struct settings *s,
                       struct err *e)
{
    struct engine_options options;
    TRY(setup_engine_options(s, &options, e));
    options.batch = d->jobs->concurrency;
    options.kv_disk = NULL; /* what one half keeps would be the next one's gain */
    if (options.context == 0 && d->jobs->context < m->config.context)
        options.context = d->jobs->context;
    TRY(setup_open_drafts(s, m, &options, &d->drafts, e));
    TRY(engine_open(m, &options, &d->engine, e));
    setup_drop_drafts(&d->drafts);
    d->half->step_tokens = options.step_tokens;
    d->half->chunk_tokens = engine_plan(d->engine).chunk_tokens;
    d->half->kernels = engine_plan(d->engine).kernels;
    return warm_up(d->engine, e);
}

int bench_half_chunk(const struct model *m, const struct settings *s,
                     const struct bench_jobs *jobs, int64_t *chunk_tokens, struct err *e)
{
    struct bench_half half = {0};
    struct driver d = {.jobs = jobs, .half = &half};
    const int rc = open_engine(&d, m, s, e);
    *chunk_tokens = (int64_t)half.chunk_tokens;
    engine_close(d.engine);
    setup_close_drafts(&d.drafts);
    return rc;
}

static int open_window(struct driver *d, const struct settings *s, struct err *e)
{
    const struct group_limits limits = {
        .jobs_max = (size_t)s->window_jobs,
        .tokens_max = (size_t)s->window_tokens,
        .bytes_max = SIZE_MAX / 2,
        .open_max = (size_t)s->group_open,
        .max_wait_us = s->group_max_wait_s * 1000000,
        .enabled = s->grouping,
    };
    return group_open(&limits, &d->window, e);
}

static void close_driver(struct driver *d)
{
    if (d->window)
        while (group_take_any(d->window))
            ;
    group_close(d->window);
    for (size_t i = 0; d->engine && d->wanted && i < d->jobs->n; i++)
        engine_unwant(d->engine, d->wanted[i]);
    engine_close(d->engine);
    setup_close_drafts(&d->drafts);
    free(d->wanted);
    free(d->steps);
    hash_set_fini(&d->begun);
}

int bench_half_run(struct bench_half *half, const struct model *m, const struct settings *s,
                   const struct bench_jobs *jobs, struct err *e)
{
    *half = (struct bench_half){.n = jobs->n, .started_us = clock_wall_us()};
    struct driver d = {.jobs = jobs, .half = half};
    int rc = 0;
    half->answers = calloc(jobs->n, sizeof half->answers[0]);
    d.wanted = calloc(jobs->n, sizeof d.wanted[0]);
    if (!half->answers || !d.wanted)
        TRY_OUT(rc, ERR_SET(e, ERR_NOMEM, "no memory for the answers"));
    reset_memory_peak();
    TRY_OUT(rc, open_engine(&d, m, s, e));
    TRY_OUT(rc, open_window(&d, s, e));
    TRY_OUT(rc, answer_all(&d, e));
    TRY_OUT(rc, summarize_steps(&d, e));
    half->memory_peak_bytes = memory_peak_bytes();
out:
    close_driver(&d);
    if (rc != 0)
        bench_half_fini(half);
    return rc;
}

void bench_half_fini(struct bench_half *half)
{
    for (size_t i = 0; half->answers && i < half->n; i++)
        free(half->answers[i].out.text);
    free(half->answers);
    *half = (struct bench_half){0};
}

double bench_half_same(const struct bench_half *a, const struct bench_half *b)
{
    size_t same = 0;
    for (size_t i = 0; i < a->n; i++)
        same += experiment_is_same(&a->answers[i].out, &b->answers[i].out);
    return (double)same / (double)a->n;
}
