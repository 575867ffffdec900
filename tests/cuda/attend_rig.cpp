#include "attend_rig.h"
#include "count.cuh"

#include <algorithm>
#include <math.h>
#include <numeric>
#include <setjmp.h>
#include <stdarg.h>

extern "C" {
#include <cmocka.h>

#include "base/rng.h"
}

rig_change rig_changed;

/* ------------------------------------------------------------------ contents */

enum { KEYS, VALUES, QUERIES };
enum { BRANCH_WRITERS = 1000 };

static float rounded(float x)
{
    return to_float(to_bf16(x));
}

/* Who wrote a position of a sequence: the ancestor whose pages it is in. */
static int writer_of(const rig &r, int sequence, int position)
{
    while (r.sequences[sequence].parent >= 0 && position < r.sequences[sequence].n_shared)
        sequence = r.sequences[sequence].parent;
    return r.sequences[sequence].writer;
}

static float content_of(const rig &r, int what, int writer, int position, int head, int dim)
{
    const uint64_t stream = r.content * 16 + (uint64_t)what;
    const uint64_t place = ((uint64_t)writer * 8192 + (uint64_t)position) * 64 + (uint64_t)head;
    const float x = (float)rng_uniform(stream, place, (uint64_t)dim) * 2.0f - 1.0f;
    return rounded(what == QUERIES ? x * r.reach : x * 2.0f);
}

/* What a row meets at a position of its path. */
static float path_of(const rig &r, const rig_row &row, int what, int position, int head,
                     int dim)
{
    const bool is_branch = row.branch >= 0 && position >= r.branches[row.branch].first_position;
    if (!is_branch && row.sequence == rig_changed.sequence &&
        position == rig_changed.position && what == (rig_changed.is_key ? KEYS : VALUES))
        return rig_changed.x;
    const int writer =
        is_branch ? BRANCH_WRITERS + row.branch : writer_of(r, row.sequence, position);
    return content_of(r, what, writer, position, head, dim);
}

static float query_of(const rig &r, const rig_row &row, int head, int dim)
{
    const int writer =
        row.branch >= 0 ? BRANCH_WRITERS + row.branch : r.sequences[row.sequence].writer;
    return content_of(r, QUERIES, writer, row.position, head, dim);
}

int rig_add_sequence(rig *r, int n_slots, int parent, int n_shared)
{
    const int sequence = (int)r->sequences.size();
    r->sequences.push_back({parent, n_shared, n_slots, sequence, {}});
    return sequence;
}

int rig_add_branch(rig *r, int sequence, int first_position, const std::vector<int> &slots)
{
    r->branches.push_back({sequence, first_position, slots});
    return (int)r->branches.size() - 1;
}

int rig_add_path(rig *r, int branch)
{
    const rig_branch b = r->branches[branch];
    const int n = b.first_position + (int)b.slots.size();
    const int sequence = rig_add_sequence(r, n, b.sequence, b.first_position);
    r->sequences[sequence].writer = BRANCH_WRITERS + branch;
    return sequence;
}

void rig_add_row(rig *r, int sequence, int position, int branch)
{
    r->rows.push_back({sequence, position, branch});
}

/* ------------------------------------------------------------------ the pool */

static std::vector<int> shuffled(int n, uint64_t seed)
{
    std::vector<int> order(n);
    std::iota(order.begin(), order.end(), 0);
    for (int i = n - 1; i > 0; i--)
        std::swap(order[i], order[rng_bits(seed, 77, (uint64_t)i) % (uint64_t)(i + 1)]);
    return order;
}

/* Pages of all sequences under random numbers; returns how many there are. */
static int place_pages(rig *r, uint64_t seed)
{
    int n = 0;
    for (rig_sequence &s : r->sequences) {
        s.pages.clear();
        for (int i = 0; i * PAGE < s.n_slots; i++) {
            const bool is_shared = s.parent >= 0 && (i + 1) * PAGE <= s.n_shared;
            s.pages.push_back(is_shared ? -1 : n++);
        }
    }
    const std::vector<int> number = shuffled(n + 3, seed);
    for (rig_sequence &s : r->sequences)
        for (size_t i = 0; i < s.pages.size(); i++)
            s.pages[i] = s.pages[i] < 0 ? r->sequences[s.parent].pages[i] : number[s.pages[i]];
    return n + 3;
}

enum { LAYERS = 2, LAYER = 1 };

static size_t element_bytes(const rig &r)
{
    return r.type == KV_F32 ? 4 : 2;
}

static void put(const rig &r, std::vector<uint8_t> *pool, size_t at, float x)
{
    const bf16 half = to_bf16(x);
    if (r.type == KV_F32)
        memcpy(pool->data() + at * 4, &x, 4);
    else
        memcpy(pool->data() + at * 2, &half, 2);
}

static void put_token(const rig &r, std::vector<uint8_t> *pool, int n_pages, const rig_row &row,
                      int position, int slot)
{
    const int page = r.sequences[row.sequence].pages[slot / PAGE];
    for (int head = 0; head < r.n_kv_heads; head++)
        for (int what = KEYS; what <= VALUES; what++)
            for (int dim = 0; dim < r.head_dim; dim++) {
                const size_t index = ((size_t)LAYER * n_pages + page) * r.n_kv_heads + head;
                const size_t at = ((index * 2 + what) * PAGE + slot % PAGE) * r.head_dim + dim;
                put(r, pool, at, path_of(r, row, what, position, head, dim));
            }
}

/* What rows see is written, once; everything else is NaN in either type. */
static std::vector<uint8_t> fill_pool(const rig &r, int n_pages)
{
    std::vector<uint8_t> pool((size_t)LAYERS * n_pages * r.n_kv_heads * 2 * PAGE * r.head_dim *
                                  element_bytes(r),
                              0xff);
    std::vector<bool> is_written((size_t)n_pages * PAGE);
    for (const rig_row &row : r.rows)
        for (int p = 0; p <= row.position; p++) {
            const rig_branch *b = row.branch >= 0 ? &r.branches[row.branch] : nullptr;
            const bool is_branch = b && p >= b->first_position;
            const int slot = is_branch ? b->slots[p - b->first_position] : p;
            const size_t at =
                (size_t)r.sequences[row.sequence].pages[slot / PAGE] * PAGE + slot % PAGE;
            if (!is_written[at])
                put_token(r, &pool, n_pages, row, p, slot);
            is_written[at] = true;
        }
    return pool;
}

/* ------------------------------------------------------------------ the plan */

struct rig_plan {
    std::vector<device_attend_row> rows;
    std::vector<device_span> spans;
    std::vector<device_block> blocks;
    std::vector<device_branch> branches;
    std::vector<int32_t> pages, slots;
    int block_rows_max = 0, n_pages_max = 0;
};

/* Tells a row's i-th page from all others that hold something else. */
static int page_name(const rig &r, int row, int i)
{
    const rig_row &at = r.rows[row];
    if (at.branch >= 0 && i >= r.branches[at.branch].first_position / PAGE)
        return (1 << 20) + at.branch;
    return r.sequences[at.sequence].pages[i];
}

static int pages_of(const rig &r, int row)
{
    return r.rows[row].position / PAGE + 1;
}

/* Equal heads stand side by side, rows that end first. */
static std::vector<int> order_rows(const rig &r, uint64_t seed)
{
    std::vector<int> order = shuffled((int)r.rows.size(), seed + 5);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
        const int n = std::min(pages_of(r, a), pages_of(r, b));
        for (int i = 0; i < n; i++)
            if (page_name(r, a, i) != page_name(r, b, i))
                return page_name(r, a, i) < page_name(r, b, i);
        return pages_of(r, a) < pages_of(r, b);
    });
    return order;
}

struct rig_edge {
    int begin, end, page; /* rows of the plan that have their pages before page in common */
};

/* Spans of an edge's rows from its page on; what goes on below them joins the queue. */
static void add_spans(const rig &r, const std::vector<int> &order, const rig_edge &edge,
                      int first_row, rig_plan *p, std::vector<rig_edge> *queue)
{
    int begin = edge.begin;
    while (begin < edge.end && pages_of(r, order[begin]) <= edge.page)
        begin++;
    while (begin < edge.end) {
        int end = begin + 1, last = edge.page + 1;
        while (end < edge.end &&
               page_name(r, order[end], edge.page) == page_name(r, order[begin], edge.page))
            end++;
        const auto all_have = [&](int page) {
            for (int i = begin; i < end; i++)
                if (pages_of(r, order[i]) <= page ||
                    page_name(r, order[i], page) != page_name(r, order[begin], page))
                    return false;
            return true;
        };
        while (all_have(last))
            last++;
        int n_keys = 0;
        for (int i = begin; i < end; i++)
            n_keys = std::max(n_keys, r.rows[order[i]].position + 1 - edge.page * PAGE);
        n_keys = std::min(n_keys, (last - edge.page) * PAGE);
        p->spans.push_back(
            {begin - first_row, end - begin, edge.page, n_keys, (int32_t)p->pages.size()});
        for (int i = edge.page; i < last; i++)
            p->pages.push_back(r.sequences[r.rows[order[begin]].sequence].pages[i]);
        queue->push_back({begin, end, last});
        begin = end;
    }
}

static void add_block(const rig &r, const std::vector<int> &order, int begin, int end,
                      rig_plan *p)
{
    device_block block = {begin, end - begin, (int32_t)p->spans.size(), 0};
    std::vector<rig_edge> queue = {{begin, end, 0}};
    for (size_t i = 0; i < queue.size(); i++) {
        const rig_edge edge = queue[i];
        add_spans(r, order, edge, begin, p, &queue);
    }
    block.n_spans = (int32_t)p->spans.size() - block.first_span;
    p->blocks.push_back(block);
    p->block_rows_max = std::max(p->block_rows_max, end - begin);
}

static rig_plan make_plan(const rig &r, const rig_way &way)
{
    rig_plan p;
    const std::vector<int> order = order_rows(r, way.pages_seed);
    const int n = (int)order.size();
    for (int row : order) {
        const rig_row &at = r.rows[row];
        p.rows.push_back({row, at.position, at.branch});
        p.n_pages_max = std::max(p.n_pages_max, pages_of(r, row));
    }
    for (const rig_branch &b : r.branches) {
        p.branches.push_back({b.first_position, (int32_t)b.slots.size(),
                              (int32_t)p.slots.size(), (int32_t)p.pages.size()});
        p.slots.insert(p.slots.end(), b.slots.begin(), b.slots.end());
        const std::vector<int> &pages = r.sequences[b.sequence].pages;
        p.pages.insert(p.pages.end(), pages.begin(), pages.end());
    }
    for (int begin = 0, end; begin < n; begin = end) {
        end = begin + 1;
        while (end < n && end - begin < way.block_rows &&
               (way.is_shared || r.rows[order[end]].sequence == r.rows[order[begin]].sequence))
            end++;
        add_block(r, order, begin, end, &p);
    }
    return p;
}

/* ------------------------------------------------------------------ a run */

template <class T> static T *on_device(const std::vector<T> &v)
{
    T *p = static_cast<T *>(device_alloc((v.size() + 1) * sizeof(T)));
    copy_to_device(nullptr, p, v.data(), v.size() * sizeof(T));
    return p;
}

static std::vector<bf16> make_queries(const rig &r)
{
    std::vector<bf16> q;
    for (const rig_row &row : r.rows)
        for (int head = 0; head < r.n_heads; head++)
            for (int dim = 0; dim < r.head_dim; dim++)
                q.push_back(to_bf16(query_of(r, row, head, dim)));
    return q;
}

static float scale_of(const rig &r)
{
    return (float)(1.0 / sqrt((double)r.head_dim));
}

/* As the device counts them once for a step. */
static attend_keys keys_of(const rig_plan &plan)
{
    device_step s = {};
    s.n_spans = plan.spans.size();
    s.spans = plan.spans.data();
    s.n_attend_rows = plan.rows.size();
    s.attend_rows = plan.rows.data();
    return attend_keys_of(s);
}

static size_t shared_bytes_there()
{
    device_facts facts;
    assert_true(device_use(0, &facts));
    return facts.shared_bytes_max;
}

std::vector<uint16_t> rig_run(const rig &original, const rig_way &way)
{
    rig r = original;
    const int n_pages = place_pages(&r, way.pages_seed);
    rig_plan plan = make_plan(r, way);
    const attend_keys keys = keys_of(plan);
    for (int i = 0; i < way.n_padding; i++) {
        plan.rows.push_back({-1, 0, -1});
        plan.blocks.push_back({0, 0, 0, 0});
    }
    std::vector<bf16> mixed(r.rows.size() * (size_t)(r.n_heads * r.head_dim), bf16{0x7fff});
    attend_args a = {};
    bf16 *q = on_device(make_queries(r));
    uint8_t *pool = on_device(fill_pool(r, n_pages));
    device_attend_row *rows = on_device(plan.rows);
    device_span *spans = on_device(plan.spans);
    device_block *blocks = on_device(plan.blocks);
    device_branch *branches = on_device(plan.branches);
    int32_t *pages = on_device(plan.pages), *slots = on_device(plan.slots);
    a.q = q;
    a.n_heads = r.n_heads;
    a.n_kv_heads = r.n_kv_heads;
    a.head_dim = r.head_dim;
    a.scale = scale_of(r);
    a.kv = {r.type, pool, LAYERS, n_pages, r.n_kv_heads, r.head_dim};
    a.layer = LAYER;
    a.rows = rows;
    a.spans = spans;
    a.blocks = blocks;
    a.branches = branches;
    a.pages = pages;
    a.slots = slots;
    a.n_blocks = (int)plan.blocks.size();
    a.n_attend_rows = (int)plan.rows.size();
    a.block_queries_max = plan.block_rows_max * (r.n_heads / r.n_kv_heads);
    a.n_pages_max = plan.n_pages_max;
    a.split_keys = keys.read;
    a.exact = way.exact;
    a.mixed = on_device(mixed);
    a.shared_bytes_max = std::min(way.shared_bytes_max, shared_bytes_there());
    a.n_processors = way.n_processors;
    a.scratch =
        way.scratch_bytes ? static_cast<float *>(device_alloc(way.scratch_bytes)) : nullptr;
    a.scratch_bytes = way.scratch_bytes;
    if (way.n_padding > 0)
        attend_round(&a);
    attend(nullptr, a);
    attend_count_keys(a.kv, a.n_heads, keys, 1);
    copy_to_host(nullptr, mixed.data(), a.mixed, mixed.size() * sizeof(bf16));
    stream_wait(nullptr);
    assert_null(last_error());
    void *const all[] = {q,        pool,  rows,  spans,   blocks,
                         branches, pages, slots, a.mixed, a.scratch};
    for (void *p : all)
        device_free(p);
    std::vector<uint16_t> bits;
    for (bf16 x : mixed)
        bits.push_back(x.bits);
    return bits;
}

/* ------------------------------------------------------------------ what is right */

/* Weights of a row and head, of sum 1. */
static std::vector<double> weigh(const rig &r, const rig_row &row, int head)
{
    std::vector<double> weights;
    const int kv_head = head / (r.n_heads / r.n_kv_heads);
    double greatest = -INFINITY, sum = 0;
    for (int p = 0; p <= row.position; p++) {
        double score = 0;
        for (int dim = 0; dim < r.head_dim; dim++)
            score += (double)query_of(r, row, head, dim) *
                     (double)path_of(r, row, KEYS, p, kv_head, dim);
        weights.push_back(score / sqrt((double)r.head_dim));
        greatest = std::max(greatest, weights.back());
    }
    for (double &w : weights)
        sum += w = exp(w - greatest);
    for (double &w : weights)
        w /= sum;
    return weights;
}

/*
 * A weight is rounded to bfloat16 before it meets its value, which moves it by a 256th of
 * itself at most, so the answer by a 256th of the mean of |value|; the answer is rounded once
 * more. float32 sums of scores below 100 and of thousands of weights add less than 1e-3 of that
 * mean. float32 keys: weights are not rounded.
 */
static double slack_of(const rig &r, double mean_size, double answer)
{
    const double weights = r.type == KV_F32 ? 0 : mean_size / 256;
    return weights + fabs(answer) / 256 + 1e-3 * mean_size * (r.type == KV_F32 ? 0.1 : 1);
}

static void check_head(const rig &r, size_t row, int head, const uint16_t *got)
{
    const std::vector<double> weights = weigh(r, r.rows[row], head);
    const int kv_head = head / (r.n_heads / r.n_kv_heads);
    for (int dim = 0; dim < r.head_dim; dim++) {
        double want = 0, size = 0;
        for (size_t p = 0; p < weights.size(); p++) {
            const double v = path_of(r, r.rows[row], VALUES, (int)p, kv_head, dim);
            want += weights[p] * v;
            size += weights[p] * fabs(v);
        }
        const double is = to_float(bf16{got[dim]}), slack = slack_of(r, size, want);
        if (!(fabs(is - want) <= slack))
            fail_msg("row %zu (position %d) head %d dim %d: %g, not %g +- %g", row,
                     r.rows[row].position, head, dim, is, want, slack);
    }
}

void rig_check_row(const rig &r, size_t row, const std::vector<uint16_t> &got)
{
    for (int head = 0; head < r.n_heads; head++)
        check_head(r, row, head,
                   &got[(row * (size_t)r.n_heads + (size_t)head) * (size_t)r.head_dim]);
}

void rig_check(const rig &r, const std::vector<uint16_t> &got)
{
    for (size_t row = 0; row < r.rows.size(); row++)
        rig_check_row(r, row, got);
}

bool rig_is_same_row(const rig &r, const std::vector<uint16_t> &a, size_t row_a,
                     const std::vector<uint16_t> &b, size_t row_b)
{
    const size_t width = (size_t)(r.n_heads * r.head_dim);
    return memcmp(&a[row_a * width], &b[row_b * width], width * sizeof(a[0])) == 0;
}

void rig_same(const rig &r, const std::vector<uint16_t> &want, const std::vector<uint16_t> &got)
{
    assert_int_equal(want.size(), got.size());
    const size_t width = (size_t)(r.n_heads * r.head_dim);
    for (size_t i = 0; i < want.size(); i++)
        if (want[i] != got[i])
            fail_msg("row %zu (position %d) column %zu: bits %04x, not %04x", i / width,
                     r.rows[i / width].position, i % width, got[i], want[i]);
}
