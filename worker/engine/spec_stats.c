#include "engine/spec_stats.h"

#include "base/check.h"

/* 2 to the power of -1 / STATS_HALF_LIFE. */
static const double FADING = 0.9996534864594093;
static const double P_MIN = 0.001;

void spec_stats_init(struct spec_stats *s)
{
    *s = (struct spec_stats){0};
    for (unsigned source = 0; source < DRAFT_SOURCES; source++)
        for (unsigned cell = 0; cell < STATS_CELLS; cell++)
            s->cells[source][cell].prior = 0.25;
}

void spec_stats_set_prior(struct spec_stats *s, enum draft_source source, unsigned cell,
                          double prior)
{
    ASSERT(source < DRAFT_SOURCES && cell < STATS_CELLS);
    ASSERT(prior > 0 && prior < 1);
    s->cells[source][cell].prior = prior;
}

void spec_stats_offer(struct spec_stats *s, enum draft_source source, unsigned cell,
                      bool is_hit)
{
    ASSERT(source < DRAFT_SOURCES && cell < STATS_CELLS);
    struct spec_cell *c = &s->cells[source][cell];
    c->offers = c->offers * FADING + 1;
    c->hits = c->hits * FADING + (is_hit ? 1 : 0);
}

double spec_stats_p(const struct spec_stats *s, enum draft_source source, unsigned cell)
{
    ASSERT(source < DRAFT_SOURCES && cell < STATS_CELLS);
    const struct spec_cell *c = &s->cells[source][cell];
    const double p =
        (c->hits + STATS_PRIOR_OFFERS * c->prior) / (c->offers + STATS_PRIOR_OFFERS);
    if (p < P_MIN)
        return P_MIN;
    return p > 1 - P_MIN ? 1 - P_MIN : p;
}
