/*
 * Large products by cuBLASLt. A plan is what one shape needs: descriptors and an algorithm,
 * found once and kept. Rows of x are counted in buckets, so that a run of steps of all sizes
 * has a few dozen plans; the layouts of a call have its own number of rows.
 *
 * cuBLASLt is column-major: rows of w are columns of A, which is transposed ("TN"), and
 * y^T [N, T] = w [N, K] x^T [K, T]. A sum that is added to y is beta = 1 with C = D = y. E4M3
 * has "TN" alone, and asks for multiples of 16; its fast accumulation, with fewer bits, is left
 * off as it is unless set, and so are scales of whole matrices.
 *
 * The first product of a plan tries what the heuristic offers and keeps the fastest, unless the
 * stream is being captured: then the heuristic's first is taken for good. cuBLASLt may find an
 * algorithm unfit for another number of rows of its bucket; such a bucket has a plan for each
 * number of rows from then on.
 */
#include <cublasLt.h>
#include <stdlib.h>

#include "buckets.h"
#include "count.cuh"
#include "lt.h"

enum { PLANS_MAX = 1024, CANDIDATES_MAX = 8, TRIES = 3, ALIGN_BYTES = 16 };

struct plan_key {
    int n_outputs, n_inputs;
    int n_rows; /* of the bucket, or exactly */
    bool is_exact, is_e4m3;
    int kind;
    int bias_align, y_align; /* bytes; bias_align 0: there is none */
    int64_t y_stride;
};

struct plan {
    plan_key key;
    cublasLtMatmulDescOpaque_t op;
    cublasLtMatrixLayoutOpaque_t w, x, y;
    cublasLtMatmulAlgo_t algorithm;
    bool is_unfit; /* for some number of rows: ask for each */
};

struct lt {
    cublasLtHandle_t handle;
    void *workspace;
    int n_plans, next_out; /* once all are used, the oldest goes */
    plan plans[PLANS_MAX];
};

static int check(cublasStatus_t status, const char *what, struct err *e)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return 0;
    return ERR_SET(e, ERR_STATE, "cuBLASLt %s failed: %s", what,
                   cublasLtGetStatusString(status));
}

int lt_open(lt **out, struct err *e)
{
    *out = nullptr;
    lt *l = (lt *)calloc(1, sizeof(lt));
    if (!l)
        return ERR_SET(e, ERR_NOMEM, "no memory for the plans of large products");
    int code = check(cublasLtCreate(&l->handle), "cublasLtCreate", e);
    if (code == 0) {
        l->workspace = device_alloc(LT_WORKSPACE_BYTES);
        if (!l->workspace)
            code = ERR_SET(e, ERR_NOMEM,
                           "the device has no room for %d MiB of workspace for products",
                           LT_WORKSPACE_BYTES >> 20);
    }
    if (code != 0)
        lt_close(l);
    else
        *out = l;
    return code;
}

void lt_close(lt *l)
{
    if (!l)
        return;
    if (l->workspace)
        device_free(l->workspace);
    if (l->handle)
        cublasLtDestroy(l->handle);
    free(l);
}

/* ---- plans */

static int align_of(const void *at, size_t element_bytes)
{
    return (uintptr_t)at % ALIGN_BYTES == 0 ? ALIGN_BYTES : (int)element_bytes;
}

static plan_key key_of(const product_args &a, int n_rows, bool is_exact)
{
    plan_key key = {};
    key.n_outputs = a.n_outputs;
    key.n_inputs = a.n_inputs;
    key.n_rows = n_rows;
    key.is_exact = is_exact;
    key.is_e4m3 = a.x_codes;
    key.kind = a.kind;
    key.bias_align = a.bias ? align_of(a.bias, sizeof(float)) : 0;
    key.y_align = align_of(a.y, product_out_bytes(a.kind));
    key.y_stride = a.y_stride;
    return key;
}

static bool is_same(const plan_key &a, const plan_key &b)
{
    return a.n_outputs == b.n_outputs && a.n_inputs == b.n_inputs && a.n_rows == b.n_rows &&
           a.is_exact == b.is_exact && a.is_e4m3 == b.is_e4m3 && a.kind == b.kind &&
           a.bias_align == b.bias_align && a.y_align == b.y_align && a.y_stride == b.y_stride;
}

static plan *find_plan(lt *l, const plan_key &key)
{
    for (int i = 0; i < l->n_plans; i++)
        if (is_same(l->plans[i].key, key))
            return &l->plans[i];
    return nullptr;
}

static plan *new_plan(lt *l, const plan_key &key)
{
    plan *p;
    if (l->n_plans < PLANS_MAX) {
        p = &l->plans[l->n_plans++];
    } else {
        p = &l->plans[l->next_out];
        l->next_out = (l->next_out + 1) % PLANS_MAX;
    }
    *p = plan();
    p->key = key;
    return p;
}

template <class T>
static cublasStatus_t set_op(plan *p, cublasLtMatmulDescAttributes_t name, T value)
{
    return cublasLtMatmulDescSetAttribute(&p->op, name, &value, sizeof(value));
}

/* The heuristic looks at how the bias is aligned. */
static cublasStatus_t set_up_op(plan *p, const float *bias)
{
    cublasStatus_t status = cublasLtMatmulDescInit(&p->op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = set_op(p, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    if (status == CUBLAS_STATUS_SUCCESS && bias)
        status = set_op(p, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    if (status == CUBLAS_STATUS_SUCCESS && bias)
        status = set_op(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, (const void *)bias);
    return status;
}

static cublasStatus_t set_up_layouts(plan *p)
{
    const plan_key &k = p->key;
    const uint64_t n = (uint64_t)k.n_outputs;
    const uint64_t t = (uint64_t)k.n_rows;
    const uint64_t inputs = (uint64_t)k.n_inputs;
    const cudaDataType_t y_type = k.kind == PRODUCT_BF16 ? CUDA_R_16BF : CUDA_R_32F;
    const cudaDataType_t type = k.is_e4m3 ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
    cublasStatus_t status = cublasLtMatrixLayoutInit(&p->w, type, inputs, n, k.n_inputs);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatrixLayoutInit(&p->x, type, inputs, t, k.n_inputs);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatrixLayoutInit(&p->y, y_type, n, t, k.y_stride);
    return status;
}

template <class T>
static cublasStatus_t set_preference(cublasLtMatmulPreferenceOpaque_t *preference,
                                     cublasLtMatmulPreferenceAttributes_t name, T value)
{
    return cublasLtMatmulPreferenceSetAttribute(preference, name, &value, sizeof(value));
}

/* It takes every pointer for 256-byte aligned unless told otherwise. */
static cublasStatus_t set_up_preference(const plan *p,
                                        cublasLtMatmulPreferenceOpaque_t *preference)
{
    const uint32_t align = ALIGN_BYTES;
    const uint32_t y_align = (uint32_t)p->key.y_align;
    cublasStatus_t status = cublasLtMatmulPreferenceInit(preference);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                (uint64_t)LT_WORKSPACE_BYTES);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = set_preference(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, align);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = set_preference(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, align);
    if (status == CUBLAS_STATUS_SUCCESS)
        status =
            set_preference(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, y_align);
    if (status == CUBLAS_STATUS_SUCCESS)
        status =
            set_preference(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, y_align);
    return status;
}

/* ---- one call */

static cublasStatus_t set_call(plan *p, const product_args &a)
{
    const uint64_t t = (uint64_t)a.n_rows;
    cublasStatus_t status =
        cublasLtMatrixLayoutSetAttribute(&p->x, CUBLASLT_MATRIX_LAYOUT_COLS, &t, sizeof(t));
    if (status == CUBLAS_STATUS_SUCCESS)
        status =
            cublasLtMatrixLayoutSetAttribute(&p->y, CUBLASLT_MATRIX_LAYOUT_COLS, &t, sizeof(t));
    if (status == CUBLAS_STATUS_SUCCESS && a.bias)
        status = set_op(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, (const void *)a.bias);
    return status;
}

static cublasStatus_t multiply(lt *l, stream_t s, plan *p,
                               const cublasLtMatmulAlgo_t &algorithm, const product_args &a,
                               void *y)
{
    const float alpha = 1.0f;
    const float beta = a.kind == PRODUCT_F32_ADD ? 1.0f : 0.0f;
    const void *x = a.x_codes ? (const void *)a.x_codes : a.x;
    return cublasLtMatmul(l->handle, &p->op, &alpha, a.w, &p->w, x, &p->x, &beta, y, &p->y, y,
                          &p->y, &algorithm, l->workspace, LT_WORKSPACE_BYTES, s);
}

/* ---- the fastest of several */

struct stopwatch {
    cudaEvent_t begin, end;
};

/* Milliseconds of TRIES calls after one that nobody times; negative: it does not run. */
static float time_of(lt *l, stream_t s, plan *p, const cublasLtMatmulAlgo_t &algorithm,
                     const product_args &a, void *y, const stopwatch &watch)
{
    if (multiply(l, s, p, algorithm, a, y) != CUBLAS_STATUS_SUCCESS)
        return -1.0f;
    cudaEventRecord(watch.begin, s);
    for (int i = 0; i < TRIES; i++)
        if (multiply(l, s, p, algorithm, a, y) != CUBLAS_STATUS_SUCCESS)
            return -1.0f;
    cudaEventRecord(watch.end, s);
    float ms = -1.0f;
    if (cudaEventSynchronize(watch.end) != cudaSuccess ||
        cudaEventElapsedTime(&ms, watch.begin, watch.end) != cudaSuccess)
        return -1.0f;
    return ms;
}

static int fastest(lt *l, stream_t s, plan *p, const cublasLtMatmulHeuristicResult_t *offers,
                   int n_offers, const product_args &a, void *y)
{
    stopwatch watch = {};
    int best = 0;
    if (cudaEventCreate(&watch.begin) == cudaSuccess &&
        cudaEventCreate(&watch.end) == cudaSuccess) {
        float best_ms = -1.0f;
        for (int i = 0; i < n_offers; i++) {
            const float ms = time_of(l, s, p, offers[i].algo, a, y, watch);
            if (ms >= 0.0f && (best_ms < 0.0f || ms < best_ms)) {
                best_ms = ms;
                best = i;
            }
        }
    }
    if (watch.begin)
        cudaEventDestroy(watch.begin);
    if (watch.end)
        cudaEventDestroy(watch.end);
    return best;
}

/* Tries overwrite a result that is set anyway; one that is added to is left alone, and the
 * tries add to memory that is taken for them. */
static int choose(lt *l, stream_t s, plan *p, const cublasLtMatmulHeuristicResult_t *offers,
                  int n_offers, const product_args &a)
{
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (n_offers < 2 || cudaStreamIsCapturing(s, &capture) != cudaSuccess ||
        capture != cudaStreamCaptureStatusNone)
        return 0;
    void *y = a.y;
    if (a.kind == PRODUCT_F32_ADD) {
        const size_t bytes = (size_t)a.n_rows * (size_t)a.y_stride * sizeof(float);
        y = device_alloc(bytes);
        if (!y) {
            last_error(); /* of the allocation, which is none of the caller's */
            return 0;
        }
    }
    const int best = fastest(l, s, p, offers, n_offers, a, y);
    if (y != a.y)
        device_free(y);
    return best;
}

/* An offer is one only if its own state says so. */
static int keep_good(cublasLtMatmulHeuristicResult_t *offers, int n_offers)
{
    int n_good = 0;
    for (int i = 0; i < n_offers; i++)
        if (offers[i].state == CUBLAS_STATUS_SUCCESS)
            offers[n_good++] = offers[i];
    return n_good;
}

static int ask_heuristic(lt *l, plan *p, cublasLtMatmulHeuristicResult_t *offers, int *n_offers,
                         struct err *e)
{
    cublasLtMatmulPreferenceOpaque_t preference;
    TRY(check(set_up_preference(p, &preference), "preference", e));
    TRY(check(cublasLtMatmulAlgoGetHeuristic(l->handle, &p->op, &p->w, &p->x, &p->y, &p->y,
                                             &preference, CANDIDATES_MAX, offers, n_offers),
              "heuristic", e));
    *n_offers = keep_good(offers, *n_offers);
    if (*n_offers == 0)
        return ERR_SET(e, ERR_UNSUPPORTED,
                       "cuBLASLt has no algorithm for a product of %d rows, %d inputs and %d "
                       "outputs",
                       p->key.n_rows, p->key.n_inputs, p->key.n_outputs);
    return 0;
}

static int fill_plan(lt *l, stream_t s, plan *p, const product_args &a, struct err *e)
{
    cublasLtMatmulHeuristicResult_t offers[CANDIDATES_MAX];
    int n_offers = 0;
    TRY(check(set_up_op(p, a.bias), "descriptor", e));
    TRY(check(set_up_layouts(p), "layout", e));
    TRY(ask_heuristic(l, p, offers, &n_offers, e));
    TRY(check(set_call(p, a), "layout", e));
    p->algorithm = offers[choose(l, s, p, offers, n_offers, a)].algo;
    return 0;
}

static int find_or_make(lt *l, stream_t s, const plan_key &key, const product_args &a,
                        plan **out, struct err *e)
{
    *out = find_plan(l, key);
    if (*out)
        return 0;
    *out = new_plan(l, key);
    const int code = fill_plan(l, s, *out, a, e);
    if (code != 0)
        (*out)->key = plan_key(); /* nobody asks for this one */
    return code;
}

static int run(lt *l, stream_t s, plan *p, const product_args &a, struct err *e)
{
    TRY(check(set_call(p, a), "layout", e));
    return check(multiply(l, s, p, p->algorithm, a, a.y), "matmul", e);
}

static plan_key bucket_key_of(const product_args &a)
{
    return key_of(a, (int)bucket_of((uint64_t)a.n_rows), false);
}

void lt_prepare(lt *l, stream_t s, const product_args &a)
{
    plan *p;
    struct err why = {};
    find_or_make(l, s, bucket_key_of(a), a, &p, &why);
}

int lt_multiply(lt *l, stream_t s, const product_args &a, struct err *e)
{
    plan *p;
    TRY(find_or_make(l, s, bucket_key_of(a), a, &p, e));
    if (!p->is_unfit) {
        TRY(check(set_call(p, a), "layout", e));
        const cublasStatus_t status = multiply(l, s, p, p->algorithm, a, a.y);
        p->is_unfit =
            status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
        if (!p->is_unfit)
            TRY(check(status, "matmul", e));
    }
    if (p->is_unfit) {
        TRY(find_or_make(l, s, key_of(a, a.n_rows, true), a, &p, e));
        TRY(run(l, s, p, a, e));
    }
    count_product(a, (uint64_t)a.n_inputs * (a.x_codes ? 1 : sizeof(bf16)));
    return 0;
}
