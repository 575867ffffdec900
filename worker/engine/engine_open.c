/* Opening an engine: options chosen, memory taken, parts put together; and closing it. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/size.h"
#include "engine/calibrate.h"
#include "engine/engine_int.h"
#include "engine/memory.h"
#include "model/vocab_match.h"

static size_t online_cpus(void)
{
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    if (n < 1)
        return 1;
    return n < ENGINE_THREADS_MAX ? (size_t)n : ENGINE_THREADS_MAX;
}

/* One sequence's drafts, or what step_tokens leaves. */
static size_t choose_draft_tokens(const struct engine_options *o)
{
    const size_t n_left = STEP_ROWS_MAX - o->step_tokens;
    if (n_left == 0)
        log_warn("step_tokens %zu leaves no room for drafts; there will be none",
                 o->step_tokens);
    return size_min(DRAFT_NODES_MAX, n_left);
}

static int choose_options(const struct model *m, struct engine_options *o, struct err *e)
{
    if (o->n_threads == 0)
        o->n_threads = online_cpus();
    if (o->context == 0)
        o->context = m->config.context;
    if (o->context > m->config.context)
        return ERR_SET(e, ERR_CONFIG,
                       "context %zu is more than the model's own %zu; lower context",
                       o->context, m->config.context);
    if (o->n_threads > ENGINE_THREADS_MAX)
        return ERR_SET(e, ERR_CONFIG, "%zu threads are more than %d", o->n_threads,
                       ENGINE_THREADS_MAX);
    if (o->batch < 1 || o->batch > ENGINE_SEQS_MAX)
        return ERR_SET(e, ERR_CONFIG, "batch %zu is outside 1..%d", o->batch, ENGINE_SEQS_MAX);
    if (o->step_tokens < o->batch)
        o->step_tokens = o->batch;
    if (o->step_tokens > STEP_ROWS_MAX)
        return ERR_SET(e, ERR_CONFIG, "step_tokens %zu is more than %d", o->step_tokens,
                       STEP_ROWS_MAX);
    if (!o->proposer.propose && o->speculation == SPECULATION_OFF)
        o->draft_tokens = 0;
    else if (o->draft_tokens == 0)
        o->draft_tokens = choose_draft_tokens(o);
    if ((o->speculation & SPECULATION_HEADS) && !o->heads)
        return ERR_SET(e, ERR_CONFIG, "speculation by heads needs heads");
    if (o->draft_tokens > STEP_ROWS_MAX - o->step_tokens)
        return ERR_SET(e, ERR_CONFIG, "%zu drafted tokens and step_tokens %zu are more than %d",
                       o->draft_tokens, o->step_tokens, STEP_ROWS_MAX);
    return 0;
}

static bool wants_device(const struct engine_options *o)
{
    return o->device && strcmp(o->device, "cpu") != 0;
}

/* The pool holds the batch at full context, or what a quarter of the machine's memory holds; a
 * device says itself what it holds of that. */
static size_t choose_pages(const struct engine_options *o, const struct kvpool_shape *shape,
                           bool is_on_device)
{
    const size_t page_bytes = kvpool_page_bytes(shape);
    const size_t one = seq_pages_for(o->context);
    if (o->kv_bytes > 0)
        return o->kv_bytes / page_bytes;
    const size_t affordable = memory_machine_bytes() / 4 / page_bytes;
    const size_t wanted = size_min(one * o->batch, KV_PAGES_MAX);
    if (is_on_device)
        return wanted;
    return wanted < affordable || affordable == 0 ? wanted : affordable;
}

/* By sources of the engine's own, when a proposer does not stand in their place. */
static bool drafts(const struct engine_options *o)
{
    return o->speculation != SPECULATION_OFF && !o->proposer.propose;
}

bool engine_drafts_by(const struct engine_options *o, enum speculation source)
{
    return drafts(o) && (o->speculation & source);
}

static struct drafters_options drafters_options(const struct engine *eng)
{
    return (struct drafters_options){.speculation = eng->options.speculation,
                                     .n_seqs = eng->options.batch,
                                     .model = eng->model,
                                     .heads = eng->options.heads,
                                     .kernels = &eng->kernels,
                                     .threads = eng->threads,
                                     .activations = eng->options.activations,
                                     .device = eng->device};
}

/* That speculation may take while it runs. */
static size_t drafts_bytes(const struct engine *eng)
{
    const struct drafters_options o = drafters_options(eng);
    const size_t model = eng->draft_model ? draft_model_bytes(eng->draft_model) : 0;
    return (drafts(&eng->options) ? drafters_bytes_max(&o) : 0) + model;
}

/* Memory is taken without being reserved, so too much of it would be found out by the kernel's
 * killer, hours later. */
static int check_memory(const struct engine *eng, size_t activations_bytes, struct err *e)
{
    const size_t machine = memory_machine_bytes();
    const size_t weights = eng->weights.block_bytes;
    const size_t kv = eng->device ? 0 : eng->options.kv_bytes;
    const size_t others = activations_bytes + drafts_bytes(eng);
    if (machine == 0 ||
        (weights <= machine && others <= machine - weights && kv <= machine - weights - others))
        return 0;
    return ERR_SET(e, ERR_CONFIG,
                   "weights, KV cache and activations take %zu MiB, %zu of them the KV cache; "
                   "the machine has %zu MiB; lower kv.mb",
                   (weights >> 20) + (kv >> 20) + (others >> 20), kv >> 20, machine >> 20);
}

static int check_pages(const struct kvpool_shape *shape, struct err *e)
{
    if (shape->n_pages >= 1 && shape->n_pages <= KV_PAGES_MAX)
        return 0;
    return ERR_SET(e, ERR_CONFIG, "kv.mb gives %zu KV pages of %zu KiB; 1 to %d can be had",
                   shape->n_pages, kvpool_page_bytes(shape) >> 10, KV_PAGES_MAX);
}

/* Weights and KV pool, of the device or of the CPU. */
static int open_memory(struct engine *eng, struct err *e)
{
    struct engine_options *o = &eng->options;
    struct kvpool_shape shape = kvpool_shape_of(&eng->model->config, o->kv_type);
    if (wants_device(o)) {
        shape.n_pages = choose_pages(o, &shape, true);
        TRY(check_pages(&shape, e));
    }
    TRY(engine_open_device(eng, &shape, e));
    if (!eng->device) {
        TRY(weights_open(eng->model, eng->threads, &eng->weights, e));
        shape.n_pages = choose_pages(o, &shape, false);
        TRY(check_pages(&shape, e));
    }
    o->kv_bytes = shape.n_pages * kvpool_page_bytes(&shape);
    TRY(check_memory(eng, 0, e));
    TRY(kvpool_open_device(&shape, eng->device, &eng->kvpool, e));
    kvpool_copy_with(eng->kvpool, eng->threads);
    return 0;
}

static int open_prefixes(struct engine *eng, struct err *e)
{
    const struct engine_options *o = &eng->options;
    const size_t page_bytes = o->kv_bytes / kvpool_pages(eng->kvpool);
    const struct prefix_options prefix = {
        .enabled = o->prefix_cache,
        .evicts_by_demand = o->evicts_by_demand,
        .tokens_min = o->prefix_tokens_min,
        .pages_max = o->prefix_bytes ? size_divide_up(o->prefix_bytes, page_bytes) : 0,
    };
    return prefix_open(&prefix, eng->kvpool, &eng->prefixes, e);
}

static int open_disk(struct engine *eng, struct err *e)
{
    const struct engine_options *o = &eng->options;
    if (!o->prefix_cache || !o->kv_disk || !*o->kv_disk)
        return 0;
    if (o->context < KV_PAGE_TOKENS) {
        log_warn("a context of %zu tokens fills no KV page of %d; kv.disk is not used",
                 o->context, KV_PAGE_TOKENS);
        return 0;
    }
    struct kv_disk_options disk = {
        .folder = o->kv_disk,
        .bytes_max = o->kv_disk_bytes,
        .tokens_min = o->kv_disk_tokens_min,
        .always = o->kv_disk_always,
        .context = o->context,
        .model_sha256 = eng->model->sha256,
        .kernels = eng->device ? eng->device->info.arithmetic : eng->kernels.name,
        .activations = eng->device ? ACT_F32 : o->activations, /* none of a device's bits */
        .shape = kvpool_shape_of(&eng->model->config, o->kv_type),
    };
    disk.shape.n_pages = kvpool_pages(eng->kvpool);
    return kv_disk_open(&disk, eng->kvpool, &eng->disk, e);
}

/* Of a sequence, or of what calibration computes at once. */
static size_t positions_max(const struct engine_options *o)
{
    return size_max(o->context, o->step_tokens + o->draft_tokens + 1);
}

static int open_forward(struct engine *eng, struct err *e)
{
    const struct engine_options *o = &eng->options;
    const struct forward_options forward = {.n_rows_max = o->step_tokens + o->draft_tokens,
                                            .n_logits_max = o->batch + o->draft_tokens,
                                            .activations = o->activations,
                                            .kv_type = o->kv_type,
                                            .shared_attention = o->shared_attention,
                                            .drafts = o->draft_tokens > 0,
                                            .device = eng->device,
                                            .n_page_refs_max = engine_page_refs_max(o),
                                            .n_positions_max = positions_max(o)};
    return forward_open(eng->model, &eng->weights, &eng->kernels, eng->kvpool, eng->threads,
                        &forward, &eng->forward, e);
}

/* While the pool is still empty. */
static int calibrate(struct engine *eng, struct err *e)
{
    struct engine_options *o = &eng->options;
    const size_t n_layers = eng->model->config.n_layers;
    if (o->chunk_tokens == 0) {
        TRY(calibrate_steps(eng->forward, n_layers, eng->kvpool, o->step_tokens,
                            &eng->calibration, e));
        o->chunk_tokens = calibration_chunk(&eng->calibration);
    }
    if (drafts(o) && !o->draft_always)
        TRY(calibrate_decoding(eng->forward, n_layers, eng->kvpool, o->batch + o->draft_tokens,
                               &eng->decoding_time, e));
    return forward_check(eng->forward, e);
}

static size_t draft_pages(const struct engine *eng)
{
    const struct engine_options *o = &eng->options;
    const struct kvpool_shape shape = kvpool_shape_of(&o->draft_model->config, o->kv_type);
    const size_t page_bytes = kvpool_page_bytes(&shape);
    const size_t affordable = memory_machine_bytes() / 8 / page_bytes;
    size_t n = kvpool_pages(eng->kvpool);
    if (o->draft_kv_bytes > 0)
        n = o->draft_kv_bytes / page_bytes;
    else if (affordable > 0)
        n = size_min(n, affordable);
    return size_max(n, 1);
}

enum { DRAFT_PREFILL_ROWS_MAX = 256 }; /* of a step */
/* A guess is not worth less than a good part of what it costs: a pass of the draft model. */
static const double GUESS_P_MIN = 0.2, GUESS_P_MIN_MAX = 0.9, GUESS_P_ALWAYS = 1e-9;

static double guess_p_min(const struct engine_options *o, const struct model *target)
{
    const double cost = (double)o->draft_model->file_bytes / (double)target->file_bytes;
    if (o->draft_always)
        return GUESS_P_ALWAYS;
    if (cost < GUESS_P_MIN)
        return GUESS_P_MIN;
    return cost < GUESS_P_MIN_MAX ? cost : GUESS_P_MIN_MAX;
}

static int open_draft_model(struct engine *eng, struct err *e)
{
    const struct engine_options *o = &eng->options;
    if (!engine_drafts_by(o, SPECULATION_MODEL))
        return 0;
    ASSERT(o->draft_model);
    TRY(vocab_match(eng->model->tokenizer, o->draft_model->tokenizer, e));
    const struct draft_model_options options = {
        .model = o->draft_model,
        .kernels = &eng->kernels,
        .threads = eng->threads,
        .activations = o->activations,
        .kv_type = o->kv_type,
        .n_seqs_max = o->batch,
        .context = o->context,
        .n_pages = draft_pages(eng),
        .prefill_rows = size_min(o->chunk_tokens, DRAFT_PREFILL_ROWS_MAX),
        .prefix_cache = o->prefix_cache,
        .shared_attention = o->shared_attention,
        .prefix_tokens_min = o->prefix_tokens_min,
        .p_min = guess_p_min(o, eng->model),
    };
    TRY(draft_model_open(&options, &eng->draft_model, e));
    return check_memory(eng, forward_bytes(eng->forward), e);
}

/* Of decoding's time, for drafts that are then not worth computing. */
static const double VAIN_SHARE = 0.01;

static int open_spec(struct engine *eng, struct err *e)
{
    const struct engine_options *o = &eng->options;
    struct spec_options spec = {.proposers = {o->proposer},
                                .n_proposers = 1,
                                .batch = o->batch,
                                .nodes_max = o->draft_tokens,
                                .n_vocab = eng->model->config.n_vocab,
                                .vain_share = VAIN_SHARE};
    if (!drafts(o) && !o->proposer.propose)
        return 0;
    if (drafts(o)) {
        const struct drafters_options drafters = drafters_options(eng);
        TRY(drafters_open(&drafters, &eng->drafters, e));
        eng->drafts_bytes = drafts_bytes(eng);
        spec.n_proposers = drafters_proposers(eng->drafters, spec.proposers);
        if (eng->draft_model)
            spec.proposers[spec.n_proposers++] = draft_model_proposer(eng->draft_model);
        spec.time = o->draft_always ? NULL : &eng->decoding_time;
    }
    return spec_open(&spec, eng->prefixes, eng->kvpool, &eng->spec, e);
}

static int open_parts(struct engine *eng, struct err *e)
{
    struct engine_options *o = &eng->options;
    TRY(kernels_open(&eng->kernels, e));
    TRY(pool_open(o->n_threads, &eng->threads, e));
    TRY(open_memory(eng, e));
    TRY(open_forward(eng, e));
    TRY(check_memory(eng, forward_bytes(eng->forward), e));
    TRY(calibrate(eng, e));
    TRY(open_prefixes(eng, e));
    TRY(open_disk(eng, e));
    const struct sched_limits limits = {.batch = o->batch,
                                        .step_tokens = o->step_tokens,
                                        .chunk_tokens = o->chunk_tokens,
                                        .whole_prompts = o->whole_prompts};
    TRY(sched_open(&limits, eng->prefixes, &eng->sched, e));
    TRY(open_draft_model(eng, e));
    TRY(open_spec(eng, e));
    const bool is_ahead = eng->device && o->device_ahead && !eng->spec;
    TRY(ahead_open(is_ahead, o->batch, &eng->ahead, e));
    eng->plan.segments = calloc(o->batch, sizeof eng->plan.segments[0]);
    eng->samplers = calloc(o->n_threads, sizeof eng->samplers[0]);
    if (!eng->plan.segments || !eng->samplers)
        return ERR_SET(e, ERR_NOMEM, "no memory for a batch of %zu", o->batch);
    for (size_t i = 0; i < o->n_threads; i++)
        TRY(sampler_open(eng->model->config.n_vocab, &eng->samplers[i], e));
    return 0;
}

int engine_open(const struct model *m, const struct engine_options *options,
                struct engine **out, struct err *e)
{
    struct engine *eng = calloc(1, sizeof *eng);
    if (!eng)
        return ERR_SET(e, ERR_NOMEM, "no memory for the engine");
    eng->model = m;
    eng->options = *options;
    int rc = choose_options(m, &eng->options, e);
    if (rc == 0)
        rc = open_parts(eng, e);
    eng->options.heads = NULL;
    eng->options.device = NULL;
    if (rc != 0) {
        engine_close(eng);
        return rc;
    }
    *out = eng;
    return 0;
}

void engine_close(struct engine *eng)
{
    if (!eng)
        return;
    while (eng->sched && sched_at(eng->sched, 0)) {
        struct seq *seq = sched_at(eng->sched, 0);
        sched_remove(eng->sched, seq);
        seq_close(seq);
    }
    for (size_t i = 0; i < eng->n_done; i++)
        seq_close(eng->done[i]);
    seq_close(eng->collected);
    for (size_t i = 0; eng->samplers && i < eng->options.n_threads; i++)
        sampler_close(eng->samplers[i]);
    free(eng->samplers);
    free(eng->done);
    free(eng->plan.segments);
    ahead_close(&eng->ahead);
    forward_close(eng->forward);
    spec_close(eng->spec);
    drafters_close(eng->drafters);
    draft_model_close(eng->draft_model);
    sched_close(eng->sched);
    prefix_close(eng->prefixes);
    kv_disk_close(eng->disk);
    kvpool_close(eng->kvpool);
    engine_device_close(eng->device);
    pool_close(eng->threads);
    weights_close(&eng->weights);
    free(eng);
}

struct engine_plan engine_plan(const struct engine *eng)
{
    const struct device_info *device = eng->device ? &eng->device->info : NULL;
    return (struct engine_plan){
        .kernels = device ? eng->device_module : eng->kernels.name,
        .device = device ? device->name : NULL,
        .weights_bytes = device ? device->weights_bytes : eng->weights.block_bytes,
        .kv_bytes = kvpool_bytes(eng->kvpool),
        .activations_bytes = device ? device->activations_bytes : forward_bytes(eng->forward),
        .drafts_bytes = eng->drafts_bytes,
        .kv_pages = kvpool_pages(eng->kvpool),
        .context = eng->options.context,
        .n_threads = eng->options.n_threads,
        .chunk_tokens = eng->options.chunk_tokens,
        .calibration = eng->calibration,
    };
}

struct engine_counters engine_counters(const struct engine *eng)
{
    struct engine_counters counters = eng->counters;
    counters.steps_ahead = eng->ahead.n_steps;
    counters.rows_wasted = eng->ahead.n_wasted;
    counters.prefix = prefix_counters(eng->prefixes);
    if (eng->spec)
        counters.drafts = spec_counters(eng->spec);
    if (eng->disk)
        counters.disk = kv_disk_counters(eng->disk);
    return counters;
}

bool engine_device_counters(const struct engine *eng, struct device_counters *out)
{
    *out = (struct device_counters){0};
    if (eng->device)
        eng->device->backend->counters(eng->device->device, out);
    return eng->device;
}

const struct kernels *engine_kernels(const struct engine *eng)
{
    return &eng->kernels;
}
