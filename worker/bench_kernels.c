/*
 * sheaf bench kernels: every kernel that counts beside what bounds it, in one process.
 *
 * A figure is a median of ratios. In each repeat every thread runs the kernel on data of its
 * own, and right after it the loops of kernels/peak.h; the rates of one repeat make one ratio.
 * Joins, hand-outs of work and cold activations are left out: that is `bench engine`'s.
 *
 * Products are those of the demo model's feed-forward: 576 x 1,536 and back. Up to
 * STREAM_ROWS_MAX rows are bound by the reading of weights, so their matrices are as many as
 * fill STREAM_BYTES for a thread, as in peak_read, and each is read once before any is again.
 * The bytes are those of the packed weights.
 *
 * Attention is one KV head of a group of sequences on a shared prefix: its query rows against
 * all keys, 2 * HD operations for a score and as many for its part of the value.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/limits.h"
#include "base/rng.h"
#include "bench.h"
#include "bench_median.h"
#include "engine/memory.h"
#include "peak.h"

enum {
    REPEATS_MAX = 99,
    STREAM_ROWS_MAX = 8,
    STREAM_BYTES = 256 << 20, /* a thread */
    FLOAT_ROWS = 128,
    HEAD_DIM = 64,
    SEQUENCES = 32,
    HEADS = 3, /* query heads of a KV head */
    QUERIES = SEQUENCES * HEADS,
    KEYS = 2048,
    KV_PAGES = KEYS / KV_PAGE_TOKENS,
};

/* Each op is held against the peak of the instruction that does its operations. */
struct peak_kind {
    const char *name;
    int (*rate)(enum kernels_isa isa, size_t n_threads, double *rate, struct err *e);
};
static const struct peak_kind int8 = {"int8", peak_int8};
static const struct peak_kind int16 = {"int16", peak_int16};
static const struct peak_kind f32 = {"f32", peak_f32};

static const struct {
    enum quant_type type;
    const struct peak_kind *peak;
} products[] = {{QUANT_Q4_0, &int8},
                {QUANT_Q4_1, &int8},
                {QUANT_Q8_0, &int8},
                {QUANT_BF16, &f32},
                {QUANT_F32, &f32}};
static const struct {
    size_t n_cols, n_rows;
} shapes[] = {{576, 1536}, {1536, 576}};
static const size_t row_counts[] = {1, 2, 4, 8, 32, 128, 256};
static const struct {
    enum kv_type type;
    const char *name;
    const struct peak_kind *peak;
} kv_types[] = {{KV_BF16, "bf16", &f32}, {KV_F32, "f32", &f32}, {KV_INT8, "int8", &int16}};

#define N(array) (sizeof(array) / sizeof(array)[0])

struct figure {
    const char *op, *type;
    size_t n_rows, n_cols, n_outs; /* attention: queries, keys, 0 */
    const struct peak_kind *peak;
    double units, bytes; /* of a round; bytes 0: not bound by reading */
    struct median rate, peak_ratio, read_ratio;
};

struct kernel_bench {
    struct kernels kernels;
    size_t n_threads, repeats;
    const char *only; /* figures whose name holds this; NULL: all */
    struct figure figures[N(products) * N(shapes) * N(row_counts) + N(kv_types)];
    size_t n_figures;
};

static void name_figure(const struct figure *f, char *out, size_t capacity)
{
    if (f->n_outs > 0)
        snprintf(out, capacity, "product %s %zux%zu, rows %zu", f->type, f->n_cols, f->n_outs,
                 f->n_rows);
    else
        snprintf(out, capacity, "attention %s, queries %zu, keys %zu", f->type, f->n_rows,
                 f->n_cols);
}

/* ------------------------------------------------------------------ measuring */

static int measure(const struct kernel_bench *b, struct figure *f, const struct peak_work *work,
                   struct err *e)
{
    double rates[REPEATS_MAX], peaks[REPEATS_MAX], reads[REPEATS_MAX];
    for (size_t i = 0; i < b->repeats; i++) {
        double peak, read;
        TRY(peak_work_rate(work, b->n_threads, &rates[i], e));
        TRY(f->peak->rate(b->kernels.isa, b->n_threads, &peak, e));
        peaks[i] = rates[i] / peak;
        if (f->bytes == 0)
            continue;
        TRY(peak_read(b->n_threads, &read, e));
        reads[i] = rates[i] / f->units * f->bytes / read;
    }
    f->rate = median_of(rates, b->repeats);
    f->peak_ratio = median_of(peaks, b->repeats);
    if (f->bytes > 0)
        f->read_ratio = median_of(reads, b->repeats);
    return 0;
}

/* ------------------------------------------------------------------ products */

struct product_thread {
    struct weight w;
    void *copies; /* n_copies of the packed matrix; owned */
    size_t copies_bytes, copy_bytes, n_copies, next;
    struct act x;
    float *y;
    void *block; /* x and y; owned */
    size_t block_bytes;
};

struct product {
    const struct kernels *kernels;
    struct product_thread *threads;
};

static void multiply(void *ctx, size_t thread)
{
    const struct product *p = ctx;
    struct product_thread *t = &p->threads[thread];
    t->w.data = (uint8_t *)t->copies + t->next * t->copy_bytes;
    t->next = t->next + 1 < t->n_copies ? t->next + 1 : 0;
    p->kernels->matmul(&t->w, &t->x, 0, t->w.n_panels, MATMUL_SET, t->y, t->w.n_rows);
}

/* Stored rows with values of an ordinary size: a block's scales come first, then any codes. */
static void fill_stored(enum quant_type type, size_t n, uint8_t *out)
{
    const struct quant_info *info = quant_find(type);
    const uint16_t scale = quant_f32_to_f16(0.01f);
    for (size_t i = 0; i < n / info->block_elems; i++) {
        uint8_t *block = out + i * info->block_bytes;
        const float value = (float)rng_uniform(1, 0, i) - 0.5f;
        const uint16_t half = quant_f32_to_bf16(value);
        if (type == QUANT_F32) {
            memcpy(block, &value, sizeof value);
        } else if (type == QUANT_BF16) {
            memcpy(block, &half, sizeof half);
        } else {
            for (size_t j = 0; j < info->block_bytes; j++)
                block[j] = (uint8_t)rng_bits(1, i, j);
            memcpy(block, &scale, sizeof scale);
            if (type == QUANT_Q4_1)
                memcpy(block + sizeof scale, &scale, sizeof scale);
        }
    }
}

static int pack_copies(struct product_thread *t, enum quant_type type, const struct figure *f,
                       struct err *e)
{
    const struct quant_info *info = quant_find(type);
    const size_t n = f->n_cols * f->n_outs;
    t->copy_bytes = weight_packed_bytes(type, f->n_outs, f->n_cols);
    ASSERT(t->copy_bytes > 0 && t->copy_bytes % KERNELS_ALIGN == 0);
    t->n_copies = f->bytes > 0 ? STREAM_BYTES / t->copy_bytes : 1;
    t->copies_bytes = t->n_copies * t->copy_bytes;
    TRY(memory_take(t->copies_bytes, "the weights of a kernel's bench", &t->copies, e));
    uint8_t *stored = malloc(n / info->block_elems * info->block_bytes);
    if (!stored)
        return ERR_SET(e, ERR_NOMEM, "no memory for a matrix");
    fill_stored(type, n, stored);
    const int rc = weight_pack(&t->w, type, f->n_outs, f->n_cols, stored, t->copies, e);
    free(stored);
    TRY(rc);
    for (size_t i = 1; i < t->n_copies; i++)
        memcpy((uint8_t *)t->copies + i * t->copy_bytes, t->copies, t->copy_bytes);
    return 0;
}

static uint8_t *lay(uint8_t **at, size_t bytes)
{
    uint8_t *here = *at;
    *at += (bytes + KERNELS_ALIGN - 1) / KERNELS_ALIGN * KERNELS_ALIGN;
    return here;
}

static int make_rows(const struct kernels *k, struct product_thread *t, const struct figure *f,
                     struct err *e)
{
    const size_t n = f->n_rows * f->n_cols, n_blocks = n / ACT_BLOCK;
    t->block_bytes = (n + f->n_rows * f->n_outs + 3 * n_blocks) * 4 + n + 6 * KERNELS_ALIGN;
    TRY(memory_take(t->block_bytes, "the rows of a kernel's bench", &t->block, e));
    uint8_t *at = t->block;
    t->x = (struct act){.kind = f->peak == &int8 ? ACT_INT8 : ACT_F32,
                        .n_rows = f->n_rows,
                        .n_cols = f->n_cols,
                        .f32 = (float *)lay(&at, n * sizeof(float)),
                        .q = (int8_t *)lay(&at, n),
                        .scale = (float *)lay(&at, n_blocks * sizeof(float)),
                        .sum = (int32_t *)lay(&at, n_blocks * sizeof(int32_t)),
                        .scaled_sum = (float *)lay(&at, n_blocks * sizeof(float))};
    t->y = (float *)lay(&at, f->n_rows * f->n_outs * sizeof(float));
    for (size_t i = 0; i < n; i++)
        t->x.f32[i] = (float)rng_uniform(2, 0, i) - 0.5f;
    if (t->x.kind == ACT_INT8)
        k->quantize(&t->x, 0, f->n_rows, 0, f->n_cols);
    return 0;
}

static int measure_product(const struct kernel_bench *b, enum quant_type type, struct figure *f,
                           struct err *e)
{
    int rc = 0;
    struct product p = {.kernels = &b->kernels,
                        .threads = calloc(b->n_threads, sizeof p.threads[0])};
    if (!p.threads)
        return ERR_SET(e, ERR_NOMEM, "out of memory");
    for (size_t i = 0; rc == 0 && i < b->n_threads; i++) {
        rc = pack_copies(&p.threads[i], type, f, e);
        if (rc == 0)
            rc = make_rows(&b->kernels, &p.threads[i], f, e);
    }
    const struct peak_work work = {.round = multiply, .ctx = &p, .units = f->units};
    if (rc == 0)
        rc = measure(b, f, &work, e);
    for (size_t i = 0; i < b->n_threads; i++) {
        memory_give_back(p.threads[i].copies, p.threads[i].copies_bytes);
        memory_give_back(p.threads[i].block, p.threads[i].block_bytes);
    }
    free(p.threads);
    return rc;
}

/* ------------------------------------------------------------------ attention */

struct attention_thread {
    struct attend a;
    const float *q[QUERIES];
    float *out[QUERIES];
    int32_t row_pos[QUERIES];
    const void *pages[KV_PAGES];
    void *block; /* what they point to; owned */
    size_t block_bytes;
};

struct attention {
    const struct kernels *kernels;
    struct attention_thread *threads;
};

static void attend(void *ctx, size_t thread)
{
    const struct attention *x = ctx;
    struct attention_thread *t = &x->threads[thread];
    for (size_t i = 0; i < QUERIES; i++)
        t->a.m[i] = -INFINITY;
    memset(t->a.d, 0, QUERIES * LANES * sizeof(float));
    memset(t->a.o, 0, QUERIES * HEAD_DIM * sizeof(float));
    x->kernels->attend(&t->a);
    x->kernels->attend_finish(&t->a, t->out);
}

static void write_keys(const struct kernels *k, enum kv_type type, void *page, size_t number)
{
    float key[HEAD_DIM], value[HEAD_DIM];
    for (size_t slot = 0; slot < KV_PAGE_TOKENS; slot++) {
        for (size_t i = 0; i < HEAD_DIM; i++) {
            key[i] = (float)rng_uniform(3, number * KV_PAGE_TOKENS + slot, i) - 0.5f;
            value[i] = (float)rng_uniform(4, number * KV_PAGE_TOKENS + slot, i) - 0.5f;
        }
        k->kv_write(type, HEAD_DIM, page, slot, key, value);
    }
}

static int open_attention(const struct kernels *k, enum kv_type type,
                          struct attention_thread *t, struct err *e)
{
    const size_t page_bytes = kv_page_bytes(type, HEAD_DIM);
    t->block_bytes = KV_PAGES * (page_bytes + KERNELS_ALIGN) +
                     QUERIES * (1 + LANES + 3 * HEAD_DIM) * sizeof(float) + 5 * KERNELS_ALIGN;
    TRY(memory_take(t->block_bytes, "the keys of a kernel's bench", &t->block, e));
    uint8_t *at = t->block;
    for (size_t i = 0; i < KV_PAGES; i++) {
        uint8_t *page = lay(&at, page_bytes);
        write_keys(k, type, page, i);
        t->pages[i] = page;
    }
    float *q = (float *)lay(&at, QUERIES * HEAD_DIM * sizeof(float));
    float *out = (float *)lay(&at, QUERIES * HEAD_DIM * sizeof(float));
    for (size_t i = 0; i < QUERIES; i++) {
        t->q[i] = q + i * HEAD_DIM;
        t->out[i] = out + i * HEAD_DIM;
        t->row_pos[i] = KEYS;
    }
    for (size_t i = 0; i < QUERIES * HEAD_DIM; i++)
        q[i] = (float)rng_uniform(5, 0, i) * 4 - 2;
    t->a = (struct attend){.kv_type = type,
                           .head_dim = HEAD_DIM,
                           .scale = 0.125f,
                           .n_rows = QUERIES,
                           .q = t->q,
                           .row_pos = t->row_pos,
                           .pages = t->pages,
                           .n_keys = KEYS,
                           .m = (float *)lay(&at, QUERIES * sizeof(float)),
                           .d = (float *)lay(&at, QUERIES * LANES * sizeof(float)),
                           .o = (float *)lay(&at, QUERIES * HEAD_DIM * sizeof(float))};
    return 0;
}

static int measure_attention(const struct kernel_bench *b, enum kv_type type, struct figure *f,
                             struct err *e)
{
    int rc = 0;
    struct attention x = {.kernels = &b->kernels,
                          .threads = calloc(b->n_threads, sizeof x.threads[0])};
    if (!x.threads)
        return ERR_SET(e, ERR_NOMEM, "out of memory");
    for (size_t i = 0; rc == 0 && i < b->n_threads; i++)
        rc = open_attention(&b->kernels, type, &x.threads[i], e);
    const struct peak_work work = {.round = attend, .ctx = &x, .units = f->units};
    if (rc == 0)
        rc = measure(b, f, &work, e);
    for (size_t i = 0; i < b->n_threads; i++)
        memory_give_back(x.threads[i].block, x.threads[i].block_bytes);
    free(x.threads);
    return rc;
}

/* ------------------------------------------------------------------ all of them */

/* The next figure, when it is wanted. */
static struct figure *add_figure(struct kernel_bench *b, struct figure f)
{
    char name[64];
    name_figure(&f, name, sizeof name);
    if (b->only && !strstr(name, b->only))
        return NULL;
    ASSERT(b->n_figures < N(b->figures));
    b->figures[b->n_figures] = f;
    return &b->figures[b->n_figures++];
}

static int bench_product(struct kernel_bench *b, size_t product, size_t shape, size_t rows,
                         struct err *e)
{
    const enum quant_type type = products[product].type;
    const bool is_streamed = products[product].peak == &int8 && rows <= STREAM_ROWS_MAX;
    struct figure f = {
        .op = "product",
        .type = quant_find(type)->name,
        .n_rows = rows,
        .n_cols = shapes[shape].n_cols,
        .n_outs = shapes[shape].n_rows,
        .peak = products[product].peak,
    };
    f.units = 2.0 * (double)rows * (double)f.n_cols * (double)f.n_outs;
    if (is_streamed)
        f.bytes = (double)weight_packed_bytes(type, f.n_outs, f.n_cols);
    struct figure *wanted = add_figure(b, f);
    return wanted ? measure_product(b, type, wanted, e) : 0;
}

static int bench_all(struct kernel_bench *b, struct err *e)
{
    for (size_t i = 0; i < N(products); i++)
        for (size_t j = 0; j < N(shapes); j++)
            for (size_t r = 0; r < N(row_counts); r++)
                if (products[i].peak == &int8 || row_counts[r] == FLOAT_ROWS)
                    TRY(bench_product(b, i, j, row_counts[r], e));
    for (size_t i = 0; i < N(kv_types); i++) {
        const struct figure f = {.op = "attention",
                                 .type = kv_types[i].name,
                                 .n_rows = QUERIES,
                                 .n_cols = KEYS,
                                 .peak = kv_types[i].peak,
                                 .units = 4.0 * HEAD_DIM * QUERIES * KEYS};
        struct figure *wanted = add_figure(b, f);
        if (wanted)
            TRY(measure_attention(b, kv_types[i].type, wanted, e));
    }
    return b->n_figures > 0 ? 0
                            : ERR_SET(e, ERR_USAGE, "no figure's name holds \"%s\"", b->only);
}

/* ------------------------------------------------------------------ printing */

static json_t *figure_json(const struct figure *f)
{
    json_t *o = json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:s, s:f, s:f, s:f}", "op", f->op, "type", f->type, "rows",
        (json_int_t)f->n_rows, f->n_outs > 0 ? "inputs" : "keys", (json_int_t)f->n_cols,
        "outputs", (json_int_t)f->n_outs, "peak", f->peak->name, "gop_s", f->rate.value / 1e9,
        "peak_ratio", f->peak_ratio.value, "peak_spread", f->peak_ratio.spread);
    if (o && f->bytes > 0) {
        json_object_set_new(o, "read_ratio", json_real(f->read_ratio.value));
        json_object_set_new(o, "read_spread", json_real(f->read_ratio.spread));
    }
    return o;
}

static void print_json(const struct kernel_bench *b)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < b->n_figures; i++)
        json_array_append_new(rows, figure_json(&b->figures[i]));
    json_t *root =
        json_pack("{s:s, s:I, s:I, s:o}", "kernels", b->kernels.name, "threads",
                  (json_int_t)b->n_threads, "repeats", (json_int_t)b->repeats, "figures", rows);
    json_dumpf(root, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(root);
}

static void print_text(const struct kernel_bench *b)
{
    printf("%s kernels, %zu threads; medians of %zu with (greatest - smallest) / median\n",
           b->kernels.name, b->n_threads, b->repeats);
    for (size_t i = 0; i < b->n_figures; i++) {
        const struct figure *f = &b->figures[i];
        char name[64];
        name_figure(f, name, sizeof name);
        printf("%-38s %7.1f GOP/s  %.2f of the %s peak (%.2f)", name, f->rate.value / 1e9,
               f->peak_ratio.value, f->peak->name, f->peak_ratio.spread);
        if (f->bytes > 0)
            printf("  %.2f of the read bandwidth (%.2f)", f->read_ratio.value,
                   f->read_ratio.spread);
        putchar('\n');
    }
}

static size_t choose_threads(const struct settings *s)
{
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    const size_t n = s->threads > 0 ? (size_t)s->threads : online > 0 ? (size_t)online : 1;
    return n < PEAK_THREADS_MAX ? n : PEAK_THREADS_MAX;
}

static int measure_and_print(struct kernel_bench *b, const struct cli *cli, struct err *e)
{
    if (cli->repeats < 1 || cli->repeats > REPEATS_MAX)
        return ERR_SET(e, ERR_USAGE, "--repeats is 1 to %d", REPEATS_MAX);
    b->n_threads = choose_threads(&cli->settings);
    b->repeats = (size_t)cli->repeats;
    b->only = cli->n_args > 1 ? cli->args[1] : NULL;
    TRY(kernels_open(&b->kernels, e));
    TRY(bench_all(b, e));
    if (cli->json)
        print_json(b);
    else
        print_text(b);
    return 0;
}

int bench_kernels(struct cli *cli, struct err *e)
{
    struct kernel_bench *b = calloc(1, sizeof *b);
    const int rc =
        b ? measure_and_print(b, cli, e) : ERR_SET(e, ERR_NOMEM, "no memory for the figures");
    free(b);
    return rc == 0 ? 0 : cli_exit_code(e);
}
