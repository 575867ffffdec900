/*
 * The arithmetic: each op once, as a slot of struct kernels.
 *
 * Every slot has twins: <op>_ref.c (plain C, -ffp-contract=off), <op>_avx2.c, <op>_avx512.c.
 * kernels_open fills the table with ref, then overwrites it with what the CPU can run. All
 * twins give the same bits: the order of every floating-point operation below is part of the
 * contract, and where a fused multiply-add is meant it is written fma(). Nothing depends on how
 * many rows are computed together, on the row's place among them, or on how the work is cut
 * over threads. That is what makes "the levers never change an answer" an equality.
 *
 * Letters: T rows of a step, K input width, N output width, H query heads, KVH KV heads,
 * HD head dim, V vocabulary. All float arrays are row-major and 64-byte aligned at their
 * start unless said otherwise; outputs never alias inputs unless said otherwise.
 *
 * Thread: any number of threads may call slots at once on disjoint outputs. No slot allocates.
 */
#ifndef SHEAF_KERNELS_H
#define SHEAF_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "quant.h"

enum kernels_isa { KERNELS_REF, KERNELS_AVX2, KERNELS_AVX512 };

enum {
    KERNELS_ALIGN = 64,
    PANEL_COLS = 16, /* output columns that stand side by side in packed weights */
    ACT_BLOCK = 32,  /* inputs that share one activation scale */
    LANES = 16,      /* partial sums of every float reduction */
};

/* ------------------------------------------------------------------ packed weights */

/*
 * A matrix of N rows (outputs) and K columns (inputs), packed in panels of 16 outputs so that
 * one vector holds the same inputs of 16 neighbouring outputs. N is padded to whole panels
 * with zero weights. One packed copy serves every twin and every number of rows. The inner
 * layout is described in kernels/pack.c and private to kernels/.
 */
struct weight {
    enum quant_type type; /* of the file's rows; the packed values equal them exactly */
    size_t n_rows;        /* N */
    size_t n_cols;        /* K; a multiple of 32 for quantised types */
    size_t n_panels;      /* (N + 15) / 16 */
    size_t panel_bytes;   /* distance between panels */
    uint8_t *data;        /* borrowed: n_panels * panel_bytes, 64-byte aligned */
};

/* Bytes that weight_pack needs at dst for this shape. 0: the shape cannot be packed. */
size_t weight_packed_bytes(enum quant_type type, size_t n_rows, size_t n_cols);
/* A matrix that has everything but its data. The shape can be packed. */
struct weight weight_shape(enum quant_type type, size_t n_rows, size_t n_cols);
/* Packs n_rows stored rows that lie row_bytes apart at rows. dst is borrowed by *w. */
int weight_pack(struct weight *w, enum quant_type type, size_t n_rows, size_t n_cols,
                const void *rows, void *dst, struct err *e);

/* ------------------------------------------------------------------ activations */

/*
 * T rows of K inputs. ACT_INT8 rows carry the quantised form beside the floats: in each
 * 32-block scale = max|x| / 127, q = nearest-even(x / scale as x * (127 / max|x|)), all zero
 * for a block of zeros; sum = the block's integer sum of q; scaled_sum = scale * (float)sum.
 */
enum act_kind { ACT_F32, ACT_INT8 };

struct act {
    enum act_kind kind;
    size_t n_rows;     /* T */
    size_t n_cols;     /* K */
    float *f32;        /* [T, K] */
    int8_t *q;         /* [T, K] */
    float *scale;      /* [T, K / 32] */
    int32_t *sum;      /* [T, K / 32] */
    float *scaled_sum; /* [T, K / 32] */
};

/* ------------------------------------------------------------------ attention */

/* The numbers are part of the format of KV files. */
enum kv_type { KV_F32, KV_BF16, KV_INT8 };

/*
 * One KV page of one layer and one KV head: KV_PAGE_TOKENS (32) keys, then as many values.
 * Keys lie as [HD / 2][32 keys][2 dims], values as [16 token pairs][HD][2 tokens], both in
 * the element type; so a vector of 16 pairs feeds either a pairwise dot instruction or two
 * widened multiply-adds without a shuffle.
 *
 * KV_INT8: a key and a value are HD codes with a scale each: scale = max|x| / 127, code =
 * nearest-even(x * (127 / max|x|)); scale 0 and codes 0 where max|x| is below 2^-112, scale NaN
 * and codes 0 where an x is an infinity or a NaN. Keys lie as [HD / 4][32 keys][4 dims] of
 * unsigned bytes code + 128, then values as [16 token pairs][HD][2 tokens] of signed bytes,
 * then the 32 floats that scale the keys and the 32 that scale the values; so a vector of 16
 * quads gives dot instructions over words the same dims of 16 keys without a shuffle, and one
 * of 16 pairs the same dims of two values.
 */
size_t kv_page_bytes(enum kv_type type, size_t head_dim);
/* One token's key and value, scales included, from a slot to another one; both may be of the
 * same page. Bits are copied, so this has no twins. */
void kv_copy_token(enum kv_type type, size_t head_dim, void *to, size_t to_slot,
                   const void *from, size_t from_slot);

/*
 * Rows of queries against a run of pages. Query rows are (step row, query head) pairs that
 * share one KV head; they may belong to different sequences as long as all of them see these
 * pages as keys first_pos, first_pos + 1, ...
 *
 * For each row and each page in order: s[j] = (sum over dims in order, fma chain from 0,
 * d = 0, 1, ..., of q[d] * k[j][d]) * scale, and -inf where the key's position > row_pos or
 * >= first_pos + n_keys; m' = max(m, max_j s[j]); a = exp(m - m'), p[j] = exp(s[j] - m');
 * for lanes l of 16: d[l] = (d[l] * a + p[l]) + p[l + 16]; o[i] = o[i] * a, then for
 * visible j in order o[i] = fma(p[j], v[j][i], o[i]); m = m' + 0 (a zero maximum is +0). The
 * value of a key that a row does not see takes no part in that row, not even with a weight of
 * 0: slots that nobody has written may hold anything. A page without a visible key leaves the
 * state untouched. exp is kernels_exp. NaN scores give NaN outputs, of any bits. The state
 * starts as m = -inf, d = 0, o = 0 and may be carried over any number of calls, so shared pages
 * and private pages need no merge.
 *
 * KV_INT8: the row's query becomes codes c and a scale qs by the page's rule with 32767 in
 * place of 127, for with 127 it would cost as much accuracy as the keys; with the integer sum
 * exact, s[j] = ((float)(sum over dims of c[d] * k[j][d]) * (qs * scale)) * k_scale[j]. The
 * weights p[j] * v_scale[j] of the page's visible keys become codes w and a scale ws by the
 * same rule, and with the integer sum exact, o[i] = fma((float)(sum over visible j of w[j] *
 * v[j][i]), ws, o[i] * a). d takes p[j] itself.
 */
struct attend {
    enum kv_type kv_type;
    size_t head_dim; /* HD, multiple of 32 up to MODEL_HEAD_DIM_MAX; 16 for tiny models too */
    float scale;
    size_t n_rows;            /* R */
    const float *const *q;    /* [R] -> [HD], 4-byte aligned is enough */
    const int32_t *row_pos;   /* [R] last position that the row may see */
    const void *const *pages; /* [(n_keys + 31) / 32] */
    int32_t first_pos;        /* position of the first key; a multiple of 32 */
    size_t n_keys;            /* keys that have been written */
    float *m;                 /* [R] in/out */
    float *d;                 /* [R, 16] in/out */
    float *o;                 /* [R, HD] in/out, 64-byte aligned rows when HD % 16 == 0 */
};

enum rope_pairing { ROPE_NORM /* (2i, 2i+1) */, ROPE_NEOX /* (i, i + n_rot/2) */ };

/* ------------------------------------------------------------------ the table */

enum matmul_mode { MATMUL_SET, MATMUL_ADD };

struct kernels {
    enum kernels_isa isa;
    const char *name; /* "ref", "avx2", "avx512" */

    /*
     * y[t][i] = x[t][i] * (1 / sqrt(mean + eps)) * weight[i], products left to right.
     * mean = S / D with S over 16 lanes: lane l takes x[l], x[l+16], ... by fma from 0; lanes
     * are added in a tree: 8 apart, 4, 2, 1. x and y may be the same. D is any width; a tail
     * counts as zeros.
     */
    void (*rmsnorm)(const float *x, const float *weight, float eps, size_t n_rows,
                    size_t n_cols, float *y);

    /*
     * Fills q, scale, sum and scaled_sum of rows [row_begin, row_end) and columns [col_begin,
     * col_end) from f32. K and the columns are multiples of 32.
     */
    void (*quantize)(struct act *x, size_t row_begin, size_t row_end, size_t col_begin,
                     size_t col_end);

    /*
     * y[t * y_stride + n] (=|+=) sum over K of x[t] * w[n] for the outputs of panels
     * [panel_begin, panel_end); outputs >= N are not written. MATMUL_ADD adds the finished sum
     * to what is there, once. Quantised weights with ACT_INT8: blocks of 32 inputs in order;
     * the integer dot product of a block is exact; acc = fma((float)dot, scale_w * scale_x,
     * acc), and for types with minima then acc = fma(min_w, scale_x * (float)sum_x, acc) (min_w
     * signed so that it is added). A symmetric type's zero point is taken off in the integers.
     * Q6_K has two 16-input scales in a block: first half, then second half, each its own fma.
     * F32, F16, BF16 weights, or ACT_F32: acc = fma(x[k], w[k], acc), k in order, w being the
     * exact dequantised value.
     */
    void (*matmul)(const struct weight *w, const struct act *x, size_t panel_begin,
                   size_t panel_end, enum matmul_mode mode, float *y, size_t y_stride);

    /* y[t][i] += bias[i] for rows y_stride apart. */
    void (*bias_add)(float *y, size_t y_stride, const float *bias, size_t n_rows,
                     size_t n_cols);

    /*
     * Rotates the first n_rot dims of each of n_heads heads in place; heads lie HD apart, rows
     * x_stride apart. cos_sin: [T, n_rot/2][2]. (a, b) becomes (a*c - b*s, a*s + b*c), products
     * rounded before the sum.
     */
    void (*rope)(float *x, size_t x_stride, size_t n_rows, size_t n_heads, size_t head_dim,
                 size_t n_rot, const float *cos_sin, enum rope_pairing pairing);

    /* y[i] = gate[i] / (1 + exp(-gate[i])) * up[i]; y may be gate. */
    void (*silu_mul)(const float *gate, const float *up, size_t n, float *y);

    /* Writes one token's key and value [HD], scales included, into slot 0..31 of a page. */
    void (*kv_write)(enum kv_type type, size_t head_dim, void *page, size_t slot,
                     const float *key, const float *value);

    void (*attend)(const struct attend *a);

    /* out[r] -> [HD]: o / D, D = the lanes of d added as a tree 8, 4, 2, 1; o * (1 / D). */
    void (*attend_finish)(const struct attend *a, float *const *out);

    /* Index of the greatest value; the lowest index among equals; NaN never wins. */
    size_t (*argmax)(const float *x, size_t n);
};

/*
 * The exponential of every twin: x clamped to [-87.33, 88.37]; n = rint(x * log2 e);
 * r = fma(n, -ln2_hi, x), r = fma(n, -ln2_lo, r); a degree-5 polynomial in Horner form with
 * fma; times 2^n. exp(-inf) is 0 and exp(0) is exactly 1. Constants in kernels/exp.h.
 */
float kernels_exp(float x);

/*
 * Fills *k for the best instruction set of this CPU, or for the one that SHEAF_KERNELS
 * (ref|avx2|avx512) names; ERR_CONFIG when the name is unknown, ERR_UNSUPPORTED when the CPU
 * lacks it. Thread: any.
 */
int kernels_open(struct kernels *k, struct err *e);
/* The same without the environment, for tests. */
int kernels_open_isa(struct kernels *k, enum kernels_isa isa, struct err *e);
bool kernels_has_isa(enum kernels_isa isa);

#endif
