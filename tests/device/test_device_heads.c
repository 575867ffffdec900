/*
 * Heads on a device. Verification hides every mistake in drafting, so what they say is looked
 * at itself: held against the same arithmetic in double over the hidden rows that the device
 * gives, equal but for near-ties; and, exactly computed, bit for bit the same whatever stands
 * beside a row, however long it was kept and whatever runs beside its sequence.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/limits.h"
#include "base/rng.h"
#include "engine/engine_int.h"
#include "engine/head_drafts.h"
#include "engine/medusa_int.h"
#include "golden.h"
#include "heads_make.h"
#include "heads_plain.h"

enum { ROWS = 20, CONTEXT = 128 };

/* Inputs of products are bfloat16, of 8 bits: twice what was measured. */
static const double NEAR_TIE = 0.004;

/* ------------------------------------------------------------------ a device with heads */

/* Heads, an engine that has them on its device, and the way to ask for what they say. */
struct bench {
    struct model *model;
    struct heads *heads;
    struct engine *engine;
    struct medusa *medusa;
    float *logits; /* [ROWS, V] of nobody's interest */
};

static struct engine_options options_of(const struct heads *h, size_t batch, bool exact)
{
    return (struct engine_options){.n_threads = 1,
                                   .batch = batch,
                                   .step_tokens = 64,
                                   .chunk_tokens = 64,
                                   .context = CONTEXT,
                                   .speculation = SPECULATION_HEADS,
                                   .heads = h,
                                   .draft_always = true,
                                   .draft_tokens = 8 * batch,
                                   .device = "cuda-emu",
                                   .device_exact = exact};
}

static void open_bench(struct bench *b, const char *model, const struct heads_shape *shape,
                       bool exact)
{
    b->model = golden_open_tiny(model);
    b->heads = heads_make(b->model, shape);
    const struct engine_options o = options_of(b->heads, ROWS, exact);
    b->engine = golden_open_engine(b->model, "ref", ACT_F32, KV_BF16, &o);
    const struct medusa_options medusa = {.heads = b->heads,
                                          .model = b->model,
                                          .kernels = &b->engine->kernels,
                                          .threads = b->engine->threads,
                                          .n_rows_max = ROWS,
                                          .device = b->engine->device};
    assert_int_equal(medusa_open(&medusa, &b->medusa, NULL), 0);
    b->logits = malloc(ROWS * b->model->config.n_vocab * sizeof b->logits[0]);
}

static void close_bench(struct bench *b)
{
    struct err e = {0};
    if (engine_device_check(b->engine->device, &e) != 0)
        fail_msg("%s", e.text);
    free(b->logits);
    medusa_close(b->medusa);
    engine_close(b->engine);
    heads_close(b->heads);
    model_close(b->model);
}

/* One step of so many rows, all of which have hidden states then. */
static void compute(struct bench *b, uint64_t text, size_t n_rows)
{
    int32_t tokens[ROWS];
    struct err e = {0};
    for (size_t i = 0; i < n_rows; i++)
        tokens[i] = (int32_t)(rng_bits(11, text, i) % 300);
    if (engine_logits(b->engine, tokens, n_rows, b->logits, &e) != 0)
        fail_msg("%s", e.text);
}

static void keep_row(struct bench *b, size_t logits_row, size_t place)
{
    engine_device_keep_hidden(b->engine->device, 1, &(int32_t){(int32_t)logits_row},
                              &(int32_t){(int32_t)place});
}

static void say(struct bench *b, size_t first, size_t n, struct medusa_guesses *out)
{
    int32_t places[ROWS];
    memset(out, 0, n * sizeof out[0]);
    for (size_t i = 0; i < n; i++)
        places[i] = (int32_t)(first + i);
    medusa_run_kept(b->medusa, places, n, out);
}

/* ------------------------------------------------------------------ plain arithmetic */

static const struct heads_shape shapes[] = {
    {.seed = 1, .n_heads = 3, .n_blocks = 1, .scale = 0.03125f},
    {.seed = 2, .n_heads = 3, .n_blocks = 1, .n_draft = 50, .scale = 0.03125f},
    {.seed = 3, .n_heads = 2, .n_blocks = 0, .has_output = true, .scale = 0.125f},
    {.seed = 4,
     .n_heads = 2,
     .n_blocks = 2,
     .has_output = true,
     .n_draft = 99,
     .scale = 0.0625f},
    {.seed = 5,
     .n_heads = HEADS_MAX,
     .n_blocks = HEADS_BLOCKS_MAX,
     .n_draft = 318,
     .scale = 0.03125f},
    {.seed = 6, .n_heads = 2, .n_blocks = 0, .n_draft = 17, .scale = 1},
};
static const char *const models[] = {"tiny-llama-f32.gguf", "tiny-llama-q4_1.gguf",
                                     "tiny-llama-mix.gguf", "tiny-qwen3-q8_0.gguf"};
enum {
    N_SHAPES = sizeof shapes / sizeof shapes[0],
    N_MODELS = sizeof models / sizeof models[0]
};

/* Row i goes to the place of ROWS - 1 - i, but two of them to each other's with a flaw. */
static void keep_all(struct bench *b, float *hidden, bool has_flaw)
{
    int32_t rows[ROWS], places[ROWS];
    for (size_t i = 0; i < ROWS; i++) {
        rows[i] = (int32_t)i;
        places[i] = (int32_t)(ROWS - 1 - i);
        engine_device_read_hidden(b->engine->device, i, hidden + i * b->heads->dim);
    }
    if (has_flaw) {
        places[3] = ROWS - 1 - 7;
        places[7] = ROWS - 1 - 3;
    }
    engine_device_keep_hidden(b->engine->device, ROWS, rows, places);
}

/* The greatest distance of a token that is said from the one that should be. */
static double distance_of(struct bench *b, bool has_flaw)
{
    static struct medusa_guesses said[ROWS];
    const struct heads *h = b->heads;
    float *hidden = malloc(ROWS * h->dim * sizeof hidden[0]);
    double distance = 0;
    compute(b, 1, ROWS);
    keep_all(b, hidden, has_flaw);
    say(b, 0, ROWS, said);
    for (size_t i = 0; i < h->n_heads; i++) {
        double *output = heads_plain_output(b->model, h, i);
        for (size_t k = 0; k < ROWS; k++) {
            double *logits = heads_plain_logits(h, i, output, hidden + k * h->dim);
            const struct medusa_guesses *g = &said[ROWS - 1 - k];
            assert_int_equal(g->n_heads, h->n_heads);
            distance = fmax(distance, heads_plain_distance(h, logits, g->guesses[i]));
            if (!has_flaw)
                heads_plain_check(h, logits, g->guesses[i], NEAR_TIE);
            free(logits);
        }
        free(output);
    }
    free(hidden);
    return distance;
}

static void guesses_are_those_of_plain_arithmetic_but_for_near_ties(void **state)
{
    (void)state;
    double distance = 0;
    for (size_t i = 0; i < N_SHAPES * 2; i++) {
        struct bench b;
        open_bench(&b, models[i % N_MODELS], &shapes[i / 2], i % 2);
        distance = fmax(distance, distance_of(&b, false));
        assert_true(distance_of(&b, true) > 5 * NEAR_TIE);
        close_bench(&b);
    }
    printf("    logits of what is said are within %.4f of the greatest ones\n", distance);
}

/* ------------------------------------------------------------------ the same bits */

static void what_is_said_of_a_row_does_not_depend_on_its_neighbours_or_its_age(void **state)
{
    (void)state;
    static struct medusa_guesses all[ROWS], said[ROWS];
    for (size_t i = 0; i < N_SHAPES; i += 2) {
        struct bench b;
        open_bench(&b, models[i % N_MODELS], &shapes[i], true);
        compute(&b, 1, ROWS);
        for (size_t k = 0; k < ROWS; k++)
            keep_row(&b, k, k);
        say(&b, 0, ROWS, all);
        for (size_t k = 0; k < ROWS; k += 7) {
            say(&b, k, 1, said);
            assert_memory_equal(said, &all[k], sizeof said[0]);
        }
        compute(&b, 2, 9); /* other rows stand where those were computed */
        keep_row(&b, 8, 5);
        say(&b, 0, 9, said);
        for (size_t k = 0; k < 9; k++)
            assert_true((memcmp(&said[k], &all[k], sizeof said[k]) == 0) == (k != 5));
        close_bench(&b);
    }
}

/* ------------------------------------------------------------------ in the engine */

enum { JOBS = 5, ANSWER = 66 };

/* What the heads say behind each token of each answer, as far as they were asked. */
struct known {
    struct medusa_guesses said[JOBS][CONTEXT];
    bool is_known[JOBS][CONTEXT];
};

/* Stands before the heads, where they are asked. */
struct watcher {
    struct draft_proposer heads;
    struct known *known;
    bool learns; /* what is said, and drafts nothing: then all positions are asked about */
    bool swaps;  /* the places of the first two sequences, while the heads are run */
    size_t n_seen, n_wrong;
};

static void swap_places(struct seq *const *seqs, size_t n_seqs)
{
    if (n_seqs < 2)
        return;
    const int32_t place = seqs[0]->heads->place;
    seqs[0]->heads->place = seqs[1]->heads->place;
    seqs[1]->heads->place = place;
}

static void look(struct watcher *w, const struct seq *seq)
{
    const struct head_seq *h = seq->heads;
    if (h->n_said == 0 || h->said[h->n_said - 1].n_tokens != seq->n_tokens)
        return;
    const struct medusa_guesses *said = &h->said[h->n_said - 1].guesses;
    const size_t job = *(const size_t *)seq->req.user;
    struct medusa_guesses *known = &w->known->said[job][seq->n_tokens];
    if (w->learns) {
        *known = *said;
        w->known->is_known[job][seq->n_tokens] = true;
        return;
    }
    assert_true(w->known->is_known[job][seq->n_tokens]);
    w->n_seen++;
    w->n_wrong +=
        said->n_heads != known->n_heads ||
        memcmp(said->guesses, known->guesses, said->n_heads * sizeof said->guesses[0]) != 0;
}

static void watch(void *ctx, struct seq *const *seqs, size_t n_seqs)
{
    struct watcher *w = ctx;
    if (w->swaps)
        swap_places(seqs, n_seqs);
    w->heads.prepare(w->heads.ctx, seqs, n_seqs);
    if (w->swaps)
        swap_places(seqs, n_seqs);
    for (size_t i = 0; i < n_seqs; i++)
        look(w, seqs[i]);
}

static void pass_on(void *ctx, const struct seq *seq, size_t n_max, struct draft *out)
{
    const struct watcher *w = ctx;
    if (!w->learns)
        w->heads.propose(w->heads.ctx, seq, n_max, out);
}

/* Whatever is drafted is verified. */
static void install(struct engine *eng, struct watcher *w)
{
    struct spec_options o = {.batch = eng->options.batch,
                             .nodes_max = eng->options.draft_tokens,
                             .n_vocab = eng->model->config.n_vocab};
    o.n_proposers = drafters_proposers(eng->drafters, o.proposers);
    assert_int_equal(o.n_proposers, 1);
    w->heads = o.proposers[0];
    o.proposers[0] = (struct draft_proposer){
        .propose = pass_on, .prepare = watch, .ctx = w, .sources = w->heads.sources};
    spec_close(eng->spec);
    assert_int_equal(spec_open(&o, eng->prefixes, eng->kvpool, &eng->spec, NULL), 0);
}

static void submit(struct engine *eng)
{
    static size_t ids[JOBS];
    static const size_t lengths[JOBS] = {3, 40, 33, 33, 17};
    for (size_t i = 0; i < JOBS; i++) {
        int32_t prompt[CONTEXT];
        struct err e = {0};
        ids[i] = i;
        for (size_t k = 0; k < lengths[i]; k++)
            prompt[k] = (int32_t)(rng_bits(i % 2 && k < 32 ? 7 : 100 + i, 4, k) % 300);
        const struct seq_request req = {.prompt = prompt,
                                        .n_prompt = lengths[i],
                                        .max_tokens = ANSWER,
                                        .ignore_eos = true,
                                        .sample = sample_params_greedy(),
                                        .user = &ids[i]};
        if (engine_submit(eng, &req, &e) != 0)
            fail_msg("%s", e.text);
    }
}

static void answer(const struct model *m, const struct engine_options *o, struct watcher *w,
                   struct engine_counters *counters)
{
    struct engine *eng = golden_open_engine(m, "ref", ACT_F32, KV_BF16, o);
    struct seq_result r;
    install(eng, w);
    submit(eng);
    while (engine_active(eng) > 0) {
        bool worked;
        struct err e = {0};
        if (!engine_collect(eng, &r) && engine_step(eng, &worked, &e) != 0)
            fail_msg("%s", e.text);
    }
    *counters = engine_counters(eng);
    engine_close(eng);
}

static void a_sequences_guesses_are_its_own_whatever_runs_beside(void **state)
{
    (void)state;
    static struct known known;
    struct model *m = golden_open_tiny("tiny-llama-q8_0.gguf");
    struct heads *h = heads_make(m, &shapes[1]);
    struct engine_counters counters;
    struct watcher w = {.known = &known, .learns = true};
    struct engine_options o = options_of(h, 1, true);
    answer(m, &o, &w, &counters);
    w = (struct watcher){.known = &known};
    o = options_of(h, 3, true);
    o.prefix_cache = o.shared_attention = o.whole_prompts = true;
    o.prefix_tokens_min = 1;
    answer(m, &o, &w, &counters);
    assert_true(w.n_seen > JOBS && counters.cached_tokens > 0 && counters.drafts.drafted > 0);
    assert_int_equal(w.n_wrong, 0);
    w = (struct watcher){.known = &known};
    o = options_of(h, JOBS, true);
    const struct kvpool_shape shape = kvpool_shape_of(&m->config, KV_BF16);
    o.kv_bytes = 7 * kvpool_page_bytes(&shape);
    answer(m, &o, &w, &counters);
    assert_true(w.n_seen > JOBS && counters.preemptions > 0);
    assert_int_equal(w.n_wrong, 0);
    w = (struct watcher){.known = &known, .swaps = true};
    answer(m, &o, &w, &counters);
    assert_true(w.n_wrong > 0);
    heads_close(h);
    model_close(m);
}

/* ------------------------------------------------------------------ what it takes */

static void weights_of_heads_are_part_of_what_a_device_says_it_takes(void **state)
{
    (void)state;
    struct bench b, none;
    open_bench(&b, "tiny-llama-f32.gguf", &shapes[3], true);
    const size_t with = engine_plan(b.engine).weights_bytes;
    close_bench(&b);
    none.model = golden_open_tiny("tiny-llama-f32.gguf");
    struct engine_options o = options_of(NULL, ROWS, true);
    o.speculation = SPECULATION_OFF;
    o.draft_tokens = 0;
    struct engine *eng = golden_open_engine(none.model, "ref", ACT_F32, KV_BF16, &o);
    const size_t dim = none.model->config.dim;
    /* Two heads of two blocks with biases, and 99 rows of output each; bfloat16 is 2 bytes. */
    assert_int_equal(with - engine_plan(eng).weights_bytes,
                     2 * (2 * (dim * dim * 2 + dim * 4) + 99 * dim * 2));
    engine_close(eng);
    model_close(none.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guesses_are_those_of_plain_arithmetic_but_for_near_ties),
        cmocka_unit_test(what_is_said_of_a_row_does_not_depend_on_its_neighbours_or_its_age),
        cmocka_unit_test(a_sequences_guesses_are_its_own_whatever_runs_beside),
        cmocka_unit_test(weights_of_heads_are_part_of_what_a_device_says_it_takes),
    };
    return cmocka_run_group_tests_name("heads on a device", tests, NULL, NULL);
}
