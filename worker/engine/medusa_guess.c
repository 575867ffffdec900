/* What heads guess as nodes of a draft, and how often such guesses come true. */
#include <assert.h>

#include "base/check.h"
#include "engine/medusa.h"

enum { CELLS = HEADS_MAX * MEDUSA_RANKS };
static_assert(CELLS * 2 <= STATS_CELLS, "a head's rank has two bins of shares at least");

/* How often the token of one of the best few of a head is right, when a file says nothing:
 * somewhat below what was published of heads of Vicuna 7B. */
static const double RIGHT[HEADS_MAX] = {0.6, 0.45, 0.3, 0.25, 0.2, 0.15, 0.15, 0.15};
static const double PRIOR_MIN = 0.005, PRIOR_MAX = 0.95;

static size_t bins_of(size_t n_heads)
{
    return STATS_CELLS / (n_heads * MEDUSA_RANKS);
}

/* A rank's share is 1 / (rank + 1) at most; bins are equal parts of that. */
static unsigned cell_of(size_t n_heads, size_t head, size_t rank, float share)
{
    const size_t n_bins = bins_of(n_heads);
    const float part = share * (float)(rank + 1) * (float)n_bins;
    size_t bin = part > 0 ? (size_t)part : 0; /* a share that is no number is the least */
    if (bin >= n_bins)
        bin = n_bins - 1;
    return (unsigned)((head * MEDUSA_RANKS + rank) * n_bins + bin);
}

static double right_of(const struct head *head, double otherwise)
{
    double right = 0;
    for (size_t r = 0; r < MEDUSA_RANKS; r++)
        right += head->accuracies[r];
    return right > 0 ? right : otherwise;
}

/* A guess is right as often as one of the few is, times its share of them. */
void medusa_set_priors(const struct heads *h, struct spec_stats *stats)
{
    static_assert((int)MEDUSA_RANKS <= (int)HEADS_RANKS,
                  "a file may state each rank's accuracy");
    const size_t n_bins = bins_of(h->n_heads);
    for (size_t i = 0; i < h->n_heads; i++) {
        const double right = right_of(&h->heads[i], RIGHT[i]);
        for (size_t r = 0; r < MEDUSA_RANKS; r++)
            for (size_t bin = 0; bin < n_bins; bin++) {
                const double share = ((double)bin + 0.5) / (double)(n_bins * (r + 1));
                const unsigned cell = cell_of(h->n_heads, i, r, (float)share);
                double prior = right * share;
                prior = prior < PRIOR_MIN ? PRIOR_MIN : prior;
                prior = prior > PRIOR_MAX ? PRIOR_MAX : prior;
                spec_stats_set_prior(stats, DRAFT_MEDUSA, cell, prior);
            }
    }
}

struct growing {
    const struct medusa_guesses *g;
    const struct spec_stats *stats;
};

/* What a head says does not depend on what stands before: all places are one. */
static size_t grow_children(const void *context, uint64_t place, unsigned depth,
                            struct draft_child out[DRAFT_CHILDREN_MAX])
{
    (void)place;
    const struct growing *growing = context;
    const struct medusa_guesses *g = growing->g;
    const size_t head = depth - 1;
    if (head >= g->n_heads)
        return 0;
    size_t n = 0;
    for (size_t r = 0; r < MEDUSA_RANKS && g->guesses[head][r].token != DRAFT_NONE; r++) {
        const struct medusa_guess *guess = &g->guesses[head][r];
        const unsigned cell = cell_of(g->n_heads, head, r, guess->share);
        out[n++] = (struct draft_child){.token = guess->token,
                                        .p = spec_stats_p(growing->stats, DRAFT_MEDUSA, cell)};
    }
    return n;
}

void medusa_propose(const struct medusa_guesses *g, const struct draft_limits *limits,
                    const struct spec_stats *stats, struct draft *d)
{
    const struct growing context = {g, stats};
    const struct draft_grower grower = {DRAFT_MEDUSA, grow_children, &context};
    draft_grow(d, &grower, 0, limits);
}

void medusa_learn(const struct medusa_guesses *g, const int32_t *tokens, size_t n,
                  struct spec_stats *stats)
{
    for (size_t i = 0; i < g->n_heads && i < n; i++) {
        bool is_hit = false;
        for (size_t r = 0; r < MEDUSA_RANKS && g->guesses[i][r].token != DRAFT_NONE; r++) {
            const struct medusa_guess *guess = &g->guesses[i][r];
            const bool is_right = guess->token == tokens[i];
            spec_stats_offer(stats, DRAFT_MEDUSA, cell_of(g->n_heads, i, r, guess->share),
                             is_right);
            is_hit = is_hit || is_right;
        }
        if (!is_hit)
            return;
    }
}
