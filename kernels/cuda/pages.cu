/*
 * KV pages and single tokens moved as they are. In every layer a page is one run of bytes, and
 * a token one short run for each half (key, value) of each KV head, a half apart. They are
 * copied in lines of 16 bytes; HD is a multiple of 8, so that every run is whole lines.
 */
#include "count.cuh"
#include "lines.cuh"
#include "ops.cuh"

extern "C" {
#include "base/check.h"
}

enum { COPY_THREADS = 256, COPY_BLOCKS = 1024 /* enough to fill a device */, PAGE_TOKENS = 32 };

/* The same runs in every layer; distances in lines. */
struct copy_args {
    line_16 *to;
    const line_16 *from;
    int64_t to_layer, from_layer; /* from a layer to the next */
    uint32_t n_runs, n_lines;
    uint32_t run_apart;
};

/* Block (c, l) walks over the lines of layer l, gridDim.x blocks at a time. */
KERNEL void copy_runs(copy_args a)
{
    line_16 *to = a.to + blockIdx.y * a.to_layer;
    const line_16 *from = a.from + blockIdx.y * a.from_layer;
    const uint32_t step = gridDim.x * blockDim.x;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < a.n_runs * a.n_lines;
         i += step) {
        const uint32_t at = i / a.n_lines * a.run_apart + i % a.n_lines;
        to[at] = from[at];
    }
}

static void launch_copy(stream_t s, const kv_memory &kv, const copy_args &a)
{
    const int64_t n = (int64_t)a.n_runs * a.n_lines;
    const int n_blocks = divide_up(n, COPY_THREADS);
    const int n_blocks_max = divide_up(COPY_BLOCKS, kv.n_layers);
    const dim3 grid((unsigned)(n_blocks < n_blocks_max ? n_blocks : n_blocks_max),
                    (unsigned)kv.n_layers);
    ASSERT(kv.n_layers > 0 && kv.n_layers <= GRID_Y_MAX && n > 0 && n < INT32_MAX);
    ASSERT(is_on(a.to, 16) && is_on(a.from, 16));
    LAUNCH(copy_runs, grid, COPY_THREADS, 0, s, a);
    const uint64_t bytes = (uint64_t)n * (uint64_t)kv.n_layers * sizeof(line_16);
    count_op(DEVICE_PAGES, 1, bytes, bytes, 0);
}

static uint32_t lines_of_token(const kv_memory &kv)
{
    ASSERT(kv.type == KV_F32 || kv.type == KV_BF16);
    ASSERT(kv.head_dim > 0 && kv.head_dim % 8 == 0);
    const size_t bytes = kv.type == KV_BF16 ? sizeof(bf16) : sizeof(float);
    return (uint32_t)((size_t)kv.head_dim * bytes / sizeof(line_16));
}

static uint32_t lines_of_half(const kv_memory &kv)
{
    return PAGE_TOKENS * lines_of_token(kv);
}

/* Of one layer. */
static uint32_t lines_of_page(const kv_memory &kv)
{
    return (uint32_t)kv.n_kv_heads * 2 * lines_of_half(kv);
}

static int64_t lines_of_layer(const kv_memory &kv)
{
    return (int64_t)kv.n_pages * lines_of_page(kv);
}

static line_16 *page_at(const kv_memory &kv, int page)
{
    ASSERT(page >= 0 && page < kv.n_pages);
    return (line_16 *)kv.data + (int64_t)page * lines_of_page(kv);
}

static line_16 *token_at(const kv_memory &kv, int page, int slot)
{
    ASSERT(slot >= 0 && slot < PAGE_TOKENS);
    return page_at(kv, page) + (uint32_t)slot * lines_of_token(kv);
}

void copy_page(stream_t s, const kv_memory &kv, int to, int from)
{
    const int64_t layer = lines_of_layer(kv);
    if (to != from)
        launch_copy(
            s, kv, {page_at(kv, to), page_at(kv, from), layer, layer, 1, lines_of_page(kv), 0});
}

void move_token(stream_t s, const kv_memory &kv, int to, int to_slot, int from, int from_slot)
{
    const int64_t layer = lines_of_layer(kv);
    if (to != from || to_slot != from_slot)
        launch_copy(s, kv,
                    {token_at(kv, to, to_slot), token_at(kv, from, from_slot), layer, layer,
                     (uint32_t)kv.n_kv_heads * 2, lines_of_token(kv), lines_of_half(kv)});
}

void gather_page(stream_t s, const kv_memory &kv, int page, void *out)
{
    const uint32_t lines = lines_of_page(kv);
    launch_copy(s, kv,
                {(line_16 *)out, page_at(kv, page), lines, lines_of_layer(kv), 1, lines, 0});
}

void scatter_page(stream_t s, const kv_memory &kv, int page, const void *in)
{
    const uint32_t lines = lines_of_page(kv);
    launch_copy(
        s, kv,
        {page_at(kv, page), (const line_16 *)in, lines_of_layer(kv), lines, 1, lines, 0});
}
