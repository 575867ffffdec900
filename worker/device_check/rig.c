#include "device_check/rig.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/rng.h"
#include "base/size.h"
#include "engine/kvpool.h"

enum { PREFIX_SEED = 1, OWN_SEED, SLACK_PAGES = 8 };
/* Decoding before it is measured: what is done at a step's first times (products tried, graphs
 * captured) is done then. */
enum { STEPS_AHEAD = 3 };

static size_t prompt_tokens(const struct rig_options *o)
{
    return o->prefix_tokens + o->own_tokens;
}

/* Sequences begin to decode one after another, while others still have prompts to compute. */
static size_t answer_tokens(const struct rig_options *o)
{
    const size_t n = o->n_groups * o->group_size;
    const size_t own = o->own_tokens + KV_PAGE_TOKENS; /* behind what the cache has */
    const size_t prompt_steps = size_divide_up(n * own, o->step_tokens);
    return STEPS_AHEAD + o->n_steps + prompt_steps + n / 16 + 8;
}

static size_t pool_bytes(const struct model *m, const struct rig_options *o)
{
    const struct kvpool_shape shape = kvpool_shape_of(&m->config, KV_BF16);
    const size_t prefix = size_divide_up(o->prefix_tokens, KV_PAGE_TOKENS) + 1;
    const size_t own = size_divide_up(o->own_tokens + answer_tokens(o), KV_PAGE_TOKENS) + 2;
    const size_t n = o->n_groups * (prefix + o->group_size * own) + SLACK_PAGES;
    return n * kvpool_page_bytes(&shape);
}

int rig_open(struct rig *r, const struct model *m, const struct rig_options *o, struct err *e)
{
    *r = (struct rig){.options = *o, .model = m};
    const struct engine_options options = {.device = o->device,
                                           .device_ordinal = o->ordinal,
                                           .device_exact = o->exact,
                                           .device_graphs = o->graphs,
                                           .batch = o->n_groups * o->group_size,
                                           .step_tokens = o->step_tokens,
                                           .chunk_tokens = o->step_tokens,
                                           .context = prompt_tokens(o) + answer_tokens(o) + 1,
                                           .kv_bytes = pool_bytes(m, o),
                                           .kv_type = KV_BF16,
                                           .activations = ACT_INT8,
                                           .prefix_cache = true,
                                           .prefix_tokens_min = KV_PAGE_TOKENS,
                                           .shared_attention = o->shares};
    r->tokens = calloc(prompt_tokens(o), sizeof r->tokens[0]);
    if (!r->tokens)
        return ERR_SET(e, ERR_NOMEM, "no memory for a prompt");
    const int rc = engine_open(m, &options, &r->engine, e);
    if (rc != 0)
        rig_close(r);
    return rc;
}

void rig_close(struct rig *r)
{
    engine_close(r->engine);
    free(r->tokens);
    *r = (struct rig){0};
}

static int submit(struct rig *r, size_t group, size_t n_prompt, size_t max_tokens,
                  struct err *e)
{
    const size_t n_vocab = r->model->config.n_vocab;
    for (size_t i = 0; i < n_prompt; i++) {
        const bool is_own = i >= r->options.prefix_tokens;
        const uint64_t bits =
            rng_bits(is_own ? OWN_SEED : PREFIX_SEED, is_own ? r->n_made : group, i);
        r->tokens[i] = (int32_t)(bits % n_vocab);
    }
    r->n_made++;
    const struct seq_request req = {.prompt = r->tokens,
                                    .n_prompt = n_prompt,
                                    .max_tokens = max_tokens,
                                    .ignore_eos = true,
                                    .sample = sample_params_greedy()};
    return engine_submit(r->engine, &req, e);
}

/* Steps until all is collected; *cached: the fewest tokens of a prompt that were in the cache.
 */
static int drain(struct rig *r, size_t *cached, struct err *e)
{
    struct seq_result result;
    *cached = SIZE_MAX;
    while (engine_active(r->engine) > 0) {
        bool worked;
        TRY(engine_step(r->engine, &worked, e));
        while (engine_collect(r->engine, &result))
            *cached = size_min(*cached, result.n_cached);
    }
    return 0;
}

/* ------------------------------------------------------------------ measuring */

struct start {
    int64_t us;
    uint64_t steps;
    struct device_counters cost;
};

static struct start begin(const struct rig *r)
{
    struct start s = {.steps = engine_counters(r->engine).steps};
    engine_device_counters(r->engine, &s.cost);
    s.us = clock_mono_us();
    return s;
}

static void end(const struct rig *r, const struct start *s, struct rig_sample *out)
{
    out->seconds = (double)(clock_mono_us() - s->us) / 1e6;
    out->n_steps = (size_t)(engine_counters(r->engine).steps - s->steps);
    out->has_cost = engine_device_counters(r->engine, &out->cost);
    if (!out->has_cost)
        return;
    out->cost.steps -= s->cost.steps;
    out->cost.copies -= s->cost.copies;
    out->cost.graphs_captured -= s->cost.graphs_captured;
    out->cost.graphs_replayed -= s->cost.graphs_replayed;
    out->cost.graph_launches -= s->cost.graph_launches;
    out->cost.bytes_to_host -= s->cost.bytes_to_host;
    for (size_t i = 0; i < DEVICE_N_FAMILIES; i++) {
        struct device_cost *c = &out->cost.of[i];
        const struct device_cost *before = &s->cost.of[i];
        c->launches -= before->launches;
        c->bytes_read -= before->bytes_read;
        c->bytes_written -= before->bytes_written;
        c->flops -= before->flops;
    }
}

int rig_prefill(struct rig *r, size_t group, struct rig_sample *out, struct err *e)
{
    const double n = (double)r->options.prefix_tokens;
    size_t cached;
    TRY(submit(r, group, r->options.prefix_tokens, 1, e));
    const struct start s = begin(r);
    TRY(drain(r, &cached, e));
    *out = (struct rig_sample){
        .n_times = 1, .rows = n, .logits_rows = 1, .row_keys = n * (n + 1) / 2, .kv_tokens = n};
    end(r, &s, out);
    return cached == 0
               ? 0
               : ERR_SET(e, ERR_STATE, "%zu tokens of a new prefix were in the cache", cached);
}

static int refuse_lengths(const struct rig *r, size_t n, struct err *e)
{
    return ERR_SET(e, ERR_STATE,
                   "%zu sequences on prefixes of %zu tokens did not all decode together for "
                   "%zu steps; take fewer, or fewer steps",
                   n, r->options.prefix_tokens, r->options.n_steps);
}

/* Steps until n rows decode and nothing else, and have done so a few times; *row_keys: the keys
 * that they see in the next step. */
static int step_until_all_decode(struct rig *r, size_t n, double *row_keys, struct err *e)
{
    const struct engine_counters first = engine_counters(r->engine);
    struct engine_counters before, after = first;
    size_t n_alike = 0;
    while (n_alike < STEPS_AHEAD) {
        bool worked;
        struct seq_result early;
        before = after;
        TRY(engine_step(r->engine, &worked, e));
        after = engine_counters(r->engine);
        if (!worked || engine_collect(r->engine, &early))
            return refuse_lengths(r, n, e);
        n_alike +=
            after.rows - before.rows == n && after.computed_tokens == before.computed_tokens;
    }
    /* The last prompt row of each gave its first token, every other row one more. */
    const double generated = (double)n + (double)(after.rows - first.rows) -
                             (double)(after.computed_tokens - first.computed_tokens);
    *row_keys = (double)(n * prompt_tokens(&r->options)) + generated;
    return 0;
}

int rig_decode(struct rig *r, size_t n_groups, size_t group_size, struct rig_sample *out,
               struct err *e)
{
    const struct rig_options *o = &r->options;
    const size_t n = n_groups * group_size;
    size_t cached;
    double row_keys = 0;
    for (size_t i = 0; i < n; i++)
        TRY(submit(r, i % n_groups, prompt_tokens(o), answer_tokens(o), e));
    TRY(step_until_all_decode(r, n, &row_keys, e));
    const uint64_t rows = engine_counters(r->engine).rows;
    const struct start s = begin(r);
    for (size_t i = 0; i < o->n_steps; i++) {
        bool worked;
        TRY(engine_step(r->engine, &worked, e));
    }
    /* Each step adds a key to every row, so the middle one stands for all. */
    row_keys += (double)n * (double)(o->n_steps - 1) / 2;
    const double shared = (double)(n - n_groups) * (double)o->prefix_tokens;
    *out = (struct rig_sample){.n_times = o->n_steps,
                               .rows = (double)n,
                               .logits_rows = (double)n,
                               .row_keys = row_keys,
                               .kv_tokens = row_keys - (o->shares ? shared : 0)};
    end(r, &s, out);
    if (engine_counters(r->engine).rows - rows != n * o->n_steps)
        return refuse_lengths(r, n, e);
    engine_cancel_all(r->engine);
    TRY(drain(r, &cached, e));
    if (cached + KV_PAGE_TOKENS <= o->prefix_tokens)
        return ERR_SET(e, ERR_STATE, "only %zu tokens of a prefix of %zu were shared", cached,
                       o->prefix_tokens);
    return 0;
}
