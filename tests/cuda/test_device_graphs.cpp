/*
 * Steps on a device by graphs and by launches: the same bits in exact mode, whatever fills a
 * step up; a graph for each shape and not for each step; the same costs; and launches as before
 * where a graph cannot be had.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {
#include <cmocka.h>
}

#include "arrays.h"
#include "buckets.h"
#include "emu/emu.h"
#include "ops.cuh"

extern "C" const device_backend *sheaf_device_backend(void);

enum {
    L = 2,
    D = 64,
    H = 4,
    KVH = 2,
    HD = 16,
    F = 96,
    V = 160,
    N_ROT = 16,
    PAGES = 64,
    ROWS_MAX = 40,
    LOGITS_MAX = 20
};

#ifdef __CUDACC__
enum { IS_EMULATED = 0 };
#else
enum { IS_EMULATED = 1 };
#endif

/* ------------------------------------------------------------------ a model */

struct tiny {
    host_array<bf16> weights[L][7], embedding;
    host_array<float> norm;
    device_layer layers[L];
    device_model model;
};

static device_tensor tensor_of(host_array<bf16> *w, uint64_t stream, size_t rows, size_t cols)
{
    *w = rounded(random_floats(stream, 0.3f, rows * cols));
    return {QUANT_BF16, rows, cols, w->data()};
}

static void make_layer(tiny *m, int i)
{
    static const size_t shapes[7][2] = {{H * HD, D}, {KVH * HD, D}, {KVH * HD, D}, {D, H * HD},
                                        {F, D},      {F, D},        {D, F}};
    device_layer *l = &m->layers[i];
    *l = {};
    l->attn_norm = l->ffn_norm = m->norm.data();
    device_tensor *const tensors[7] = {&l->q,    &l->k,  &l->v,   &l->out,
                                       &l->gate, &l->up, &l->down};
    for (int k = 0; k < 7; k++)
        *tensors[k] = tensor_of(&m->weights[i][k], (uint64_t)(10 * i + k + 1), shapes[k][0],
                                shapes[k][1]);
}

static void make_model(tiny *m)
{
    m->norm = host_array<float>(D, 1.0f);
    for (int i = 0; i < L; i++)
        make_layer(m, i);
    const device_tensor embedding = tensor_of(&m->embedding, 99, V, D);
    m->model = {L,     D,         H,         KVH,  HD,        F,         V,   N_ROT,
                1e-5f, ROPE_NEOX, m->layers, NULL, embedding, embedding, NULL};
    m->model.output_norm = m->norm.data();
}

static device_options options_of(bool exact, bool graphs)
{
    device_options o = {};
    o.n_pages = o.n_pages_min = PAGES;
    o.kv_type = KV_BF16;
    o.n_rows_max = ROWS_MAX;
    o.n_logits_max = LOGITS_MAX;
    o.n_page_refs_max = PAGES;
    o.exact = exact;
    o.graphs = graphs;
    return o;
}

static void must(int rc, const struct err &e)
{
    if (rc != 0)
        fail_msg("%s", e.text);
}

struct opened {
    const device_backend *table = sheaf_device_backend();
    tiny made;
    device *d = NULL;

    explicit opened(const device_options &o)
    {
        struct err e = {};
        make_model(&made);
        must(table->open(&o, &made.model, &d, &e), e);
    }
    opened(const opened &) = delete;
    opened &operator=(const opened &) = delete;
    ~opened()
    {
        table->close(d);
    }
    device_counters counters() const
    {
        device_counters out;
        table->counters(d, &out);
        return out;
    }
};

/* ------------------------------------------------------------------ steps */

/* Sequence s has its pages to itself, four of them. Rows: the s-th's next n_new[s] tokens, each
 * sequence a block; the last row of each wants logits. */
struct sequences {
    int lengths[PAGES / 4] = {};
};

struct made_step {
    host_array<int32_t> tokens, kv_slots, pages, logits_rows;
    host_array<float> cos_sin;
    host_array<device_attend_row> rows;
    host_array<device_span> spans;
    host_array<device_block> blocks;
    host_array<float> temperatures;
};

static void add_row(made_step *m, int sequence, int position)
{
    const int row = (int)m->tokens.size();
    m->tokens.push_back((int32_t)(rng_bits(7, (uint64_t)sequence, (uint64_t)position) % V));
    m->kv_slots.push_back((4 * sequence + position / 32) * 32 + position % 32);
    for (int i = 0; i < N_ROT / 2; i++) {
        m->cos_sin.push_back(cosf((float)(position * (i + 1)) * 0.1f));
        m->cos_sin.push_back(sinf((float)(position * (i + 1)) * 0.1f));
    }
    m->rows.push_back({row, position, -1});
}

/* temperature 0: the greatest logits are wanted, else candidates too. */
static made_step step_of(sequences *s, const host_array<int> &n_new, float temperature = 0)
{
    made_step m;
    for (int i = 0; i < (int)n_new.size(); i++) {
        if (n_new[(size_t)i] == 0)
            continue;
        const int first = (int)m.tokens.size();
        for (int k = 0; k < n_new[(size_t)i]; k++)
            add_row(&m, i, s->lengths[i]++);
        const int n_rows = (int)m.tokens.size() - first;
        m.blocks.push_back({first, n_rows, (int)m.spans.size(), 1});
        m.spans.push_back({0, n_rows, 0, s->lengths[i], (int)m.pages.size()});
        for (int page = 0; page < (s->lengths[i] + 31) / 32; page++)
            m.pages.push_back(4 * i + page);
        m.logits_rows.push_back((int)m.tokens.size() - 1);
        m.temperatures.push_back(temperature);
    }
    return m;
}

static device_step view(const made_step &m)
{
    device_step s = {};
    s.n_rows = s.n_attend_rows = m.tokens.size();
    s.tokens = m.tokens.data();
    s.cos_sin = m.cos_sin.data();
    s.kv_slots = m.kv_slots.data();
    s.n_spans = m.spans.size();
    s.n_blocks = m.blocks.size();
    s.n_pages = m.pages.size();
    s.attend_rows = m.rows.data();
    s.spans = m.spans.data();
    s.blocks = m.blocks.data();
    s.pages = m.pages.data();
    s.n_logits = m.logits_rows.size();
    s.logits_rows = m.logits_rows.data();
    s.temperatures = m.temperatures.data();
    s.n_layers = L;
    s.has_head = true;
    return s;
}

static void add_candidates(const opened &o, const made_step &m, host_array<float> *out)
{
    struct err e = {};
    host_array<device_candidates> found(m.logits_rows.size());
    must(o.table->read_candidates(o.d, found.data(), &e), e);
    for (const device_candidates &row : found) {
        out->push_back((float)row.total);
        for (const device_candidate &best : row.best) {
            out->push_back(best.id < 0 ? 0 : best.logit);
            out->push_back((float)best.id);
        }
    }
}

/* All logits of a step, with the greatest's places and the candidates behind them. */
static host_array<float> run(const opened &o, const made_step &m)
{
    const device_step s = view(m);
    struct err e = {};
    host_array<float> out(s.n_logits * V);
    host_array<int32_t> best(s.n_logits);
    must(o.table->step(o.d, &s, &e), e);
    host_array<int32_t> all(s.n_logits);
    for (size_t i = 0; i < s.n_logits; i++)
        all[i] = (int32_t)i;
    must(o.table->read_logits(o.d, all.data(), all.size(), out.data(), &e), e);
    must(o.table->read_best(o.d, 0, best.data(), &e), e);
    for (int32_t b : best)
        out.push_back((float)b);
    if (m.temperatures[0] > 0)
        add_candidates(o, m, &out);
    return out;
}

static host_array<int> each(int n_sequences, int n_new)
{
    return host_array<int>((size_t)n_sequences, n_new);
}

/* Prompts, then decoding in companies of 1 to 13, and a prompt's chunk beside decode rows. */
static const host_array<int> night[] = {each(13, 3), each(13, 1), each(1, 1),   each(13, 1),
                                        each(11, 1), each(9, 1),  {1, 1, 7, 1}, each(1, 1),
                                        each(3, 1),  each(4, 1),  each(3, 1),   {1, 1, 6, 1},
                                        each(1, 1),  each(12, 1), each(13, 2),  each(13, 2)};
enum { NIGHT_STEPS = sizeof night / sizeof night[0] };

/* Shapes: 40 rows; 16 (13, 11, 9, 12 of them); 1; 16 with a tile more (10 and 9); 4 (3 and 4);
 * 32 (26 twice). Each but the first comes again, so that it is captured at its second time. */
enum { NIGHT_SHAPES = 6, NIGHT_CAPTURED = 5, NIGHT_REPLAYED = NIGHT_STEPS - NIGHT_SHAPES };

static void graphs_change_no_bit_of_an_exact_step(void **)
{
    sequences a, b;
    const opened plain(options_of(true, false)), graphs(options_of(true, true));
    for (const host_array<int> &n_new : night) {
        const host_array<float> want = run(plain, step_of(&a, n_new));
        const host_array<float> got = run(graphs, step_of(&b, n_new));
        assert_int_equal(want.size(), got.size());
        assert_true(same_floats("logits", want.data(), got.data(), want.size()));
    }
    assert_int_equal(plain.counters().graphs_captured, 0);
    assert_int_equal(plain.counters().graphs_replayed, 0);
    assert_int_equal(graphs.counters().graphs_captured, NIGHT_CAPTURED);
    assert_int_equal(graphs.counters().graphs_replayed, NIGHT_REPLAYED);
    assert_int_equal(graphs.counters().steps, NIGHT_STEPS);
}

/* A graph without candidates is none for a step that wants some. */
static void candidates_are_found_by_graphs_of_their_own(void **)
{
    sequences a, b;
    const opened plain(options_of(true, false)), graphs(options_of(true, true));
    for (float temperature : {0.0f, 0.7f, 0.0f, 2.0f, 0.0f, 0.5f}) {
        const host_array<float> want = run(plain, step_of(&a, each(3, 1), temperature));
        const host_array<float> got = run(graphs, step_of(&b, each(3, 1), temperature));
        assert_int_equal(want.size(), got.size());
        assert_true(same_floats("candidates", want.data(), got.data(), want.size()));
    }
    assert_int_equal(graphs.counters().graphs_captured, 2);
    assert_int_equal(graphs.counters().graphs_replayed, 4);
}

/* Pages of the KV pool, too: what fills a step up is written nowhere. */
static void graphs_leave_the_pages_as_launches_do(void **)
{
    sequences a, b;
    const opened plain(options_of(true, false)), graphs(options_of(true, true));
    const host_array<uint8_t> blank(L * KVH * 2 * 32 * HD * 2, 0);
    struct err e = {};
    for (const opened *o : {&plain, &graphs})
        for (int page = 0; page < PAGES; page++)
            must(o->table->write_page(o->d, page, blank.data(), &e), e);
    for (const host_array<int> &n_new : night) {
        run(plain, step_of(&a, n_new));
        run(graphs, step_of(&b, n_new));
    }
    for (int page = 0; page < PAGES; page++) {
        host_array<uint8_t> want = blank, got = blank;
        must(plain.table->read_page(plain.d, page, want.data(), &e), e);
        must(graphs.table->read_page(graphs.d, page, got.data(), &e), e);
        assert_true(same_bytes("page", want, got));
        assert_int_equal(want == blank, page / 4 >= 13 || page % 4 > 0);
    }
}

/* The fast mode may take another way for more rows; sums of some dozen numbers are near. */
static void graphs_stay_near_in_the_fast_mode(void **)
{
    sequences a, b;
    const opened plain(options_of(false, false)), graphs(options_of(false, true));
    for (const host_array<int> &n_new : night) {
        const made_step step = step_of(&a, n_new);
        const size_t n = view(step).n_logits * V;
        const host_array<float> want = run(plain, step);
        const host_array<float> got = run(graphs, step_of(&b, n_new));
        for (size_t i = 0; i < n; i++)
            assert_true(is_near("logit", i, (double)want[i], (double)got[i], 0.05));
    }
    assert_int_equal(graphs.counters().graphs_replayed, NIGHT_REPLAYED);
}

/* ------------------------------------------------------------------ buckets */

static void buckets_are_few_and_near(void **)
{
    static const uint64_t coarse[] = {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256};
    static const uint64_t fine[] = {72, 80, 88, 96, 104, 112, 120, 128, 144, 160};
    uint64_t n = 1;
    for (uint64_t bucket : coarse)
        for (; n <= bucket; n++)
            assert_int_equal(bucket_of(n), bucket);
    n = 65;
    for (uint64_t bucket : fine)
        for (; n <= bucket; n++)
            assert_int_equal(fine_bucket_of(n, 16), bucket);
    for (n = 1; n <= 8; n++)
        assert_int_equal(fine_bucket_of(n, 8), n);
}

/* ------------------------------------------------------------------ costs */

static bool same_costs(const device_counters &a, const device_counters &b)
{
    return memcmp(a.of, b.of, sizeof a.of) == 0 && a.copies == b.copies && a.steps == b.steps;
}

/* Of 4 and of 16 rows, which fill their buckets; at another length of the sequences, too. */
static void a_replay_costs_what_launches_cost(void **)
{
    sequences a, b;
    const opened plain(options_of(true, false)), graphs(options_of(true, true));
    for (int n_sequences : {4, 16, 4, 16, 4, 16}) {
        run(plain, step_of(&a, each(n_sequences, 1)));
        const emu_counts before = emu_count();
        run(graphs, step_of(&b, each(n_sequences, 1)));
        const emu_counts after = emu_count();
        if (IS_EMULATED) /* which counts itself: embed, 9 a layer, norm, product, greatest */
            assert_int_equal(after.launches - before.launches, 1 + 9 * L + 3);
        assert_true(same_costs(plain.counters(), graphs.counters()));
    }
    assert_int_equal(graphs.counters().graphs_replayed, 4);
    assert_int_equal(graphs.counters().graph_launches, 4 * (1 + 9 * L + 3));
    run(plain, step_of(&a, each(3, 1))); /* the twin: a row more is computed and counted */
    run(graphs, step_of(&b, each(3, 1)));
    assert_false(same_costs(plain.counters(), graphs.counters()));
}

/* ------------------------------------------------------------------ what is no graph */

/* Steps whose time is measured have some layers only, and a head alone. */
static void parts_of_a_step_and_large_ones_are_launched(void **)
{
    sequences a;
    struct err e = {};
    const opened graphs(options_of(true, true));
    for (int i = 0; i < 3; i++) {
        const made_step m = step_of(&a, each(2, 1));
        device_step s = view(m);
        s.n_layers = 1;
        must(graphs.table->step(graphs.d, &s, &e), e);
        s.n_layers = 0;
        must(graphs.table->step(graphs.d, &s, &e), e);
        s.n_layers = L;
        s.has_head = false;
        must(graphs.table->step(graphs.d, &s, &e), e);
    }
    must(graphs.table->wait(graphs.d, &e), e);
    assert_int_equal(graphs.counters().graphs_captured, 0);
    assert_int_equal(graphs.counters().graphs_replayed, 0);
}

/* A device without memory for a graph computes by launches, and says the same. */
static void a_graph_that_cannot_be_had_is_done_without(void **)
{
    sequences a, b;
    const opened plain(options_of(true, false)), graphs(options_of(true, true));
    if (!IS_EMULATED)
        skip();
    emu_refuse_graphs(1);
    for (int i = 0; i < 4; i++)
        for (int n_sequences : {2, 5}) {
            const host_array<float> want = run(plain, step_of(&a, each(n_sequences, 1)));
            const host_array<float> got = run(graphs, step_of(&b, each(n_sequences, 1)));
            assert_true(same_floats("logits", want.data(), got.data(), want.size()));
        }
    assert_int_equal(graphs.counters().graphs_captured, 1); /* of five, not of two */
    assert_int_equal(graphs.counters().graphs_replayed, 3);
}

/* The i-th of 70 shapes: 1 to 24 rows of one sequence or two, of which 0 to 20 want logits. */
enum { N_SHAPES = 70, N_KEPT = 64 };

static void run_shape(const opened &o, int i)
{
    static const int rows[] = {2, 4, 8, 16, 2, 4, 8, 16, 1, 24};
    static const size_t logits[] = {0, 1, 2, 4, 8, 16, 20};
    sequences fresh;
    struct err e = {};
    const int n = rows[i % 10];
    const made_step m = step_of(&fresh, i % 10 < 4 ? each(2, n / 2) : each(1, n));
    const host_array<int32_t> some_rows(LOGITS_MAX, n - 1);
    const host_array<float> temperatures(LOGITS_MAX, 0.0f);
    device_step s = view(m);
    s.n_logits = logits[i / 10];
    s.logits_rows = some_rows.data();
    s.temperatures = temperatures.data();
    must(o.table->step(o.d, &s, &e), e);
}

/* Each in turn: with one more than there is room for none is there when it comes again. */
static void the_graph_that_was_not_used_longest_goes(void **)
{
    for (int n : {(int)N_KEPT, N_KEPT + 1, (int)N_SHAPES}) {
        const opened o(options_of(true, true));
        for (int turn = 0; turn < 2; turn++)
            for (int i = 0; i < n; i++)
                run_shape(o, i);
        assert_int_equal(o.counters().graphs_captured, n == N_KEPT ? n : 0);
        run_shape(o, n - 1); /* the last one is there */
        assert_int_equal(o.counters().graphs_captured, n == N_KEPT ? n : 1);
    }
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(graphs_change_no_bit_of_an_exact_step),
        cmocka_unit_test(candidates_are_found_by_graphs_of_their_own),
        cmocka_unit_test(graphs_leave_the_pages_as_launches_do),
        cmocka_unit_test(graphs_stay_near_in_the_fast_mode),
        cmocka_unit_test(buckets_are_few_and_near),
        cmocka_unit_test(a_replay_costs_what_launches_cost),
        cmocka_unit_test(parts_of_a_step_and_large_ones_are_launched),
        cmocka_unit_test(a_graph_that_cannot_be_had_is_done_without),
        cmocka_unit_test(the_graph_that_was_not_used_longest_goes),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
