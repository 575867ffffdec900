/* What comes back from the device, and what is done with whole pages. Staged in pinned memory:
 * the caller's own need not be. */
#include <string.h>

#include "device_int.cuh"

extern "C" {
#include "base/check.h"
}

static const char *const STEP_FAILED = "the step failed";
static const char *const PAGE_FAILED = "a KV page cannot be moved";

void device_fetch(device *d, void *to, const void *from, size_t bytes)
{
    copy_to_host(d->stream, to, from, bytes);
    d->counters.copies++;
    d->counters.bytes_to_host += bytes;
}

/* Rows of V logits that fit the stage: one wait for all of them, one copy for neighbours. */
static int read_stage(device *d, const int32_t *logits_rows, size_t n, float *out,
                      struct err *e)
{
    const size_t n_vocab = d->model.n_vocab;
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && logits_rows[end] == logits_rows[end - 1] + 1;)
            end++;
        device_fetch(d, d->rows + i * n_vocab, d->b.logits + (size_t)logits_rows[i] * n_vocab,
                     (end - i) * n_vocab * sizeof(float));
    }
    TRY(device_settle(d, STEP_FAILED, e));
    for (size_t i = 0; i < n; i++)
        memcpy(out + (size_t)logits_rows[i] * n_vocab, d->rows + i * n_vocab,
               n_vocab * sizeof(float));
    return 0;
}

int device_read_logits(device *d, const int32_t *logits_rows, size_t n, float *out,
                       struct err *e)
{
    for (size_t i = 0; i < n; i++)
        ASSERT((size_t)logits_rows[i] < d->n_logits &&
               (i == 0 || logits_rows[i] > logits_rows[i - 1]));
    for (size_t i = 0; i < n; i += d->n_rows_staged) {
        const size_t n_left = n - i;
        const size_t n_now = n_left < d->n_rows_staged ? n_left : d->n_rows_staged;
        TRY(read_stage(d, logits_rows + i, n_now, out, e));
    }
    return 0;
}

int device_read_hidden(device *d, size_t logits_row, float *out, struct err *e)
{
    const size_t n = d->model.dim;
    ASSERT(logits_row < d->n_logits);
    device_fetch(d, d->rows, d->b.last_f32 + logits_row * n, n * sizeof(float));
    TRY(device_settle(d, STEP_FAILED, e));
    memcpy(out, d->rows, n * sizeof(float));
    return 0;
}

/* What was copied for that step and those before has arrived with it. */
int device_read_best(device *d, size_t n_later, int32_t *out, struct err *e)
{
    ASSERT(n_later < RESULTS);
    const result *r = &d->results[(d->last_result + RESULTS - (int)n_later) % RESULTS];
    event_wait(r->is_there);
    const int n_steps_later = (int)(d->counters.steps - r->step);
    if (d->meta.n_in_flight > n_steps_later)
        d->meta.n_in_flight = n_steps_later;
    TRY(device_failure(STEP_FAILED, e));
    memcpy(out, r->best, r->n_logits * sizeof out[0]);
    return 0;
}

int device_read_candidates(device *d, device_candidates *out, struct err *e)
{
    TRY(device_settle(d, STEP_FAILED, e));
    memcpy(out, d->candidates, d->n_logits * sizeof out[0]);
    return 0;
}

int device_wait(device *d, struct err *e)
{
    return device_settle(d, STEP_FAILED, e);
}

/* ------------------------------------------------------------------ pages */

int device_copy_page(device *d, int32_t to, int32_t from, struct err *e)
{
    copy_page(d->stream, d->kv, to, from);
    return device_failure(PAGE_FAILED, e);
}

int device_move_token(device *d, int32_t to, size_t to_slot, int32_t from, size_t from_slot,
                      struct err *e)
{
    move_token(d->stream, d->kv, to, (int)to_slot, from, (int)from_slot);
    return device_failure(PAGE_FAILED, e);
}

/* The kernel writes to pinned memory itself: there is no copy after it. */
int device_read_page(device *d, int32_t page, void *out, struct err *e)
{
    gather_page(d->stream, d->kv, page, d->page);
    TRY(device_settle(d, PAGE_FAILED, e));
    memcpy(out, d->page, d->plan.page);
    return 0;
}

int device_write_page(device *d, int32_t page, const void *in, struct err *e)
{
    memcpy(d->page, in, d->plan.page);
    scatter_page(d->stream, d->kv, page, d->page);
    return device_settle(d, PAGE_FAILED, e);
}
