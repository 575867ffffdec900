/* The device of an engine: which one is taken, and what it is told of the engine's sizes. */
#include <string.h>

#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/size.h"
#include "engine/engine_int.h"
#include "engine/forward_int.h"
#include "engine/medusa_device.h"
#include "engine/seq.h"

static const char *const device_names[] = {"cpu", "auto", "cuda", "cuda-emu"};

/* *out is one of the constants above. */
static int find_name(const char *name, const char **out, struct err *e)
{
    for (size_t i = 0; i < sizeof device_names / sizeof device_names[0]; i++)
        if (strcmp(name, device_names[i]) == 0) {
            *out = device_names[i];
            return 0;
        }
    return ERR_SET(e, ERR_CONFIG, "device=%s is not one of cpu, cuda, auto", name);
}

static int find_weights(const char *name, bool *is_fp8, struct err *e)
{
    *is_fp8 = name && strcmp(name, "fp8") == 0;
    if (*is_fp8 || !name || strcmp(name, "stored") == 0)
        return 0;
    return ERR_SET(e, ERR_CONFIG, "device.weights=%s is not one of stored, fp8", name);
}

size_t engine_page_refs_max(const struct engine_options *o)
{
    /* Of a batch at full context, or of what calibration computes at once. */
    return size_max(o->batch * seq_pages_for(o->context),
                    seq_pages_for(o->step_tokens + o->draft_tokens + 1));
}

/* Heads are computed where the model is. */
static int open_with_heads(struct engine *eng, const char *module,
                           const struct device_options *options, struct err *e)
{
    const struct engine_options *o = &eng->options;
    const struct weights *vectors = &eng->weights;
    if (!engine_drafts_by(o, SPECULATION_HEADS))
        return engine_device_open(module, eng->model, vectors, NULL, options, &eng->device, e);
    struct medusa_device heads;
    TRY(medusa_device_open(o->heads, eng->model, &heads, e));
    const int rc =
        engine_device_open(module, eng->model, vectors, &heads.heads, options, &eng->device, e);
    medusa_device_close(&heads);
    return rc;
}

static int open_module(struct engine *eng, const char *module, const struct kvpool_shape *shape,
                       struct err *e)
{
    const struct engine_options *o = &eng->options;
    if (o->kv_type == KV_INT8)
        return ERR_SET(e, ERR_CONFIG,
                       "kv.type=int8 is the CPU's: a device keeps keys and values as bf16 or "
                       "f32; take kv.type=bf16, or device=cpu");
    bool is_fp8 = false;
    TRY(find_weights(o->device_weights, &is_fp8, e));
    const size_t n_rows = o->step_tokens + o->draft_tokens;
    const struct device_options options = {
        .ordinal = o->device_ordinal,
        .n_pages = shape->n_pages,
        .n_pages_min = o->kv_bytes > 0 ? shape->n_pages : 1,
        .kv_type = o->kv_type,
        .n_rows_max = n_rows,
        .n_logits_max = o->batch + o->draft_tokens,
        .n_page_refs_max = engine_page_refs_max(o),
        .n_slots_max = o->draft_tokens > 0 ? forward_device_slots_max(n_rows) : 0,
        .n_kept_max = o->batch,
        .exact = o->device_exact,
        .graphs = o->device_graphs,
        .fp8 = is_fp8,
    };
    TRY(open_with_heads(eng, module, &options, e));
    eng->device_module = module;
    return 0;
}

int engine_open_device(struct engine *eng, struct kvpool_shape *shape, struct err *e)
{
    const char *name = NULL;
    TRY(find_name(eng->options.device ? eng->options.device : "cpu", &name, e));
    if (strcmp(name, "cpu") == 0)
        return 0;
    const bool is_auto = strcmp(name, "auto") == 0;
    TRY(weights_open_vectors(eng->model, &eng->weights, e));
    struct err why = {0};
    const int rc = open_module(eng, is_auto ? "cuda" : name, shape, &why);
    if (rc == 0) {
        shape->n_pages = eng->device->info.n_pages;
        return 0;
    }
    weights_close(&eng->weights);
    if (!is_auto) /* a device that cannot be used is a wrong setting here, not a broken file */
        return ERR_SET_FLAGS(e, why.code == ERR_UNSUPPORTED ? ERR_CONFIG : why.code, why.flags,
                             "%s", why.text);
    log_info("device=auto: the CPU computes, because %s", why.text);
    return 0;
}
