#include "engine/draft_model.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/limits.h"
#include "base/size.h"
#include "engine/draft_model_int.h"

/* A twin that was asked in the step before has so many new tokens, on average, at most. */
enum { NEW_TOKENS = 4 };

static size_t rows_for(const struct draft_model *dm, size_t n_seqs)
{
    return dm->options.prefill_rows + NEW_TOKENS * n_seqs;
}

/* ------------------------------------------------------------------ opening */

static int open_pool(struct draft_model *dm, struct err *e)
{
    const struct draft_model_options *o = &dm->options;
    struct kvpool_shape shape = kvpool_shape_of(&o->model->config, o->kv_type);
    shape.n_pages = o->n_pages;
    TRY(kvpool_open(&shape, &dm->kvpool, e));
    kvpool_copy_with(dm->kvpool, o->threads);
    const struct prefix_options prefix = {.enabled = o->prefix_cache,
                                          .evicts_by_demand = true,
                                          .tokens_min = o->prefix_tokens_min};
    return prefix_open(&prefix, dm->kvpool, &dm->prefixes, e);
}

static int open_forward(struct draft_model *dm, struct err *e)
{
    const struct draft_model_options *o = &dm->options;
    const struct forward_options forward = {.n_rows_max = rows_for(dm, o->n_seqs_max),
                                            .n_logits_max = o->n_seqs_max,
                                            .activations = o->activations,
                                            .kv_type = o->kv_type,
                                            .shared_attention = o->shared_attention};
    return forward_open(o->model, &dm->weights, o->kernels, dm->kvpool, o->threads, &forward,
                        &dm->forward, e);
}

static int open_scratch(struct draft_model *dm, struct err *e)
{
    const size_t n_seqs = dm->options.n_seqs_max;
    const size_t n_threads = pool_threads(dm->options.threads);
    dm->plan.segments = calloc(n_seqs, sizeof dm->plan.segments[0]);
    dm->planned = calloc(n_seqs, sizeof dm->planned[0]);
    dm->held = calloc(n_seqs, sizeof dm->held[0]);
    dm->samplers = calloc(n_threads, sizeof dm->samplers[0]);
    if (!dm->plan.segments || !dm->planned || !dm->held || !dm->samplers)
        return ERR_SET(e, ERR_NOMEM, "no memory for a draft model's batch of %zu", n_seqs);
    for (size_t i = 0; i < n_threads; i++)
        TRY(sampler_open(dm->options.model->config.n_vocab, &dm->samplers[i], e));
    return 0;
}

static int open_parts(struct draft_model *dm, struct err *e)
{
    TRY(weights_open(dm->options.model, dm->options.threads, &dm->weights, e));
    TRY(open_pool(dm, e));
    TRY(open_forward(dm, e));
    return open_scratch(dm, e);
}

int draft_model_open(const struct draft_model_options *o, struct draft_model **out,
                     struct err *e)
{
    ASSERT(o->n_seqs_max > 0 && o->n_pages > 0 && o->prefill_rows > 0 && o->p_min > 0);
    *out = NULL;
    struct draft_model *dm = calloc(1, sizeof *dm);
    if (!dm)
        return ERR_SET(e, ERR_NOMEM, "no memory for a draft model");
    spec_stats_init(&dm->stats);
    draft_twin_set_priors(&dm->stats);
    dm->options = *o;
    dm->options.context = size_min(o->context, o->model->config.context);
    const int rc = open_parts(dm, e);
    if (rc != 0) {
        draft_model_close(dm);
        return rc;
    }
    *out = dm;
    return 0;
}

void draft_model_close(struct draft_model *dm)
{
    if (!dm)
        return;
    ASSERT(dm->n_held == 0);
    for (size_t i = 0; dm->samplers && i < pool_threads(dm->options.threads); i++)
        sampler_close(dm->samplers[i]);
    free(dm->samplers);
    free(dm->held);
    free(dm->planned);
    free(dm->plan.segments);
    forward_close(dm->forward);
    prefix_close(dm->prefixes);
    kvpool_close(dm->kvpool);
    weights_close(&dm->weights);
    free(dm);
}

size_t draft_model_bytes(const struct draft_model *dm)
{
    return dm->weights.block_bytes + kvpool_bytes(dm->kvpool) + forward_bytes(dm->forward);
}

/* ------------------------------------------------------------------ steps */

static void begin_plan(struct draft_model *dm)
{
    dm->plan.n_segments = dm->plan.n_rows = dm->plan.n_logits = 0;
}

static void add_segment(struct draft_model *dm, struct draft_twin *twin, size_t n_rows,
                        size_t n_logits)
{
    struct step_plan *plan = &dm->plan;
    dm->planned[plan->n_segments] = twin;
    plan->segments[plan->n_segments++] =
        (struct step_segment){.seq = twin->own,
                              .row = plan->n_rows,
                              .n_rows = n_rows,
                              .position = twin->own->n_computed,
                              .n_logits = n_logits,
                              .logits_row = plan->n_logits};
    plan->n_rows += n_rows;
    plan->n_logits += n_logits;
}

static void guess_item(void *ctx, size_t item, size_t thread)
{
    struct draft_model *dm = ctx;
    const struct step_segment *segment = &dm->plan.segments[item];
    if (segment->n_logits > 0)
        draft_twin_guess(dm->planned[item], dm->samplers[thread],
                         forward_logits(dm->forward, segment->logits_row));
}

static void run_plan(struct draft_model *dm)
{
    forward_run(dm->forward, &dm->plan);
    for (size_t i = 0; i < dm->plan.n_segments; i++)
        dm->planned[i]->own->n_computed += dm->plan.segments[i].n_rows;
    if (dm->plan.n_logits > 0)
        pool_run(dm->options.threads, guess_item, dm, dm->plan.n_segments);
}

static size_t remainder_of(const struct draft_twin *twin)
{
    return twin->own->n_tokens - twin->own->n_computed;
}

/* The shortest remainder first: what said a few tokens never waits for a prompt. */
static void plan_new_tokens(struct draft_model *dm)
{
    struct draft_twin **order = dm->planned;
    for (size_t i = 0; i < dm->n_held; i++) {
        size_t at = i;
        for (; at > 0 && remainder_of(order[at - 1]) > remainder_of(dm->held[i]); at--)
            order[at] = order[at - 1];
        order[at] = dm->held[i];
    }
    size_t left = rows_for(dm, dm->n_held);
    begin_plan(dm);
    for (size_t i = 0; i < dm->n_held && left > 0; i++) {
        struct draft_twin *twin = order[i];
        const size_t n_rows = size_min(remainder_of(twin), left);
        add_segment(dm, twin, n_rows, n_rows == remainder_of(twin));
        left -= n_rows;
    }
}

/* Before anything is computed behind them: what is published are committed tokens. */
static void publish(struct draft_model *dm)
{
    for (size_t i = 0; i < dm->plan.n_segments; i++) {
        const struct step_segment *segment = &dm->plan.segments[i];
        struct seq *own = segment->seq;
        const bool ends_prompt = segment->position < own->n_prompt && segment->n_logits > 0;
        prefix_commit(dm->prefixes, own->path, own->tokens, own->n_computed, ends_prompt,
                      own->pages);
    }
}

/*
 * One token more for each twin that drew in the pass before and goes on. A pass costs about the
 * same for few as for many of the n_asked, while a token saves less the more of them a step of
 * the target serves: so it is not made for the sake of few.
 */
static void plan_guesses(struct draft_model *dm, size_t n_asked)
{
    const struct step_plan before = dm->plan;
    double worth = 0;
    begin_plan(dm);
    for (size_t i = 0; i < before.n_segments; i++) {
        const bool has_drawn = before.segments[i].n_logits > 0;
        struct draft_twin *twin = dm->planned[i];
        if (!has_drawn || !draft_twin_may_deepen(twin))
            continue;
        add_segment(dm, twin, 1, 1);
        worth += twin->path;
    }
    if (worth < dm->options.p_min * (double)n_asked)
        begin_plan(dm);
}

static void stop_unasked(struct draft_model *dm)
{
    for (size_t i = dm->n_held; i-- > 0;)
        if (dm->held[i]->n_asks != dm->n_runs || dm->held[i]->is_lost)
            draft_twin_stop(dm->held[i]);
}

/* The page of a new token, those that began first before others. */
static void reserve_pages(struct draft_model *dm)
{
    size_t i = 0;
    while (i < dm->n_held)
        if (seq_reserve(dm->held[i]->own, dm->prefixes, dm->held[i]->own->n_tokens))
            i++;
        else
            draft_twin_stop(dm->held[i]);
}

static void bring_up_to_date(struct draft_model *dm, struct seq *const *seqs, size_t n)
{
    dm->n_runs++;
    for (size_t i = 0; i < n; i++)
        if (seqs[i]->twin) {
            draft_twin_follow(seqs[i]->twin, seqs[i]);
            seqs[i]->twin->n_asks = dm->n_runs;
        }
    stop_unasked(dm);
    reserve_pages(dm);
    for (size_t i = 0; i < n; i++)
        if (seqs[i]->twin && !seqs[i]->twin->is_held && !seqs[i]->twin->is_lost)
            draft_twin_start(seqs[i]->twin);
}

static void prepare(void *ctx, struct seq *const *seqs, size_t n)
{
    struct draft_model *dm = ctx;
    ASSERT(n <= dm->options.n_seqs_max);
    bring_up_to_date(dm, seqs, n);
    if (dm->n_held == 0)
        return;
    plan_new_tokens(dm);
    run_plan(dm);
    publish(dm);
    for (plan_guesses(dm, n); dm->plan.n_rows > 0; plan_guesses(dm, n))
        run_plan(dm);
    ASSERT_SLOW(prefix_check(dm->prefixes));
}

static void propose(void *ctx, const struct seq *seq, size_t n_max, struct draft *out)
{
    const struct draft_model *dm = ctx;
    const struct draft_twin *twin = seq->twin;
    if (!twin || twin->own->n_tokens != seq->n_tokens)
        return;
    int node = DRAFT_ROOT;
    double path = 1;
    for (size_t i = 0; i < twin->n_guesses && i < n_max; i++) {
        const struct draft_guess *guess = &twin->guesses[i];
        path *= (double)guess->p;
        if (path < dm->options.p_min)
            return;
        node = draft_add(out, node, guess->token, DRAFT_MODEL, guess->p);
        if (node == DRAFT_NONE)
            return;
    }
}

struct draft_proposer draft_model_proposer(struct draft_model *dm)
{
    return (struct draft_proposer){.propose = propose,
                                   .prepare = prepare,
                                   .ctx = dm,
                                   .sources = 1u << DRAFT_MODEL,
                                   .invests = true};
}
