/* A half as figures: counts, rates, quantiles of the jobs that are warm, cold, short or long.
 */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "report/percentile.h"

enum pick { PICK_ALL, PICK_COLD, PICK_WARM, PICK_SHORT, PICK_LONG };
enum metric { METRIC_TTFT, METRIC_TPOT, METRIC_E2E };

struct figures {
    const struct bench_half *half;
    size_t prompt_tokens_max;
    double yielded, yielding_steps; /* tokens behind each answer's first; steps of each */
    int64_t *samples;               /* [half->n] */
};

static bool is_picked(const struct figures *f, const struct bench_answer *a, enum pick pick)
{
    const bool is_long = 2 * a->n_prompt >= f->prompt_tokens_max;
    switch (pick) {
    case PICK_ALL: return true;
    case PICK_COLD: return !a->is_warm;
    case PICK_WARM: return a->is_warm;
    case PICK_SHORT: return !is_long;
    case PICK_LONG: return is_long;
    }
    return false;
}

static int64_t value_of(const struct bench_answer *a, enum metric metric)
{
    switch (metric) {
    case METRIC_TTFT: return a->ttft_us;
    case METRIC_TPOT: return a->tpot_us;
    case METRIC_E2E: return a->e2e_us;
    }
    return -1;
}

static struct quantiles quantiles_of(const struct figures *f, enum metric metric,
                                     enum pick pick)
{
    size_t n = 0;
    for (size_t i = 0; i < f->half->n; i++) {
        const struct bench_answer *a = &f->half->answers[i];
        if (a->out.text && is_picked(f, a, pick) && value_of(a, metric) >= 0)
            f->samples[n++] = value_of(a, metric);
    }
    return experiment_quantiles(f->samples, n);
}

static void fill_times(const struct figures *f, struct store_experiment *row)
{
    struct quantiles q;
#define FILL(name, metric, pick)                                                               \
    q = quantiles_of(f, metric, pick);                                                         \
    row->name##_p50_ms = q.p50;                                                                \
    row->name##_p95_ms = q.p95;                                                                \
    row->name##_p99_ms = q.p99
    FILL(ttft, METRIC_TTFT, PICK_ALL);
    FILL(ttft_cold, METRIC_TTFT, PICK_COLD);
    FILL(ttft_warm, METRIC_TTFT, PICK_WARM);
    FILL(tpot, METRIC_TPOT, PICK_ALL);
    FILL(tpot_cold, METRIC_TPOT, PICK_COLD);
    FILL(tpot_warm, METRIC_TPOT, PICK_WARM);
    FILL(ttft_short, METRIC_TTFT, PICK_SHORT);
    FILL(e2e_long, METRIC_E2E, PICK_LONG);
#undef FILL
}

static void fill_counts(struct figures *f, const struct bench_jobs *jobs,
                        struct store_experiment *row)
{
    size_t n = 0;
    for (size_t i = 0; i < f->half->n; i++) {
        const struct bench_answer *a = &f->half->answers[i];
        if (!a->out.text)
            continue;
        f->samples[n++] = (int64_t)a->n_prompt;
        row->prompt_tokens += (int64_t)a->n_prompt;
        row->cached_tokens += (int64_t)a->n_cached;
        row->completion_tokens += (int64_t)a->out.n_tokens;
        row->draft_tokens += (int64_t)a->n_drafted;
        row->accepted_tokens += (int64_t)a->n_accepted;
        f->yielded += (double)a->out.n_tokens - 1;
        f->yielding_steps += (double)a->n_yielding_steps;
    }
    percentile_sort(f->samples, n);
    row->jobs = (int64_t)n;
    row->refused = (int64_t)(jobs->refused + jobs->n - n);
    row->prompt_tokens_p50 = n ? percentile_of(f->samples, n, 50) : -1;
    row->prompt_tokens_max = n ? f->samples[n - 1] : -1;
    f->prompt_tokens_max = n ? (size_t)f->samples[n - 1] : 0;
}

static void fill_rates(const struct figures *f, struct store_experiment *row)
{
    const struct bench_half *half = f->half;
    const double drafted = (double)row->draft_tokens;
    const double prompt = (double)row->prompt_tokens;
    const double completion = (double)row->completion_tokens;
    row->wall_s = (double)half->wall_us / 1e6;
    row->prefill_s = (double)half->prefill_us / 1e6;
    row->decode_s = (double)half->decode_us / 1e6;
    row->acceptance = drafted > 0 ? (double)row->accepted_tokens / drafted : NAN;
    row->tokens_per_step = f->yielding_steps > 0 ? f->yielded / f->yielding_steps : NAN;
    row->decode_tok_s = half->decode_us > 0 ? f->yielded / row->decode_s : NAN;
    row->hit_ratio = prompt > 0 ? (double)row->cached_tokens / prompt : NAN;
    row->completion_tok_s = half->wall_us > 0 ? completion / row->wall_s : NAN;
    row->total_tok_s = half->wall_us > 0 ? (prompt + completion) / row->wall_s : NAN;
}

int bench_half_figures(const struct bench_half *half, const struct bench_jobs *jobs,
                       struct store_experiment *row, struct err *e)
{
    struct figures f = {.half = half, .samples = malloc(half->n * sizeof f.samples[0])};
    if (!f.samples)
        return ERR_SET(e, ERR_NOMEM, "no memory for the figures");
    row->prompt_tokens = row->cached_tokens = row->completion_tokens = 0;
    row->draft_tokens = row->accepted_tokens = 0;
    fill_counts(&f, jobs, row);
    fill_times(&f, row);
    fill_rates(&f, row);
    row->cores = sysconf(_SC_NPROCESSORS_ONLN);
    row->concurrency = (int64_t)jobs->concurrency;
    row->step_tokens = (int64_t)half->step_tokens;
    row->chunk_tokens = (int64_t)half->chunk_tokens;
    row->memory_peak_bytes = half->memory_peak_bytes;
    row->decode_rows = half->decode_rows ? (int64_t)half->decode_rows : -1;
    row->decode_step_ms = half->decode_step_ms;
    row->started_us = half->started_us;
    row->kernels = half->kernels;
    free(f.samples);
    return 0;
}
