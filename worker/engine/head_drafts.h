/*
 * Heads as a source of drafts. Of every sequence the hidden row is kept, here or on the device
 * that computed it, that its last token was drawn from: behind position t where t + 1 is the
 * last token's, so that the heads say what follows it. Before a step they are run once for all
 * sequences that will be asked. What they said waits until as many tokens have followed as
 * there are heads, so that the deep ones are judged whatever became of the draft.
 *
 *     head_drafts_begin     a sequence is submitted: memory for its row and guesses
 *     head_drafts_note      a step drew tokens for it; with a device head_drafts_note_row, and
 *                           head_drafts_keep_rows when all have been noted
 *     head_drafts_proposer  prepare runs the heads, propose adds what they said
 *     head_drafts_end       it is finished
 *
 * A row is a function of the sequence's tokens, so it outlives a preemption; where there is
 * none for the last token, as before the first, the heads are not asked.
 *
 * Thread: the engine's.
 */
#ifndef SHEAF_HEAD_DRAFTS_H
#define SHEAF_HEAD_DRAFTS_H

#include "engine/medusa.h"
#include "engine/seq.h"

struct head_drafts;

enum { HEAD_PLACE_NONE = -1 };

/* Of a sequence. */
struct head_seq {
    size_t hidden_for; /* n_tokens that the row belongs to; 0: none */
    int32_t place;     /* with a device: where it keeps the row (head_places.h) */
    size_t n_said;     /* in order of asking */
    struct head_said {
        size_t n_tokens; /* before what was said */
        struct medusa_guesses guesses;
    } said[HEADS_MAX];
    float hidden[]; /* [D]; without a device */
};

struct head_drafts_options {
    struct medusa_options medusa; /* its n_rows_max: sequences asked in one step */
    struct spec_stats *stats;     /* borrowed */
};

/* With what n_rows_max sequences take. */
size_t head_drafts_bytes(const struct head_drafts_options *o);
int head_drafts_open(const struct head_drafts_options *o, struct head_drafts **out,
                     struct err *e);
void head_drafts_close(struct head_drafts *d); /* accepts NULL */

/* ERR_NOMEM only. */
int head_drafts_begin(struct head_drafts *d, struct seq *seq, struct err *e);
void head_drafts_end(struct head_drafts *d, struct seq *seq);
/* hidden: [D], of the row that the sequence's last token was drawn from; copied. */
void head_drafts_note(struct head_drafts *d, struct seq *seq, const float *hidden);
/* With a device instead: it is that of a logits row of the step, and stays there.
 * head_drafts_keep_rows keeps all that were noted, before the next step is given. */
void head_drafts_note_row(struct head_drafts *d, struct seq *seq, size_t logits_row);
void head_drafts_keep_rows(struct head_drafts *d);

struct draft_proposer head_drafts_proposer(struct head_drafts *d);

#endif
