#include "engine/head_drafts.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/head_places.h"

struct head_drafts {
    struct medusa *medusa;
    struct head_places *places; /* of a device, or NULL */
    struct spec_stats *stats;
    size_t dim, n_heads, n_seqs_max;
    /* Of one step, [n_seqs_max]. */
    struct head_seq **asked;
    size_t *n_tokens;
    const float **hidden;
    int32_t *asked_at; /* with a device, instead */
    struct medusa_guesses *guesses;
};

static size_t seq_bytes(size_t dim, bool is_on_device)
{
    return sizeof(struct head_seq) + (is_on_device ? 0 : dim * sizeof(float));
}

size_t head_drafts_bytes(const struct head_drafts_options *o)
{
    const size_t n = o->medusa.n_rows_max;
    return medusa_bytes(&o->medusa) + n * (seq_bytes(o->medusa.heads->dim, o->medusa.device) +
                                           sizeof(struct medusa_guesses) + 4 * sizeof(void *));
}

int head_drafts_open(const struct head_drafts_options *o, struct head_drafts **out,
                     struct err *e)
{
    *out = NULL;
    struct head_drafts *d = calloc(1, sizeof *d);
    if (!d)
        return ERR_SET(e, ERR_NOMEM, "no memory for drafts of heads");
    *d = (struct head_drafts){.stats = o->stats,
                              .dim = o->medusa.heads->dim,
                              .n_heads = o->medusa.heads->n_heads,
                              .n_seqs_max = o->medusa.n_rows_max};
    d->asked = calloc(d->n_seqs_max, sizeof d->asked[0]);
    d->n_tokens = calloc(d->n_seqs_max, sizeof d->n_tokens[0]);
    d->hidden = calloc(d->n_seqs_max, sizeof d->hidden[0]);
    d->asked_at = calloc(d->n_seqs_max, sizeof d->asked_at[0]);
    d->guesses = calloc(d->n_seqs_max, sizeof d->guesses[0]);
    int rc = 0;
    if (!d->asked || !d->n_tokens || !d->hidden || !d->asked_at || !d->guesses)
        rc = ERR_SET(e, ERR_NOMEM, "no memory for guesses of %zu sequences", d->n_seqs_max);
    if (rc == 0)
        rc = medusa_open(&o->medusa, &d->medusa, e);
    if (rc == 0 && o->medusa.device)
        rc = head_places_open(o->medusa.device, d->n_seqs_max, &d->places, e);
    if (rc != 0) {
        head_drafts_close(d);
        return rc;
    }
    medusa_set_priors(o->medusa.heads, d->stats);
    *out = d;
    return 0;
}

void head_drafts_close(struct head_drafts *d)
{
    if (!d)
        return;
    medusa_close(d->medusa);
    head_places_close(d->places);
    free(d->asked);
    free(d->n_tokens);
    free(d->hidden);
    free(d->asked_at);
    free(d->guesses);
    free(d);
}

int head_drafts_begin(struct head_drafts *d, struct seq *seq, struct err *e)
{
    seq->heads = calloc(1, seq_bytes(d->dim, d->places));
    if (!seq->heads)
        return ERR_SET(e, ERR_NOMEM, "no memory for the guesses of a sequence");
    seq->heads->place = HEAD_PLACE_NONE;
    return 0;
}

void head_drafts_note(struct head_drafts *d, struct seq *seq, const float *hidden)
{
    if (!seq->heads)
        return;
    memcpy(seq->heads->hidden, hidden, d->dim * sizeof hidden[0]);
    seq->heads->hidden_for = seq->n_tokens;
}

void head_drafts_note_row(struct head_drafts *d, struct seq *seq, size_t logits_row)
{
    if (!seq->heads)
        return;
    head_places_note(d->places, seq->heads, logits_row);
    seq->heads->hidden_for = seq->n_tokens;
}

void head_drafts_keep_rows(struct head_drafts *d)
{
    if (d->places)
        head_places_keep(d->places);
}

/* Those that n_tokens lets judge to the last head, or all. */
static void learn(struct head_drafts *d, const struct seq *seq, bool all)
{
    struct head_seq *h = seq->heads;
    size_t n_left = 0;
    for (size_t i = 0; i < h->n_said; i++) {
        const struct head_said *said = &h->said[i];
        const size_t n = seq->n_tokens - said->n_tokens;
        if (all || n >= d->n_heads)
            medusa_learn(&said->guesses, seq->tokens + said->n_tokens, n, d->stats);
        else
            h->said[n_left++] = *said;
    }
    h->n_said = n_left;
}

void head_drafts_end(struct head_drafts *d, struct seq *seq)
{
    if (!seq->heads)
        return;
    learn(d, seq, true);
    if (d->places)
        head_places_drop(d->places, seq->heads);
    free(seq->heads);
    seq->heads = NULL;
}

/* What was said behind the sequence's last token, or NULL. */
static const struct head_said *last_said(const struct seq *seq)
{
    const struct head_seq *h = seq->heads;
    const struct head_said *last = h && h->n_said > 0 ? &h->said[h->n_said - 1] : NULL;
    return last && last->n_tokens == seq->n_tokens ? last : NULL;
}

static void prepare(void *ctx, struct seq *const *seqs, size_t n_seqs)
{
    struct head_drafts *d = ctx;
    size_t n = 0;
    for (size_t i = 0; i < n_seqs; i++) {
        struct head_seq *h = seqs[i]->heads;
        if (!h || h->hidden_for != seqs[i]->n_tokens || last_said(seqs[i]))
            continue;
        learn(d, seqs[i], false);
        ASSERT(n < d->n_seqs_max && h->n_said < HEADS_MAX);
        d->asked[n] = h;
        d->n_tokens[n] = seqs[i]->n_tokens;
        d->asked_at[n] = h->place;
        d->hidden[n++] = h->hidden;
    }
    if (d->places)
        medusa_run_kept(d->medusa, d->asked_at, n, d->guesses);
    else
        medusa_run(d->medusa, d->hidden, n, d->guesses);
    for (size_t i = 0; i < n; i++)
        d->asked[i]->said[d->asked[i]->n_said++] =
            (struct head_said){.n_tokens = d->n_tokens[i], .guesses = d->guesses[i]};
}

static void propose(void *ctx, const struct seq *seq, size_t n_max, struct draft *out)
{
    const struct head_drafts *d = ctx;
    const struct head_said *said = last_said(seq);
    if (!said)
        return;
    const struct draft_limits limits = draft_limits_of_source(n_max);
    medusa_propose(&said->guesses, &limits, d->stats, out);
    draft_bound_siblings(out);
}

struct draft_proposer head_drafts_proposer(struct head_drafts *d)
{
    return (struct draft_proposer){
        .propose = propose, .prepare = prepare, .ctx = d, .sources = 1u << DRAFT_MEDUSA};
}
