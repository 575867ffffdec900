#include "engine/draft_tally.h"

#include "base/size.h"
#include "engine/sched.h"

static void count(struct draft_tally *t, size_t source, size_t depth, bool is_accepted)
{
    const size_t at = size_min(depth, TALLY_DEPTHS) - 1;
    t->drafted[source][at]++;
    t->accepted[source][at] += is_accepted;
}

void draft_tally_nodes(struct draft_tally *t, const struct draft *draft, uint64_t accepted)
{
    double paths[DRAFT_NODES_MAX];
    t->steps++;
    for (size_t i = 0; i < draft->n_nodes; i++) {
        const struct draft_node *node = &draft->nodes[i];
        const bool is_accepted = accepted >> i & 1;
        paths[i] = (double)node->p * (node->parent == DRAFT_ROOT ? 1 : paths[node->parent]);
        t->expected += paths[i];
        count(t, TALLY_ALL, node->depth, is_accepted);
        for (size_t k = 0; k < DRAFT_SOURCES; k++)
            if (node->sources >> k & 1)
                count(t, k, node->depth, is_accepted);
    }
}

uint64_t draft_tally_sum(const uint32_t counts[TALLY_DEPTHS])
{
    uint64_t sum = 0;
    for (size_t i = 0; i < TALLY_DEPTHS; i++)
        sum += counts[i];
    return sum;
}

void draft_tally_times(const struct step_plan *plan, int64_t draft_us, int64_t verify_us,
                       double expected_us)
{
    size_t n_drafts = 0;
    for (size_t i = 0; i < plan->n_segments; i++)
        n_drafts += plan->segments[i].draft != NULL;
    for (size_t i = 0; i < plan->n_segments; i++) {
        const struct step_segment *segment = &plan->segments[i];
        if (!segment->draft)
            continue;
        struct draft_tally *t = &segment->seq->tally;
        const double share = (double)segment->n_rows / (double)plan->n_rows;
        t->draft_us += draft_us / (int64_t)n_drafts;
        t->verify_us += (int64_t)(share * (double)verify_us);
        t->expected_us += share * expected_us;
    }
}
