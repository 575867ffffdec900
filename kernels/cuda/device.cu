#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device_int.cuh"
#include "probe.cuh"

/* ------------------------------------------------------------------ errors, memory */

int device_failure(const char *what, struct err *e)
{
    const char *why = last_error();
    return why ? ERR_SET(e, ERR_IO, "%s: %s", what, why) : 0;
}

int device_settle(device *d, const char *what, struct err *e)
{
    stream_wait(d->stream);
    d->meta.n_in_flight = 0;
    return device_failure(what, e);
}

static int take(device *d, size_t bytes, bool is_pinned, const char *what, void **out,
                struct err *e)
{
    allocation *a = (allocation *)calloc(1, sizeof *a);
    void *memory = NULL;
    if (a)
        memory = is_pinned ? pinned_alloc(bytes) : device_alloc(bytes);
    if (!memory) {
        free(a);
        last_error();
        return ERR_SET(e, ERR_NOMEM, "%s: no %s memory for %s, which takes %zu MiB",
                       d->info.name, is_pinned ? "pinned host" : "device", what, bytes >> 20);
    }
    *a = {memory, is_pinned, d->allocations};
    d->allocations = a;
    *out = memory;
    return 0;
}

int device_take(device *d, size_t bytes, const char *what, void **out, struct err *e)
{
    return take(d, bytes, false, what, out, e);
}

int device_take_pinned(device *d, size_t bytes, const char *what, void **out, struct err *e)
{
    return take(d, bytes, true, what, out, e);
}

/* ------------------------------------------------------------------ opening */

static int check_shape(const device_options *o, const device_model *m, struct err *e)
{
    if (o->kv_type == KV_INT8)
        return ERR_SET(e, ERR_UNSUPPORTED, "a device keeps keys and values as bf16 or f32");
    const size_t heads = m->n_heads * m->head_dim, inputs = PRODUCT_INPUTS_MULTIPLE;
    if (m->head_dim % 16 != 0 || m->dim % inputs != 0 || heads % inputs != 0 ||
        m->ffn_dim % inputs != 0)
        return ERR_SET(e, ERR_UNSUPPORTED,
                       "the device computes with widths that are multiples of %zu; this model "
                       "has %zu, %zu heads of %zu and an inner width of %zu: take --device cpu",
                       inputs, m->dim, m->n_heads, m->head_dim, m->ffn_dim);
    return 0;
}

static int open_kv(device *d, struct err *e)
{
    const device_model *m = &d->model;
    void *data = NULL;
    d->info.kv_bytes = d->plan.n_pages * d->plan.page;
    d->info.n_pages = d->plan.n_pages;
    TRY(device_take(d, d->info.kv_bytes, "the KV cache", &data, e));
    d->kv = {d->options.kv_type, data,
             (int)m->n_layers,   (int)d->plan.n_pages,
             (int)m->n_kv_heads, (int)m->head_dim};
    return device_take_pinned_array(d, d->plan.page, "a KV page", &d->page, e);
}

static int open_products(device *d, struct err *e)
{
    return products_open(device_products_options(&d->options, &d->plan), &d->products_of, e);
}

/* KV files of devices whose products are others do not mix, nor do those of the modes. */
static void name_arithmetic(device *d)
{
    char *name = d->info.arithmetic;
    const size_t n = sizeof d->info.arithmetic;
    const char *const modes[2][2] = {{"bf16", "exact"}, {"fp8", "fp8-exact"}};
    const char *mode = modes[d->options.fp8][d->options.exact];
    if (strcmp(d->info.name, "cuda-emu") == 0)
        snprintf(name, n, "emu-%s", mode);
    else
        snprintf(name, n, "sm%d-%s", d->info.compute_capability % 1000, mode);
}

static int use_device(device *d, struct err *e)
{
    TRY(probe_device(d->options.ordinal, &d->info, e));
    TRY(device_check_fp8(&d->options, &d->info, e));
    device_facts facts;
    if (!device_use((int)d->options.ordinal, &facts)) {
        const char *why = last_error();
        return ERR_SET(e, ERR_UNSUPPORTED, "%s cannot be used: %s", d->info.name,
                       why ? why : "it does not say why");
    }
    d->info.memory_bytes = facts.memory_bytes;
    d->info.free_bytes = facts.free_bytes;
    d->n_processors = facts.n_processors;
    d->shared_bytes_max = facts.shared_bytes_max;
    name_arithmetic(d);
    return 0;
}

static int open_parts(device *d, const device_model *m, struct err *e)
{
    TRY(check_shape(&d->options, m, e));
    TRY(use_device(d, e));
    TRY(device_plan_memory(&d->options, m, &d->info, d->n_processors, &d->plan, e));
    d->info.block_rows = (size_t)attend_block_rows((int)m->n_heads, (int)m->n_kv_heads,
                                                   (int)m->head_dim, d->shared_bytes_max);
    d->info.weights_bytes = d->plan.weights;
    d->info.activations_bytes = d->plan.activations + d->plan.step + d->plan.products;
    d->stream = stream_open();
    TRY(device_failure("the device gives no stream", e));
    TRY(device_copy_weights(d, m, e));
    TRY(open_products(d, e));
    TRY(device_buffers_open(d, e));
    TRY(device_heads_open(d, e));
    TRY(open_kv(d, e));
    TRY(device_try_products(d, e));
    return device_settle(d, "the device cannot be opened", e);
}

static void close_device(device *d)
{
    if (!d)
        return;
    if (d->stream)
        stream_wait(d->stream);
    device_buffers_close(d);
    device_free_graphs(d);
    if (d->products_of)
        products_close(d->products_of);
    for (allocation *a = d->allocations, *next; a; a = next) {
        next = a->next;
        if (a->is_pinned)
            pinned_free(a->memory);
        else
            device_free(a->memory);
        free(a);
    }
    if (d->stream)
        stream_close(d->stream);
    last_error(); /* nobody is left to hear it */
    free(d->layers);
    free(d->heads.from_rows);
    free(d->heads.to_rows);
    free(d);
}

static int open_device(const device_options *o, const device_model *m, device **out,
                       struct err *e)
{
    *out = NULL;
    device *d = (device *)calloc(1, sizeof *d);
    if (!d)
        return ERR_SET(e, ERR_NOMEM, "no memory for a device");
    d->options = *o;
    d->model = *m;
    d->model.layers = NULL;
    d->model.heads = NULL;
    const int rc = open_parts(d, m, e);
    if (rc != 0) {
        close_device(d);
        return rc;
    }
    *out = d;
    return 0;
}

/* ------------------------------------------------------------------ the table */

static void info_of(const device *d, device_info *out)
{
    *out = d->info;
}

static void counters_of(const device *d, device_counters *out)
{
    *out = d->counters;
}

extern "C" const device_backend *sheaf_device_backend(void);

extern "C" const device_backend *sheaf_device_backend(void)
{
    static const device_backend backend = {
        DEVICE_ABI,
        open_device,
        close_device,
        info_of,
        counters_of,
        device_run_step,
        device_read_logits,
        device_read_best,
        device_read_candidates,
        device_read_hidden,
        device_wait,
        device_copy_page,
        device_move_token,
        device_read_page,
        device_write_page,
        measure_peaks,
        device_keep_hidden,
        device_run_heads,
    };
    return &backend;
}
