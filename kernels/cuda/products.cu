/*
 * A product from its matrix and its way: stored blocks or bfloat16 rows, the own kernel or
 * cuBLASLt, and a scratch for matrices that have no rows in bfloat16. One that is larger than
 * the scratch is taken in slices of whole outputs; where they end depends on K and the scratch
 * alone, so exact mode has one order of sums whatever the number of rows.
 */
#include <stdlib.h>

#include "count.cuh"
#include "lt.h"
#include "products_int.h"

extern "C" {
#include "base/check.h"
}

enum {
    SLICE_OUTPUTS_MULTIPLE = 64, /* tiles of both multipliers, and 16 bytes of any result */
    ALIGN_BYTES = 16
};

struct products {
    products_options o;
    lt *large;
    bf16 *scratch;
    void *fp8_memory; /* or NULL */
    fp8_scratch fp8;
    product_way forced;
    bool only_prepares; /* what is asked for is not computed */
};

static int take_fp8_scratch(products *p, struct err *e)
{
    const size_t bytes = fp8_scratch_bytes(p->o);
    if (bytes == 0)
        return 0;
    p->fp8_memory = device_alloc(bytes);
    if (!p->fp8_memory)
        return ERR_SET(
            e, ERR_NOMEM,
            "the device has no room for %zu MiB of scratch for products in FP8; lower "
            "kv.mb or step_tokens, or take device.weights=stored",
            bytes >> 20);
    p->fp8 = fp8_lay_out(p->o, p->fp8_memory);
    struct err why = {};
    if (fp8_try(p->large, p->fp8, p->o.fp8_inputs_max, nullptr, &why) != 0)
        return ERR_SET(e, ERR_UNSUPPORTED,
                       "the device has no products in FP8 (%s): take device.weights=stored",
                       why.text);
    stream_wait(nullptr);
    return 0;
}

int products_open(const products_options &o, products **out, struct err *e)
{
    *out = nullptr;
    products *p = (products *)calloc(1, sizeof(products));
    if (!p)
        return ERR_SET(e, ERR_NOMEM, "no memory for the plans of products");
    p->o = o;
    p->forced = WAY_NONE;
    int code = lt_open(&p->large, e);
    if (code == 0 && o.scratch_bytes > 0) {
        p->scratch = (bf16 *)device_alloc(o.scratch_bytes);
        if (!p->scratch)
            code = ERR_SET(e, ERR_NOMEM,
                           "the device has no room for %zu MiB of scratch for dequantised "
                           "weights; lower kv.mb or take a smaller model",
                           o.scratch_bytes >> 20);
    }
    if (code == 0)
        code = take_fp8_scratch(p, e);
    if (code != 0) {
        products_close(p);
        return code;
    }
    *out = p;
    return 0;
}

void products_close(products *p)
{
    if (!p)
        return;
    lt_close(p->large);
    if (p->scratch)
        device_free(p->scratch);
    if (p->fp8_memory)
        device_free(p->fp8_memory);
    free(p);
}

void products_force(products *p, product_way way)
{
    p->forced = way;
}

void count_product(const product_args &a, uint64_t row_bytes)
{
    const uint64_t n = (uint64_t)a.n_outputs;
    const uint64_t t = (uint64_t)a.n_rows;
    const uint64_t k = (uint64_t)a.n_inputs;
    const uint64_t written = t * n * product_out_bytes(a.kind);
    const uint64_t x_bytes = a.x_codes ? sizeof *a.x_codes : sizeof *a.x;
    uint64_t read = n * row_bytes + t * k * x_bytes + (a.bias ? n * sizeof(float) : 0);
    if (a.kind == PRODUCT_F32_ADD)
        read += written;
    count_op(DEVICE_PRODUCT, 1, read, written, 2 * t * n * k);
}

/* ---- one matrix */

/* Outputs that the scratch has room for at once: the whole matrix, or a multiple for slices. */
static int outputs_of_slice(const products *p, const matrix &w)
{
    const size_t row_bytes = (size_t)w.n_cols * sizeof(bf16);
    const size_t fit = p->o.scratch_bytes / row_bytes;
    if (fit >= (size_t)w.n_rows)
        return w.n_rows;
    return (int)(fit / SLICE_OUTPUTS_MULTIPLE * SLICE_OUTPUTS_MULTIPLE);
}

static int multiply_bf16(products *p, stream_t s, bool is_own, const product_args &a,
                         struct err *e)
{
    if (p->only_prepares) {
        if (!is_own)
            lt_prepare(p->large, s, a);
        return 0;
    }
    if (!is_own)
        return lt_multiply(p->large, s, a, e);
    few_rows_multiply(s, QUANT_BF16, a);
    return 0;
}

static int multiply_by_scratch(products *p, stream_t s, const matrix &w, bool is_own,
                               product_args a, struct err *e)
{
    const int most = outputs_of_slice(p, w);
    if (most == 0)
        return ERR_SET(e, ERR_LIMIT,
                       "the scratch of %zu bytes holds no %d rows of %d weights in bfloat16",
                       p->o.scratch_bytes, SLICE_OUTPUTS_MULTIPLE, w.n_cols);
    const size_t row_bytes = quant_row_bytes(w.type, (size_t)w.n_cols);
    const product_args whole = a;
    a.w = (const uint8_t *)p->scratch;
    for (int first = 0; first < w.n_rows; first += most) {
        const int left = w.n_rows - first;
        a.n_outputs = left < most ? left : most;
        a.bias = whole.bias ? whole.bias + first : nullptr;
        a.y = (uint8_t *)whole.y + (size_t)first * product_out_bytes(a.kind);
        if (!p->only_prepares)
            dequantize_rows(s, w.type, w.blocks + (size_t)first * row_bytes, a.n_outputs,
                            w.n_cols, p->scratch);
        TRY(multiply_bf16(p, s, is_own, a, e));
    }
    return 0;
}

static bool is_bias_to_bf16(const product_args &a)
{
    return a.bias && a.kind == PRODUCT_BF16;
}

static product_way way_of(const products *p, const matrix &w, const product_args &a)
{
    if (p->forced != WAY_NONE)
        return p->forced;
    product_case c = {};
    c.type = w.type;
    c.has_blocks = w.blocks;
    c.has_rows = w.rows;
    c.has_scratch = p->scratch;
    c.has_codes = w.codes;
    c.bias_to_bf16 = is_bias_to_bf16(a);
    c.exact = p->o.exact;
    c.n_rows = a.n_rows;
    return product_way_of(c);
}

/* What a way needs, which a forced one may lack. */
static bool can_go(const products *p, const matrix &w, product_way way, const product_args &a)
{
    switch (way) {
    case WAY_OWN_BLOCKS: return w.blocks && few_rows_takes(w.type);
    case WAY_OWN_ROWS: return w.rows;
    case WAY_OWN_SCRATCH: return w.blocks && p->scratch;
    case WAY_LT_ROWS: return w.rows && !is_bias_to_bf16(a);
    case WAY_LT_SCRATCH: return w.blocks && p->scratch && !is_bias_to_bf16(a);
    case WAY_OWN_FP8: return w.codes;
    case WAY_LT_FP8: return w.codes && p->fp8_memory && w.n_rows % FP8_OUTPUTS_MULTIPLE == 0;
    default: return false;
    }
}

static int go(products *p, stream_t s, const matrix &w, product_way way, product_args a,
              struct err *e)
{
    const bool is_own = way != WAY_LT_ROWS && way != WAY_LT_SCRATCH;
    switch (way) {
    case WAY_OWN_BLOCKS:
        a.w = w.blocks;
        if (!p->only_prepares)
            few_rows_multiply(s, w.type, a);
        return 0;
    case WAY_OWN_ROWS:
    case WAY_LT_ROWS: a.w = (const uint8_t *)w.rows; return multiply_bf16(p, s, is_own, a, e);
    case WAY_OWN_FP8:
        a.w = w.codes;
        a.w_scales = w.scales;
        if (p->only_prepares)
            return 0;
        few_rows_multiply(s, ROWS_E4M3, a);
        return 0;
    case WAY_LT_FP8:
        if (p->only_prepares) {
            fp8_prepare(p->large, p->fp8, s, w, a.n_rows);
            return 0;
        }
        return fp8_multiply(p->large, p->fp8, s, w, a, e);
    default: return multiply_by_scratch(p, s, w, is_own, a, e);
    }
}

int product(products *p, stream_t s, const matrix &stored, const bf16 *x, int n_rows,
            const float *bias, product_out kind, void *y, int y_stride, struct err *e)
{
    ASSERT(n_rows >= 0 && y_stride >= stored.n_rows);
    ASSERT((uintptr_t)x % ALIGN_BYTES == 0);
    if (n_rows == 0)
        return 0;
    matrix w = stored;
    if (w.type == QUANT_BF16 && !w.rows)
        w.rows = (const bf16 *)w.blocks; /* the same bytes */
    if (w.n_cols % PRODUCT_INPUTS_MULTIPLE != 0)
        return ERR_SET(e, ERR_UNSUPPORTED,
                       "a matrix of %d inputs cannot be multiplied on the device: their number "
                       "must be a multiple of %d; use the CPU for this model",
                       w.n_cols, PRODUCT_INPUTS_MULTIPLE);
    product_args a = {};
    a.n_outputs = w.n_rows;
    a.n_inputs = w.n_cols;
    a.x = x;
    a.n_rows = n_rows;
    a.bias = bias;
    a.kind = kind;
    a.y = y;
    a.y_stride = y_stride;
    const product_way way = way_of(p, w, a);
    if (!can_go(p, w, way, a)) {
        const struct quant_info *info = quant_find((uint32_t)w.type);
        return ERR_SET(e, ERR_UNSUPPORTED,
                       "no way to multiply %s weights on the device: no kernel for their "
                       "blocks, no rows in bfloat16 and no scratch for them",
                       info ? info->name : "unknown");
    }
    return go(p, s, w, way, a, e);
}

int product_prepare(products *p, stream_t s, const matrix &w, const bf16 *x, int n_rows,
                    const float *bias, product_out kind, void *y, int y_stride, struct err *e)
{
    p->only_prepares = true;
    const int code = product(p, s, w, x, n_rows, bias, kind, y, y_stride, e);
    p->only_prepares = false;
    return code;
}
