/*
 * How long a product takes by each way, on a device: a matrix of an 8B model's inner width, for
 * numbers of rows around the borders that product_way.cu draws by estimate, and for prompts. A
 * line of JSON for each; the weights are more than a cache holds. "FP8" is the bfloat16 matrix
 * rounded to E4M3, on devices that multiply such.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "products_int.h"

extern "C" {
#include "base/clock.h"
#include "base/rng.h"
}

enum { INPUTS = 4096, OUTPUTS = 28672, ROWS_MAX = 2048, ROUNDS = 5, TIMES = 20 };

static const quant_type TYPES[] = {QUANT_BF16, QUANT_Q8_0, QUANT_Q4_0};
static const int ROWS[] = {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 2048};
static const char *const NAMES[] = {"own-blocks", "own-rows", "own-scratch", "lt-rows",
                                    "lt-scratch", "own-fp8",  "lt-fp8"};

struct bench {
    products *plans;
    matrix w;
    bf16 *x;
    float *y;
};

static void stop(const char *what, const char *why)
{
    fprintf(stderr, "bench_products: %s: %s\n", what, why);
    exit(1);
}

static void *take(size_t bytes)
{
    void *memory = device_alloc(bytes);
    if (!memory)
        stop("memory", "there is not enough of it");
    return memory;
}

/* Stored bytes that are numbers: small codes, and scales of 2^-8. */
static void fill(void *device, size_t bytes, size_t block_bytes, bool has_scale)
{
    uint8_t *host = (uint8_t *)malloc(bytes);
    if (!host)
        stop("memory", "there is not enough of the host's");
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        const uint64_t bits = rng_bits(1, 0, i);
        memcpy(host + i, &bits, sizeof bits);
    }
    for (size_t i = 0; i + block_bytes <= bytes; i += block_bytes) {
        /* A half float of 2^-8, or a bfloat16 between 2^-7 and 2^-5 of either sign. */
        host[i] = has_scale ? 0x00 : host[i];
        host[i + 1] = has_scale ? 0x1c : (uint8_t)((host[i + 1] & 0x80) | 0x3c);
    }
    copy_to_device(NULL, device, host, bytes);
    stream_wait(NULL);
    free(host);
}

static void open_matrix(bench *b, quant_type type, bool has_blocks)
{
    const size_t bytes = OUTPUTS * quant_row_bytes(type, INPUTS);
    const bool is_bf16 = type == QUANT_BF16;
    void *memory = take(bytes);
    fill(memory, bytes, quant_find((uint32_t)type)->block_bytes, !is_bf16);
    b->w = {type, OUTPUTS, INPUTS, has_blocks ? (const uint8_t *)memory : NULL,
            has_blocks ? NULL : (const bf16 *)memory};
}

/* The open matrix as E4M3 rows. */
static void round_matrix(bench *b)
{
    matrix stored = b->w;
    stored.blocks = (const uint8_t *)b->w.rows;
    uint8_t *codes = (uint8_t *)take((size_t)OUTPUTS * INPUTS);
    float *scales = (float *)take(OUTPUTS * sizeof(float));
    quantize_fp8(NULL, stored, codes, scales);
    stream_wait(NULL);
    device_free((void *)b->w.rows);
    b->w = {stored.type, OUTPUTS, INPUTS, NULL, NULL, codes, scales};
}

static void close_matrix(bench *b)
{
    device_free((void *)b->w.blocks);
    device_free((void *)b->w.rows);
    device_free((void *)b->w.codes);
    device_free((void *)b->w.scales);
}

static double microseconds(bench *b, int n_rows)
{
    double best = 1e30;
    struct err e = {};
    for (int round = 0; round <= ROUNDS; round++) {
        stream_wait(NULL);
        const int64_t began_us = clock_mono_us();
        for (int i = 0; i < TIMES; i++)
            if (product(b->plans, NULL, b->w, b->x, n_rows, NULL, PRODUCT_F32, b->y, OUTPUTS,
                        &e) != 0)
                return -1;
        stream_wait(NULL);
        const char *why = last_error();
        if (why)
            stop("a product", why);
        const double us = (double)(clock_mono_us() - began_us) / TIMES;
        best = round > 0 && us < best ? us : best; /* the first warms up and plans */
    }
    return best;
}

static void measure(bench *b, product_way way, int n_rows)
{
    products_force(b->plans, way);
    const double us = microseconds(b, n_rows);
    if (us < 0)
        return; /* what has no such way */
    const size_t row_bytes =
        b->w.codes ? INPUTS + sizeof(float) : quant_row_bytes(b->w.type, INPUTS);
    const double bytes = (double)OUTPUTS * (double)row_bytes;
    printf("{\"type\": \"%s\", \"way\": \"%s\", \"rows\": %d, \"us\": %.2f, \"stored_gb_s\": "
           "%.0f, \"tflop_s\": %.1f}\n",
           b->w.codes ? "FP8" : quant_find((uint32_t)b->w.type)->name, NAMES[way], n_rows, us,
           bytes / us / 1e3, 2.0 * OUTPUTS * INPUTS * n_rows / us / 1e6);
    fflush(stdout);
}

static void measure_all(bench *b)
{
    for (const int n_rows : ROWS)
        for (int way = WAY_OWN_BLOCKS; way < WAY_NONE; way++)
            measure(b, (product_way)way, n_rows);
}

int main()
{
    device_facts facts;
    struct err e = {};
    if (!device_use(0, &facts))
        stop("no device", last_error());
    products_options o = {};
    o.n_rows_max = ROWS_MAX;
    o.scratch_bytes = (size_t)OUTPUTS * INPUTS * sizeof(bf16);
    o.fp8_inputs_max = INPUTS;
    o.fp8_outputs_max = OUTPUTS;
    bench b = {};
    if (products_open(o, &b.plans, &e) != 0)
        stop("products", e.text);
    b.x = (bf16 *)take((size_t)ROWS_MAX * INPUTS * sizeof(bf16));
    b.y = (float *)take((size_t)ROWS_MAX * OUTPUTS * sizeof(float));
    fill(b.x, (size_t)ROWS_MAX * INPUTS * sizeof(bf16), sizeof(bf16), false);
    for (const quant_type type : TYPES) {
        open_matrix(&b, type, type != QUANT_BF16);
        measure_all(&b);
        close_matrix(&b);
    }
    if (facts.compute_capability >= 89) {
        open_matrix(&b, QUANT_BF16, false);
        round_matrix(&b);
        measure_all(&b);
        close_matrix(&b);
    }
    products_close(b.plans);
    return 0;
}
