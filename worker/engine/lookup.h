/*
 * Drafts by lookup: where the last tokens of a sequence stood before, in a document of its
 * prompt, in a text the user expects or in its own output, what followed there is proposed.
 *
 * How sure a proposal is follows from how long the match is (the drafted tokens before it
 * count: they are matched too where the proposal matters, so how far ahead it lies adds
 * nothing), and from how often the text goes on that way. Both make a cell of struct
 * spec_stats, and the cell says what became of such proposals. Because the tokens that were
 * drawn are known whether or not they were drafted, every committed token teaches, on plain
 * steps too: nothing has to be drafted to be learned.
 *
 * Thread: the engine's.
 */
#ifndef SHEAF_LOOKUP_H
#define SHEAF_LOOKUP_H

#include "engine/automaton.h"
#include "engine/draft_grow.h"
#include "engine/ngram.h"
#include "engine/spec_stats.h"

enum { LOOKUP_DEPTH_MAX = 32 };

void lookup_set_priors(struct spec_stats *stats);

/* Adds what follows the cursor's match; source DRAFT_LOOKUP or DRAFT_PREDICTION. */
void lookup_propose(const struct automaton *a, struct automaton_cursor cursor,
                    enum draft_source source, const struct draft_limits *limits,
                    const struct spec_stats *stats, struct draft *d);
/* The sequence got one token longer: counts what the cursor would have proposed, and advances
 * it. With stats NULL it only advances. */
void lookup_follow(const struct automaton *a, struct automaton_cursor *cursor,
                   enum draft_source source, int32_t token, struct spec_stats *stats);

/* The same over the sequence's own tokens, source DRAFT_SELF; following adds the token. */
void lookup_propose_self(const struct ngram *ix, const struct draft_limits *limits,
                         const struct spec_stats *stats, struct draft *d);
void lookup_follow_self(struct ngram *ix, int32_t token, struct spec_stats *stats);

#endif
