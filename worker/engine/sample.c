#include "engine/sample.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/rng.h"
#include "base/size.h"
#include "kernels.h"

struct candidate {
    float logit; /* see struct scale */
    int32_t id;
};

/* What makes a candidate's weight of its logit: exp((logit - max) / temperature). */
struct scale {
    float max, temperature;
};
/* It has been applied: every bit stays as it is. */
static const struct scale APPLIED = {.max = 0, .temperature = 1};

struct sampler {
    size_t n_vocab;
    struct candidate *candidates; /* [V] */
    float *weights;               /* [V] exp(logit), by candidate */
    uint32_t *counts;             /* [V] occurrences; all zero between calls */
    uint8_t *seen;                /* [V] occurs in prompt or output; all zero between calls */
};

struct sample_params sample_params_greedy(void)
{
    return (struct sample_params){.top_p = 1, .repetition_penalty = 1};
}

int sampler_open(size_t n_vocab, struct sampler **out, struct err *e)
{
    struct sampler *s = calloc(1, sizeof *s);
    if (!s)
        return ERR_SET(e, ERR_NOMEM, "no memory for a sampler");
    s->n_vocab = n_vocab;
    s->candidates = calloc(n_vocab, sizeof s->candidates[0]);
    s->weights = calloc(n_vocab, sizeof s->weights[0]);
    s->counts = calloc(n_vocab, sizeof s->counts[0]);
    s->seen = calloc(n_vocab, sizeof s->seen[0]);
    if (!s->candidates || !s->weights || !s->counts || !s->seen) {
        sampler_close(s);
        return ERR_SET(e, ERR_NOMEM, "no memory for a sampler of %zu tokens", n_vocab);
    }
    *out = s;
    return 0;
}

void sampler_close(struct sampler *s)
{
    if (!s)
        return;
    free(s->candidates);
    free(s->weights);
    free(s->counts);
    free(s->seen);
    free(s);
}

static void add_bias(const struct sample_params *p, size_t n_vocab, float *logits)
{
    for (size_t i = 0; i < p->n_bias; i++) {
        ASSERT(p->bias[i].id >= 0 && (size_t)p->bias[i].id < n_vocab);
        logits[p->bias[i].id] += p->bias[i].bias;
    }
}

/* Each distinct token of the history is visited once: at its first mark. */
static void repel_repetition(struct sampler *s, float penalty, float *logits,
                             const int32_t *history, size_t n_history)
{
    for (size_t i = 0; i < n_history; i++) {
        const int32_t id = history[i];
        if (s->seen[id])
            continue;
        s->seen[id] = 1;
        logits[id] = logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty;
    }
    for (size_t i = 0; i < n_history; i++)
        s->seen[history[i]] = 0;
}

static void repel_output(struct sampler *s, const struct sample_params *p, float *logits,
                         const int32_t *output, size_t n_output)
{
    for (size_t i = 0; i < n_output; i++)
        s->counts[output[i]]++;
    for (size_t i = 0; i < n_output; i++) {
        const int32_t id = output[i];
        if (s->counts[id] == 0)
            continue;
        logits[id] -= p->frequency_penalty * (float)s->counts[id] + p->presence_penalty;
        s->counts[id] = 0;
    }
}

static size_t argmax(const float *logits, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (logits[i] > logits[best] || isnan(logits[best]))
            best = i;
    return best;
}

/* Higher logit first, lower id among equals: a total order, so any sort gives one result. */
static int compare_candidates(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Moves the n_best best candidates to the front, unsorted (Hoare's selection). */
static void select_best(struct candidate *c, size_t n, size_t n_best)
{
    size_t low = 0, high = n - 1;
    while (low < high) {
        const struct candidate pivot = c[low + (high - low) / 2];
        size_t i = low, j = high;
        while (i <= j) {
            while (compare_candidates(&c[i], &pivot) < 0)
                i++;
            while (compare_candidates(&pivot, &c[j]) < 0)
                j--;
            if (i <= j) {
                const struct candidate swapped = c[i];
                c[i++] = c[j];
                c[j] = swapped;
                if (j-- == 0)
                    break;
            }
        }
        if (n_best < j + 1) /* j + 1 is 0 when everything is on the right */
            high = j;
        else if (n_best > i)
            low = i;
        else
            return;
    }
}

/*
 * Gathers every token that is not NaN or -inf. The greatest logit is taken off before the
 * division: however small the temperature, the best candidate stays at 0 and none overflows.
 */
static size_t gather(struct sampler *s, float temperature, const float *logits, float max)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_vocab; i++)
        if (logits[i] > -INFINITY)
            s->candidates[n++] =
                (struct candidate){.logit = (logits[i] - max) / temperature, .id = (int32_t)i};
    return n;
}

/* How many of the sorted candidates are left by top-p and min-p, at least one. */
static size_t cut_tail(const float *weights, size_t n, double total, float top_p, float min_p)
{
    double cumulative = 0;
    size_t kept = 0;
    while (kept < n) {
        if (kept > 0 && weights[kept] < min_p * weights[0])
            break;
        cumulative += weights[kept++];
        if (cumulative >= (double)top_p * total)
            break;
    }
    return kept;
}

static float weight_of(const struct scale *scale, float logit)
{
    return kernels_exp((logit - scale->max) / scale->temperature);
}

static double sum_weights(const struct sampler *s, size_t n)
{
    double total = 0;
    for (size_t i = 0; i < n; i++)
        total += kernels_exp(s->candidates[i].logit);
    return total;
}

/* Sorting a whole vocabulary takes longer than a small model's step, so only as many of the
 * best are sorted as are looked at: so many at first, then times GROWTH. */
enum { SORTED_FIRST = 64, GROWTH = 8 };

static void sort_best(struct sampler *s, const struct scale *scale, size_t n, size_t n_sorted)
{
    if (n_sorted < n)
        select_best(s->candidates, n, n_sorted);
    qsort(s->candidates, n_sorted, sizeof s->candidates[0], compare_candidates);
    for (size_t i = 0; i < n_sorted; i++)
        s->weights[i] = weight_of(scale, s->candidates[i].logit);
}

/*
 * Sorts as many of the best candidates as top-p and min-p can reach. total is over all n, so
 * the cut does not depend on how many were sorted.
 */
static size_t sort_and_cut(struct sampler *s, const struct sample_params *p,
                           const struct scale *scale, size_t n, double total)
{
    for (size_t n_sorted = SORTED_FIRST;; n_sorted *= GROWTH) {
        if (n_sorted > n)
            n_sorted = n;
        sort_best(s, scale, n, n_sorted);
        const size_t kept = cut_tail(s->weights, n_sorted, total, p->top_p, p->min_p);
        if (kept < n_sorted || n_sorted == n)
            return kept;
    }
}

/* Which of the first n candidates uses up what is left, or n. */
static size_t walk(const struct sampler *s, size_t n, double left)
{
    size_t i = 0;
    while (i < n && (left -= s->weights[i]) >= 0)
        i++;
    return i;
}

static double sum_of_best(const struct sampler *s, size_t n)
{
    double total = 0;
    for (size_t i = 0; i < n; i++)
        total += s->weights[i];
    return total;
}

static int32_t draw(const struct sampler *s, size_t n, double uniform)
{
    return s->candidates[size_min(walk(s, n, uniform * sum_of_best(s, n)), n - 1)].id;
}

/* From all n, none of which is cut off: the best that the draw goes over are sorted. */
static int32_t draw_from_all(struct sampler *s, const struct scale *scale, size_t n,
                             double total, double uniform)
{
    for (size_t n_sorted = SORTED_FIRST;; n_sorted *= GROWTH) {
        if (n_sorted > n)
            n_sorted = n;
        sort_best(s, scale, n, n_sorted);
        const size_t drawn = walk(s, n_sorted, uniform * total);
        if (drawn < n_sorted || n_sorted == n)
            return s->candidates[size_min(drawn, n - 1)].id;
    }
}

static bool cuts_tail(const struct sample_params *p)
{
    return !(p->top_p >= 1 && p->min_p <= 0);
}

int32_t sample_token(struct sampler *s, const struct sample_params *p, float *logits,
                     const int32_t *history, size_t n_prompt, size_t n_history)
{
    add_bias(p, s->n_vocab, logits);
    if (p->repetition_penalty != 1)
        repel_repetition(s, p->repetition_penalty, logits, history, n_history);
    if (p->presence_penalty != 0 || p->frequency_penalty != 0)
        repel_output(s, p, logits, history + n_prompt, n_history - n_prompt);
    const size_t best = argmax(logits, s->n_vocab);
    if (p->temperature == 0 || !isfinite(logits[best]))
        return (int32_t)best;
    size_t n = gather(s, p->temperature, logits, logits[best]);
    if (p->top_k > 0 && (size_t)p->top_k < n) {
        select_best(s->candidates, n, (size_t)p->top_k);
        n = (size_t)p->top_k;
    }
    const double uniform = rng_uniform(p->seed, p->stream, n_history);
    const double total = sum_weights(s, n);
    if (!cuts_tail(p))
        return draw_from_all(s, &APPLIED, n, total, uniform);
    return draw(s, sort_and_cut(s, p, &APPLIED, n, total), uniform);
}

/* ------------------------------------------------------------------ with a device */

bool sample_is_plain(const struct sample_params *p)
{
    return p->n_bias == 0 && p->repetition_penalty == 1 && p->presence_penalty == 0 &&
           p->frequency_penalty == 0;
}

bool sample_takes_candidates(const struct sample_params *p)
{
    return sample_is_plain(p) && p->temperature > 0 && p->top_k <= DEVICE_CANDIDATES;
}

/* How many there are; a place in the vocabulary that there is not ends them. */
static size_t take_candidates(struct sampler *s, const struct device_candidates *found,
                              const struct scale *scale)
{
    size_t n = 0;
    for (; n < DEVICE_CANDIDATES && found->best[n].id >= 0 &&
           (size_t)found->best[n].id < s->n_vocab;
         n++) {
        s->candidates[n] =
            (struct candidate){.logit = found->best[n].logit, .id = found->best[n].id};
        s->weights[n] = weight_of(scale, found->best[n].logit);
    }
    return n;
}

/* From the n best, behind which there are others unless is_all; or false: it would be one of
 * those. */
static bool draw_from_best(const struct sampler *s, const struct sample_params *p, size_t n,
                           bool is_all, double total, double uniform, int32_t *token)
{
    if (cuts_tail(p)) {
        const size_t kept = cut_tail(s->weights, n, total, p->top_p, p->min_p);
        if (kept == n && !is_all)
            return false;
        *token = draw(s, kept, uniform);
        return true;
    }
    const size_t drawn = walk(s, n, uniform * total);
    if (drawn == n && !is_all)
        return false;
    *token = s->candidates[size_min(drawn, n - 1)].id;
    return true;
}

/* Ordered by the logits themselves, as a device does: where the temperature makes two of them
 * one the order is another than that of scaled ones. */
static int32_t draw_from_row(struct sampler *s, const struct sample_params *p,
                             const struct scale *scale, const float *logits, double total,
                             double uniform)
{
    const size_t n = gather(s, APPLIED.temperature, logits, APPLIED.max);
    if (n == 0)
        return 0;
    if (!cuts_tail(p))
        return draw_from_all(s, scale, n, total, uniform);
    return draw(s, sort_and_cut(s, p, scale, n, total), uniform);
}

bool sample_candidate(struct sampler *s, const struct sample_params *p,
                      const struct device_candidates *found, const float *logits,
                      size_t position, int32_t *token)
{
    ASSERT(sample_takes_candidates(p));
    const struct scale scale = {.max = found->best[0].logit, .temperature = p->temperature};
    size_t n = take_candidates(s, found, &scale);
    *token = n > 0 ? s->candidates[0].id : 0;
    if (n == 0 || !isfinite(scale.max))
        return true;
    bool is_all = n < DEVICE_CANDIDATES;
    double total = found->total;
    if (p->top_k > 0 && (size_t)p->top_k <= n) {
        n = (size_t)p->top_k;
        is_all = true;
        total = sum_of_best(s, n);
    }
    const double uniform = rng_uniform(p->seed, p->stream, position);
    if (draw_from_best(s, p, n, is_all, total, uniform, token))
        return true;
    if (logits)
        *token = draw_from_row(s, p, &scale, logits, total, uniform);
    return logits != NULL;
}
