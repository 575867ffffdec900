/*
 * Lookup speculation: the drafters of an engine's sequences, and what they have in common: the
 * automatons of prompts, the table of token recycling, and what is known of how sure all of
 * them are.
 *
 *     drafters_begin     a sequence is submitted: its prompt is indexed, or begins as one does
 *                        that is, and so is the answer its request expects; all memory is taken
 *                        here
 *     drafters_proposer  a step asks for drafts: the sequence's new tokens are followed first
 *     drafters_end       it is finished: tokens nobody asked behind still teach
 *
 * A sequence keeps its drafter while it is preempted: its tokens stay the same. One with a salt
 * shares nothing with those of other salts but how sure sources are.
 *
 * Thread: the engine's.
 */
#ifndef SHEAF_DRAFTERS_H
#define SHEAF_DRAFTERS_H

#include "engine/draft.h"
#include "engine/seq.h"

struct drafters;

/* What all of it takes at most, for so many sequences at once. */
size_t drafters_bytes_max(size_t n_seqs, size_t n_vocab);

int drafters_open(size_t n_vocab, struct drafters **out, struct err *e);
/* Every sequence has left. Accepts NULL. */
void drafters_close(struct drafters *d);

/* req: what the sequence was opened from. ERR_NOMEM only. */
int drafters_begin(struct drafters *d, struct seq *seq, const struct seq_request *req,
                   struct err *e);
void drafters_end(struct seq *seq); /* one without a drafter is left alone */

struct draft_proposer drafters_proposer(struct drafters *d);

#endif
