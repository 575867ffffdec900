/*
 * How often drafted tokens of a kind came true. A kind is a cell of a source: a length of
 * match, a rank, a head; each source numbers its own. An offer is a token that was, or would
 * have been, proposed behind tokens that the model did draw; it is a hit when the model then
 * drew it. What happened fades: after STATS_HALF_LIFE further offers of its cell an offer
 * counts half. Cells nobody has seen yet answer their prior.
 *
 * Thread: the engine's.
 */
#ifndef SHEAF_SPEC_STATS_H
#define SHEAF_SPEC_STATS_H

#include <stdbool.h>

#include "engine/draft.h"

enum {
    STATS_CELLS = 64, /* of a source */
    STATS_HALF_LIFE = 2000,
    STATS_PRIOR_OFFERS = 16, /* a prior counts as much as so many offers, for good */
};

struct spec_stats {
    struct spec_cell {
        double prior;
        double offers, hits; /* faded */
    } cells[DRAFT_SOURCES][STATS_CELLS];
};

/* Every prior is 1/4 until its source sets it. */
void spec_stats_init(struct spec_stats *s);
void spec_stats_set_prior(struct spec_stats *s, enum draft_source source, unsigned cell,
                          double prior);
void spec_stats_offer(struct spec_stats *s, enum draft_source source, unsigned cell,
                      bool is_hit);
/* That the next offer is a hit; above 0 and below 1. */
double spec_stats_p(const struct spec_stats *s, enum draft_source source, unsigned cell);

#endif
