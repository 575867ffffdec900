/*
 * One sequence on its way through the engine: its tokens, its KV pages, its counters.
 *
 *     WAITING --admitted--> RUNNING --finished--> DONE
 *        ^                     |
 *        +----- preempted -----+     (pages given back; prompt and output computed again)
 *
 * Invariant: keys and values of positions [0, n_computed) are in its pages, and
 * n_computed < n_tokens while it runs: the tokens from n_computed on are still to be computed.
 * A sequence decodes when exactly one is, and prefills when more are.
 */
#ifndef SHEAF_SEQ_H
#define SHEAF_SEQ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "engine/draft_tally.h"
#include "engine/engine.h"
#include "engine/prefix.h"

struct draft_twin;
struct drafter;
struct head_seq;

enum seq_phase { SEQ_WAITING, SEQ_RUNNING, SEQ_DONE };

struct seq {
    enum seq_phase phase;
    bool is_cancelled;      /* ends at the next step's border */
    struct seq_request req; /* texts are not kept: the prompt is the head of tokens */
    struct logit_bias *bias;
    char **stops;
    int32_t *stop_tokens;
    char *salt;

    int32_t *tokens; /* [capacity] prompt, then output, then what a step draws */
    size_t n_tokens;
    size_t n_prompt;
    size_t capacity; /* positions it may ever take */
    size_t n_computed;

    struct prefix_path *path; /* its way through the prefix tree, while it waits or runs */
    int32_t *pages;           /* [pages of capacity] */
    size_t n_pages;
    size_t n_passed;     /* sequences admitted before it although they came later */
    size_t n_deferred;   /* steps in which it waited for what another one computes */
    bool was_looked_for; /* on disk, since it waits */
    bool waits_for_disk; /* its turn to be looked for comes in a later step */
    size_t n_pages_loaded;
    size_t n_pages_saved; /* or found there */

    struct drafter *drafter; /* of lookup speculation, or NULL */
    struct head_seq *heads;  /* of speculation by heads, or NULL */
    struct draft_twin *twin; /* in the draft model (draft_model.h), or NULL */

    struct buf text; /* decoded output */
    bool text_start; /* of tokenizer_next_piece */
    enum finish_reason reason;
    int stop_index;
    int32_t stop_token;

    /* Counters of struct seq_result. */
    enum prefix_miss miss;
    size_t miss_at;
    size_t n_cached, n_steps, n_chunks, n_preempted, n_drafted, n_accepted, kv_pages_peak;
    struct draft_tally tally;
    int64_t submitted_us, scheduled_us, first_token_us, last_token_us, gap_us_max;
};

int seq_open(const struct seq_request *req, size_t context, struct seq **out, struct err *e);
void seq_close(struct seq *seq); /* holds no pages any more; accepts NULL */

static inline bool seq_is_decoding(const struct seq *seq)
{
    return seq->n_tokens - seq->n_computed == 1;
}

static inline size_t seq_n_output(const struct seq *seq)
{
    return seq->n_tokens - seq->n_prompt;
}

/* Pages that hold n positions. */
size_t seq_pages_for(size_t n_positions);
/* Takes pages until n positions fit; false, with what it got kept, when there are no more. */
bool seq_reserve(struct seq *seq, struct prefix_tree *prefixes, size_t n_positions);

#endif
