#include "engine/spec_budget.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/size.h"

/* No node is surer: what the model will draw is never known. */
static const double SURE = 0.98;
/* Expected and accepted tokens fade by this a step; a prior of as many right ones stays. */
static const double FADING = 0.999;
static const double PRIOR_TOKENS = 20;
static const double TRUST_MIN = 0.25, TRUST_MAX = 1.25;
/* Steps with drafts between two without: twice as many each time. */
enum { CONTROL_STEPS_MIN = 8, CONTROL_STEPS_MAX = 256 };

/* One sequence's nodes, most valuable first; a node never stands before its parent, whose value
 * is not less. */
struct ranked {
    size_t n;      /* that may be taken */
    size_t n_seen; /* of them, by the search */
    size_t n_taken;
    uint8_t nodes[DRAFT_NODES_MAX];
    double values[DRAFT_NODES_MAX]; /* by rank; corrected */
    double paths[DRAFT_NODES_MAX];  /* by node: that it and all before it are drawn */
};

struct spec_budget {
    struct spec_budget_options options;
    struct ranked *ranked; /* [n_seqs_max] */
    uint32_t *heap; /* [n_seqs_max] sequences with nodes left, the best next node on top */
    size_t n_heap;
    uint32_t *picks; /* [n_seqs_max * DRAFT_NODES_MAX] whose node was seen, in order */
    bool is_on;
    bool may_explore; /* in this step */
    double credit_us; /* for exploring */
    size_t steps_unexplored;
    size_t steps_uncontrolled, control_steps;
    size_t turn;               /* of the sequence to explore next */
    double expected_now;       /* of the drafts last cut, uncorrected */
    double expected, accepted; /* faded */
    struct spec_budget_counters counters;
};

struct spec_budget_options spec_budget_defaults(size_t n_seqs_max)
{
    return (struct spec_budget_options){.n_seqs_max = n_seqs_max,
                                        .gain_enter = 1.02,
                                        .gain_stay = 1.0,
                                        .explore_share = 0.005,
                                        .explore_steps = 48};
}

int spec_budget_open(const struct spec_budget_options *options, struct spec_budget **out,
                     struct err *e)
{
    ASSERT(options->n_seqs_max > 0);
    ASSERT(options->gain_stay >= 1 && options->gain_enter >= options->gain_stay);
    *out = NULL;
    struct spec_budget *b = calloc(1, sizeof *b);
    if (!b)
        return ERR_SET(e, ERR_NOMEM, "no memory for the budget of drafts");
    b->options = *options;
    b->control_steps = CONTROL_STEPS_MIN;
    b->ranked = calloc(options->n_seqs_max, sizeof b->ranked[0]);
    b->heap = calloc(options->n_seqs_max, sizeof b->heap[0]);
    b->picks = calloc(options->n_seqs_max * DRAFT_NODES_MAX, sizeof b->picks[0]);
    if (!b->ranked || !b->heap || !b->picks) {
        spec_budget_close(b);
        return ERR_SET(e, ERR_NOMEM, "no memory for the drafts of %zu sequences",
                       options->n_seqs_max);
    }
    *out = b;
    return 0;
}

void spec_budget_close(struct spec_budget *b)
{
    if (!b)
        return;
    free(b->ranked);
    free(b->heap);
    free(b->picks);
    free(b);
}

struct spec_budget_counters spec_budget_counters(const struct spec_budget *b)
{
    return b->counters;
}

/* ---- the nodes of all sequences in one order -------------------------------------------- */

static void rank(struct ranked *r, const struct spec_seq *seq, double trust)
{
    const struct draft *d = seq->draft;
    double *paths = r->paths;
    for (size_t i = 0; i < d->n_nodes; i++) {
        const struct draft_node *node = &d->nodes[i];
        const double before = node->parent == DRAFT_ROOT ? 1 : paths[node->parent];
        paths[i] = before * (double)node->p;
        size_t k = i;
        for (; k > 0 && paths[r->nodes[k - 1]] < paths[i]; k--)
            r->nodes[k] = r->nodes[k - 1];
        r->nodes[k] = (uint8_t)i;
    }
    r->n = size_min(d->n_nodes, seq->n_nodes_max);
    r->n_seen = r->n_taken = 0;
    for (size_t k = 0; k < r->n; k++) {
        const double corrected = paths[r->nodes[k]] * trust;
        r->values[k] = corrected < SURE ? corrected : SURE;
    }
}

static double next_value(const struct spec_budget *b, uint32_t seq)
{
    const struct ranked *r = &b->ranked[seq];
    return r->values[r->n_seen];
}

/* Of equally good sequences the first, so that a choice is the same on every machine. */
static bool goes_before(const struct spec_budget *b, uint32_t x, uint32_t y)
{
    const double vx = next_value(b, x), vy = next_value(b, y);
    return vx > vy || (vx == vy && x < y);
}

static void sift_down(struct spec_budget *b, size_t i)
{
    for (;;) {
        size_t best = i;
        for (size_t child = 2 * i + 1; child <= 2 * i + 2 && child < b->n_heap; child++)
            if (goes_before(b, b->heap[child], b->heap[best]))
                best = child;
        if (best == i)
            return;
        const uint32_t swapped = b->heap[i];
        b->heap[i] = b->heap[best];
        b->heap[best] = swapped;
        i = best;
    }
}

static void fill_heap(struct spec_budget *b, size_t n_seqs)
{
    b->n_heap = 0;
    for (size_t i = 0; i < n_seqs; i++)
        if (b->ranked[i].n > 0)
            b->heap[b->n_heap++] = (uint32_t)i;
    for (size_t i = b->n_heap / 2; i-- > 0;)
        sift_down(b, i);
}

/* The sequence whose next node is the most valuable of all; the node counts as seen. */
static uint32_t pop(struct spec_budget *b, double *value)
{
    const uint32_t seq = b->heap[0];
    *value = next_value(b, seq);
    struct ranked *r = &b->ranked[seq];
    if (++r->n_seen == r->n)
        b->heap[0] = b->heap[--b->n_heap];
    sift_down(b, 0);
    return seq;
}

/* ---- the choice ------------------------------------------------------------------------- */

static double rate_without(const struct spec_step *step)
{
    return step->n_tokens / (step->us_more + spec_time_us(step->time, step->n_rows));
}

static size_t rows_left(const struct spec_step *step)
{
    return step->n_rows_max > step->n_rows ? step->n_rows_max - step->n_rows : 0;
}

/* How many of the nodes to take, in their order; *rate is what that gives. */
static size_t search(struct spec_budget *b, const struct spec_step *step, double *rate)
{
    const size_t n_max = rows_left(step);
    double tokens = step->n_tokens;
    size_t n_best = 0;
    *rate = rate_without(step);
    for (size_t n = 0; n < n_max && b->n_heap > 0; n++) {
        /* Later nodes are not worth more than the next: can any number of them help? */
        const double next = next_value(b, b->heap[0]);
        if (spec_time_best_rate(step->time, step->us_more, tokens, step->n_rows + n, next,
                                n_max - n) <= *rate)
            break;
        double value;
        b->picks[n] = pop(b, &value);
        tokens += value;
        const double own =
            tokens / (step->us_more + spec_time_us(step->time, step->n_rows + n + 1));
        if (own > *rate) {
            *rate = own;
            n_best = n + 1;
        }
    }
    return n_best;
}

static double trust_of(const struct spec_budget *b)
{
    const double trust = (b->accepted + PRIOR_TOKENS) / (b->expected + PRIOR_TOKENS);
    if (trust < TRUST_MIN)
        return TRUST_MIN;
    return trust > TRUST_MAX ? TRUST_MAX : trust;
}

/* One node, of the sequence whose turn it is. */
static size_t explore(struct spec_budget *b, size_t n_seqs)
{
    for (size_t i = 0; i < n_seqs; i++) {
        struct ranked *r = &b->ranked[(b->turn + i) % n_seqs];
        if (r->n == 0)
            continue;
        r->n_taken = 1;
        b->turn = (b->turn + i + 1) % n_seqs;
        b->credit_us = 0;
        b->steps_unexplored = 0;
        b->counters.steps_explored++;
        return 1;
    }
    return 0;
}

static void cut(struct spec_budget *b, const struct spec_seq *seqs, size_t n_seqs)
{
    b->expected_now = 0;
    for (size_t i = 0; i < n_seqs; i++) {
        const struct ranked *r = &b->ranked[i];
        struct draft *d = seqs[i].draft;
        uint64_t kept = 0;
        for (size_t k = 0; k < r->n_taken; k++)
            kept |= UINT64_C(1) << r->nodes[k];
        for (size_t k = 0; k < d->n_nodes; k++)
            if (kept >> k & 1)
                b->expected_now += r->paths[k];
            else
                d->nodes[k].p = 0;
        draft_order(d);
    }
}

static bool is_control(struct spec_budget *b)
{
    if (!b->is_on || b->steps_uncontrolled < b->control_steps)
        return false;
    b->steps_uncontrolled = 0;
    b->control_steps = size_min(2 * b->control_steps, CONTROL_STEPS_MAX);
    b->counters.steps_control++;
    return true;
}

bool spec_budget_wants(struct spec_budget *b, const struct spec_step *step)
{
    ASSERT(step->n_seqs <= b->options.n_seqs_max && step->n_seqs <= step->n_rows);
    const double us = step->us_more + spec_time_us(step->time, step->n_rows);
    b->counters.steps++;
    b->credit_us += b->options.explore_share * us;
    b->steps_unexplored++;
    b->expected_now = 0;
    if (is_control(b))
        return false;
    const size_t k_max = size_min(rows_left(step), step->n_seqs * DRAFT_NODES_MAX);
    const double cost_us =
        spec_time_us(step->time, step->n_rows + 1) - spec_time_us(step->time, step->n_rows);
    b->may_explore = k_max > 0 && b->options.explore_share > 0 && b->credit_us >= cost_us &&
                     b->steps_unexplored * step->n_seqs >= b->options.explore_steps;
    const double best = spec_time_best_rate(step->time, step->us_more, step->n_tokens,
                                            step->n_rows, SURE, k_max);
    const double gain = b->is_on ? b->options.gain_stay : b->options.gain_enter;
    if (b->may_explore || (k_max > 0 && best > gain * rate_without(step)))
        return true;
    b->is_on = false;
    b->counters.steps_unasked++;
    return false;
}

size_t spec_budget_choose(struct spec_budget *b, const struct spec_step *step,
                          const struct spec_seq *seqs)
{
    const double trust = trust_of(b);
    for (size_t i = 0; i < step->n_seqs; i++)
        rank(&b->ranked[i], &seqs[i], trust);
    fill_heap(b, step->n_seqs);
    double rate;
    size_t n = search(b, step, &rate);
    const double gain = b->is_on ? b->options.gain_stay : b->options.gain_enter;
    if (rate < gain * rate_without(step))
        n = 0;
    for (size_t i = 0; i < n; i++)
        b->ranked[b->picks[i]].n_taken++;
    b->is_on = n > 0;
    b->steps_uncontrolled = b->is_on ? b->steps_uncontrolled + 1 : 0;
    if (b->is_on)
        b->counters.steps_on++;
    else if (b->may_explore)
        n = explore(b, step->n_seqs);
    cut(b, seqs, step->n_seqs);
    b->counters.nodes += n;
    b->counters.expected += b->expected_now;
    return n;
}

void spec_budget_observe(struct spec_budget *b, size_t n_accepted)
{
    b->counters.accepted += n_accepted;
    if (b->expected_now == 0)
        return;
    b->expected = b->expected * FADING + b->expected_now;
    b->accepted = b->accepted * FADING + (double)n_accepted;
    b->expected_now = 0;
}
