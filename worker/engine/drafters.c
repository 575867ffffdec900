#include "engine/drafters.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/limits.h"
#include "base/size.h"
#include "engine/automaton_cache.h"
#include "engine/drafter.h"
#include "engine/head_drafts.h"
#include "engine/ngram.h"

enum {
    OWN_WINDOW = 1024,
    /* Last tokens of a prompt that are followed although its automaton holds them: the match
     * at its end, and what the answer is likely to take up. */
    TAIL_TOKENS = 64,
};

struct drafters {
    struct drafters_options options;
    struct spec_stats stats;
    /* Of lookup, or NULL. */
    struct recycle *recycle;
    struct automaton_cache *prompts;
    size_t prediction_bytes;   /* left for indexes of predictions */
    struct head_drafts *heads; /* or NULL */
};

static struct head_drafts_options heads_options(const struct drafters_options *o,
                                                struct spec_stats *stats)
{
    const struct medusa_options medusa = {.heads = o->heads,
                                          .model = o->model,
                                          .kernels = o->kernels,
                                          .threads = o->threads,
                                          .activations = o->activations,
                                          .device = o->device,
                                          .n_rows_max = o->n_seqs};
    return (struct head_drafts_options){.medusa = medusa, .stats = stats};
}

size_t drafters_bytes_max(const struct drafters_options *o)
{
    size_t bytes = 0;
    if (o->speculation & SPECULATION_LOOKUP)
        bytes += SPEC_PROMPTS_BYTES_MAX + SPEC_ANSWERS_BYTES_MAX +
                 recycle_bytes(o->model->config.n_vocab) + o->n_seqs * ngram_bytes(OWN_WINDOW);
    if (o->speculation & SPECULATION_HEADS) {
        const struct head_drafts_options heads = heads_options(o, NULL);
        bytes += head_drafts_bytes(&heads);
    }
    return bytes;
}

static int open_lookup(struct drafters *d, struct err *e)
{
    drafter_set_priors(&d->stats);
    d->prediction_bytes = SPEC_ANSWERS_BYTES_MAX;
    TRY(recycle_open(d->options.model->config.n_vocab, &d->recycle, e));
    return automaton_cache_open(SPEC_PROMPTS_BYTES_MAX, &d->prompts, e);
}

int drafters_open(const struct drafters_options *o, struct drafters **out, struct err *e)
{
    *out = NULL;
    struct drafters *d = calloc(1, sizeof *d);
    if (!d)
        return ERR_SET(e, ERR_NOMEM, "no memory for speculation");
    d->options = *o;
    spec_stats_init(&d->stats);
    int rc = 0;
    if (o->speculation & SPECULATION_LOOKUP)
        rc = open_lookup(d, e);
    if (rc == 0 && (o->speculation & SPECULATION_HEADS)) {
        const struct head_drafts_options heads = heads_options(o, &d->stats);
        rc = head_drafts_open(&heads, &d->heads, e);
    }
    if (rc != 0) {
        drafters_close(d);
        return rc;
    }
    *out = d;
    return 0;
}

void drafters_close(struct drafters *d)
{
    if (!d)
        return;
    ASSERT(!d->prompts || d->prediction_bytes == SPEC_ANSWERS_BYTES_MAX);
    automaton_cache_close(d->prompts);
    recycle_close(d->recycle);
    head_drafts_close(d->heads);
    free(d);
}

/* The last token that a sequence may say is never drafted for. */
static bool may_draft(const struct seq *seq)
{
    return seq->capacity - seq->n_prompt >= 2;
}

/* What one tenant's answers say must not show in the speed of another's. */
static struct recycle *recycle_of(const struct drafters *d, const struct seq *seq)
{
    return *seq->salt ? NULL : d->recycle;
}

static int begin_lookup(struct drafters *d, struct seq *seq, const struct seq_request *req,
                        struct err *e)
{
    struct automaton *document;
    size_t n_shared;
    TRY(automaton_cache_get(d->prompts, seq->salt, seq->tokens, seq->n_prompt, &document,
                            &n_shared, e));
    const size_t n_tail = size_min(seq->n_prompt, TAIL_TOKENS);
    const struct drafter_options options = {.document = document,
                                            .n_document =
                                                size_min(n_shared, seq->n_prompt - n_tail),
                                            .prediction = req->prediction,
                                            .n_prediction = req->n_prediction,
                                            .prediction_bytes = &d->prediction_bytes,
                                            .window = OWN_WINDOW,
                                            .recycle = recycle_of(d, seq),
                                            .stats = &d->stats};
    const int rc = drafter_open(&options, &seq->drafter, e);
    automaton_close(document);
    return rc;
}

int drafters_begin(struct drafters *d, struct seq *seq, const struct seq_request *req,
                   struct err *e)
{
    if (!may_draft(seq))
        return 0;
    if (d->options.speculation & SPECULATION_LOOKUP)
        TRY(begin_lookup(d, seq, req, e));
    return d->heads ? head_drafts_begin(d->heads, seq, e) : 0;
}

static void follow(const struct seq *seq)
{
    drafter_follow(seq->drafter, seq->tokens, seq->n_prompt, seq->n_tokens);
}

static void end_lookup(struct seq *seq)
{
    if (!seq->drafter)
        return;
    follow(seq);
    drafter_close(seq->drafter);
    seq->drafter = NULL;
}

void drafters_end(struct drafters *d, struct seq *seq)
{
    end_lookup(seq);
    if (d->heads)
        head_drafts_end(d->heads, seq);
}

void drafters_note_hidden(struct drafters *d, struct seq *seq, const float *hidden)
{
    if (d->heads)
        head_drafts_note(d->heads, seq, hidden);
}

void drafters_note_row(struct drafters *d, struct seq *seq, size_t logits_row)
{
    if (d->heads)
        head_drafts_note_row(d->heads, seq, logits_row);
}

void drafters_keep_rows(struct drafters *d)
{
    if (d->heads)
        head_drafts_keep_rows(d->heads);
}

static void look_up(void *ctx, const struct seq *seq, size_t n_max, struct draft *out)
{
    (void)ctx;
    if (!seq->drafter)
        return;
    follow(seq);
    const struct draft_limits limits = draft_limits_of_source(n_max);
    drafter_propose(seq->drafter, &limits, out);
}

struct spec_stats *drafters_stats(struct drafters *d)
{
    return &d->stats;
}

size_t drafters_proposers(struct drafters *d, struct draft_proposer out[DRAFT_PROPOSERS_MAX])
{
    size_t n = 0;
    if (d->options.speculation & SPECULATION_LOOKUP)
        out[n++] =
            (struct draft_proposer){.propose = look_up,
                                    .ctx = d,
                                    .sources = 1u << DRAFT_LOOKUP | 1u << DRAFT_SELF |
                                               1u << DRAFT_PREDICTION | 1u << DRAFT_RECYCLE};
    if (d->heads)
        out[n++] = head_drafts_proposer(d->heads);
    return n;
}
