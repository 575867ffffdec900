/*
 * What the drafts of one sequence brought, by source and by depth, and what they took.
 *
 * A step's times are shared out by rows among the sequences that it verified drafts of; what it
 * took to ask for those drafts, in equal parts.
 */
#ifndef SHEAF_DRAFT_TALLY_H
#define SHEAF_DRAFT_TALLY_H

#include "engine/draft.h"

struct step_plan;

enum {
    TALLY_DEPTHS = 16,         /* the last stands for all that are deeper */
    TALLY_ALL = DRAFT_SOURCES, /* each node once, whoever named it */
    TALLY_SOURCES = TALLY_ALL + 1,
};

struct draft_tally {
    uint64_t steps;  /* that verified a draft of it */
    double expected; /* accepted nodes, by the p of the drafts */
    int64_t draft_us, verify_us;
    double expected_us;                            /* verify_us as it was expected to be */
    uint32_t drafted[TALLY_SOURCES][TALLY_DEPTHS]; /* depth 1 first */
    uint32_t accepted[TALLY_SOURCES][TALLY_DEPTHS];
};

/* accepted: a bit for each node. */
void draft_tally_nodes(struct draft_tally *t, const struct draft *draft, uint64_t accepted);
/* Of all depths. */
uint64_t draft_tally_sum(const uint32_t counts[TALLY_DEPTHS]);
/* The step that the plan was for. */
void draft_tally_times(const struct step_plan *plan, int64_t draft_us, int64_t verify_us,
                       double expected_us);

#endif
