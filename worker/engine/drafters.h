/*
 * Speculation's sources, of all sequences of an engine, and what these have in common: the
 * automatons of prompts, the table of token recycling, and what is known of how sure all of
 * them are.
 *
 *     drafters_begin     a sequence is submitted: its prompt is indexed, or begins as one does
 *                        that is, and so is the answer its request expects; all memory is taken
 *                        here
 *     drafters_proposers a step asks for drafts: the sequence's new tokens are followed first
 *     drafters_note_hidden  a step has drawn tokens; with a device drafters_note_row, and
 *                        drafters_keep_rows when all of the step have been noted
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
#include "engine/engine_device.h"
#include "engine/pool.h"
#include "engine/seq.h"
#include "engine/spec_stats.h"

struct drafters;

struct drafters_options {
    unsigned speculation; /* bits of enum speculation */
    size_t n_seqs;        /* that are asked in one step at most */
    const struct model *model;
    /* With SPECULATION_HEADS. */
    const struct heads *heads; /* borrowed until drafters_open ends */
    const struct kernels *kernels;
    struct pool *threads;
    enum act_kind activations;
    struct engine_device *device; /* borrowed; it was opened with the heads. NULL: the CPU */
};

/* What all of it takes at most, for so many sequences at once. */
size_t drafters_bytes_max(const struct drafters_options *o);

int drafters_open(const struct drafters_options *o, struct drafters **out, struct err *e);
/* Every sequence has left. Accepts NULL. */
void drafters_close(struct drafters *d);

/* req: what the sequence was opened from. ERR_NOMEM only. */
int drafters_begin(struct drafters *d, struct seq *seq, const struct seq_request *req,
                   struct err *e);
void drafters_end(struct drafters *d, struct seq *seq);

/* The hidden state behind the last norm, [D], that the sequence's last token was drawn from. */
void drafters_note_hidden(struct drafters *d, struct seq *seq, const float *hidden);
/* On a device instead: it stands behind this logits row of the step. drafters_keep_rows keeps
 * all that were noted, before the next step is given. */
void drafters_note_row(struct drafters *d, struct seq *seq, size_t logits_row);
void drafters_keep_rows(struct drafters *d);

/* How sure they all are, for tests. */
struct spec_stats *drafters_stats(struct drafters *d);

/* One for each kind of source that was opened; returns how many. */
size_t drafters_proposers(struct drafters *d, struct draft_proposer out[DRAFT_PROPOSERS_MAX]);

#endif
