/* The engine's promises to its caller, on a tiny model with real arithmetic. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/rng.h"
#include "engine/calibrate.h"
#include "engine/kvpool.h"
#include "golden.h"

enum { CONTEXT = 96, PROMPT = 10, FREE = 40 };

static struct model *model;
static int32_t prompt[CONTEXT + 2];
static int32_t eos;

/* What the model says after prompt[0, PROMPT) when nothing ends it. */
static int32_t free_tokens[FREE];
static char free_text[2048];
static size_t piece_ends[FREE]; /* bytes of text after each token */

struct ending {
    enum finish_reason reason;
    int stop_index;
    int32_t stop_token;
    size_t n_tokens;
    char text[2048];
    struct seq_result result; /* its pointers are dead */
};

static struct engine *open_engine(size_t batch, size_t chunk, size_t n_pages)
{
    const struct kvpool_shape shape = {.n_layers = model->config.n_layers,
                                       .n_kv_heads = model->config.n_kv_heads,
                                       .head_dim = model->config.head_dim,
                                       .type = KV_BF16};
    const struct engine_options o = {.n_threads = 2,
                                     .batch = batch,
                                     .step_tokens = 64,
                                     .chunk_tokens = chunk,
                                     .context = CONTEXT,
                                     .kv_bytes = n_pages * kvpool_page_bytes(&shape)};
    const char *isas[3];
    return golden_open_engine(model, isas[golden_isas(isas) - 1], ACT_INT8, KV_BF16, &o);
}

static struct seq_request request(size_t n_prompt, size_t max_tokens)
{
    return (struct seq_request){.prompt = prompt,
                                .n_prompt = n_prompt,
                                .max_tokens = max_tokens,
                                .ignore_eos = true,
                                .sample = sample_params_greedy()};
}

static void step(struct engine *eng)
{
    bool worked;
    struct err e = {0};
    if (engine_step(eng, &worked, &e) != 0)
        fail_msg("%s", e.text);
}

static struct ending next_ending(struct engine *eng)
{
    struct ending out = {0};
    while (!engine_collect(eng, &out.result))
        step(eng);
    out.reason = out.result.reason;
    out.stop_index = out.result.stop_index;
    out.stop_token = out.result.stop_token;
    out.n_tokens = out.result.n_tokens;
    assert_true(out.result.text_bytes < sizeof out.text);
    memcpy(out.text, out.result.text, out.result.text_bytes);
    for (size_t i = 0; i + 1 < out.n_tokens && i < FREE && out.result.n_prompt == PROMPT; i++)
        if (out.result.tokens[i] != free_tokens[i] && free_text[0])
            fail_msg("token %zu is not what the model says", i);
    return out;
}

static struct ending answer(const struct seq_request *req)
{
    struct engine *eng = open_engine(2, 64, 8);
    struct err e = {0};
    if (engine_submit(eng, req, &e) != 0)
        fail_msg("%s", e.text);
    const struct ending out = next_ending(eng);
    assert_int_equal(engine_active(eng), 0);
    engine_close(eng);
    return out;
}

static int load(void **state)
{
    (void)state;
    model = golden_open_tiny("tiny-llama-q4_1.gguf");
    eos = tokenizer_eos(model->tokenizer);
    for (size_t i = 0; i < CONTEXT + 2; i++)
        prompt[i] = (int32_t)(rng_bits(11, 0, i) % 300);
    const struct seq_request req = request(PROMPT, FREE);
    struct engine *eng = open_engine(1, 64, 8);
    struct seq_result r;
    if (engine_submit(eng, &req, NULL) != 0)
        return -1;
    while (!engine_collect(eng, &r))
        step(eng);
    memcpy(free_tokens, r.tokens, sizeof free_tokens);
    size_t n = 0;
    for (size_t i = 0; i < FREE; i++) {
        const struct gguf_str piece = tokenizer_piece(model->tokenizer, free_tokens[i]);
        memcpy(free_text + n, piece.data, piece.length);
        n += piece.length;
        piece_ends[i] = n;
    }
    const bool same = n == r.text_bytes && memcmp(free_text, r.text, n) == 0;
    engine_close(eng);
    return same && eos >= 0 ? 0 : -1;
}

static int unload(void **state)
{
    (void)state;
    model_close(model);
    return 0;
}

/* The first token from index on whose piece is there, nowhere before, and not the end. */
static size_t unique_token(size_t index)
{
    for (size_t i = index; i < FREE; i++) {
        bool before = tokenizer_is_end(model->tokenizer, free_tokens[i]) ||
                      piece_ends[i] == piece_ends[i - 1];
        for (size_t k = 0; k < i; k++)
            before = before || free_tokens[k] == free_tokens[i];
        if (!before)
            return i;
    }
    fail_msg("the model repeats itself too much for this test");
    return 0;
}

/* ------------------------------------------------------------------ endings */

static void an_end_token_ends_even_as_the_first_and_leaves_no_text(void **state)
{
    (void)state;
    const struct logit_bias bias = {eos, 1000};
    struct seq_request req = request(PROMPT, 5);
    req.sample.bias = &bias;
    req.sample.n_bias = 1;
    req.ignore_eos = false;
    const struct ending end = answer(&req);
    assert_int_equal(end.reason, FINISH_EOS);
    assert_int_equal(end.stop_token, eos);
    assert_int_equal(end.n_tokens, 1);
    assert_string_equal(end.text, "");
    assert_int_equal(end.result.first_token_us, end.result.last_token_us);
}

static void ignore_eos_goes_on_to_max_tokens(void **state)
{
    (void)state;
    const struct logit_bias bias = {eos, 1000};
    struct engine *eng = open_engine(1, 64, 8);
    struct seq_request req = request(1, 5);
    req.sample.bias = &bias;
    req.sample.n_bias = 1;
    assert_int_equal(engine_submit(eng, &req, NULL), 0);
    const struct ending end = next_ending(eng);
    assert_int_equal(end.reason, FINISH_LENGTH);
    assert_int_equal(end.n_tokens, 5);
    assert_int_equal(end.stop_token, TOKEN_NONE);
    engine_close(eng);
}

static void no_end_comes_before_min_tokens(void **state)
{
    (void)state;
    struct engine *eng = open_engine(1, 64, 8);
    const struct logit_bias bias = {eos, 1000};
    struct seq_request req = request(1, 20);
    req.ignore_eos = false;
    req.sample.bias = &bias;
    req.sample.n_bias = 1;
    for (req.min_tokens = 0; req.min_tokens < 4; req.min_tokens++) {
        assert_int_equal(engine_submit(eng, &req, NULL), 0);
        const struct ending end = next_ending(eng);
        assert_int_equal(end.reason, FINISH_EOS);
        assert_int_equal(end.n_tokens, req.min_tokens + 1); /* and then the end token */
    }
    engine_close(eng);
}

/* A stop string from the middle of one piece to the middle of another. */
static void a_stop_string_ends_across_token_borders(void **state)
{
    (void)state;
    const size_t token = unique_token(4);
    const size_t end_at = piece_ends[token - 1] + 1; /* one byte into that token's piece */
    size_t start_at = piece_ends[token - 3];
    char stop[2048] = {0};
    memcpy(stop, free_text + start_at, end_at - start_at);
    const char *first = strstr(free_text, stop);
    const char *const stops[] = {"never said, surely", stop};
    struct seq_request req = request(PROMPT, FREE);
    req.stops = stops;
    req.n_stops = 2;
    for (int include = 0; include < 2; include++) {
        req.include_stop = include;
        const struct ending end = answer(&req);
        assert_int_equal(end.reason, FINISH_STOP);
        assert_int_equal(end.stop_index, 1);
        const size_t kept = (size_t)(first - free_text) + (include ? strlen(stop) : 0);
        assert_int_equal(strlen(end.text), kept);
        assert_memory_equal(end.text, free_text, kept);
        size_t last = 0; /* the token in which the first occurrence ends */
        while (piece_ends[last] < (size_t)(first - free_text) + strlen(stop))
            last++;
        assert_int_equal(end.n_tokens, last + 1);
    }
}

static void a_stop_token_ends_and_leaves_no_text(void **state)
{
    (void)state;
    const size_t token = unique_token(3);
    const int32_t ids[] = {-5, 1 << 30, free_tokens[token]};
    struct seq_request req = request(PROMPT, FREE);
    req.stop_tokens = ids;
    req.n_stop_tokens = 3;
    struct ending end = answer(&req);
    assert_int_equal(end.reason, FINISH_STOP);
    assert_int_equal(end.stop_index, -1);
    assert_int_equal(end.stop_token, free_tokens[token]);
    assert_int_equal(end.n_tokens, token + 1);
    assert_int_equal(strlen(end.text), piece_ends[token - 1]);
    req.min_tokens = token + 1; /* it came too early to count */
    req.max_tokens = token + 2;
    end = answer(&req);
    assert_true(end.reason == FINISH_LENGTH ||
                (end.n_tokens == token + 2 && end.stop_token == free_tokens[token]));
    assert_memory_equal(end.text, free_text, piece_ends[token]);
}

static void max_tokens_ends_exactly(void **state)
{
    (void)state;
    for (size_t max = 1; max < 5; max++) {
        const struct seq_request req = request(PROMPT, max);
        const struct ending end = answer(&req);
        assert_int_equal(end.reason, FINISH_LENGTH);
        assert_int_equal(end.n_tokens, max);
        assert_int_equal(strlen(end.text), piece_ends[max - 1]);
    }
}

static void the_context_ends_exactly_when_it_is_full(void **state)
{
    (void)state;
    static const size_t maxima[] = {SIZE_MAX, 1000, CONTEXT - PROMPT + 1};
    for (size_t i = 0; i < 3; i++) {
        const struct seq_request req = request(PROMPT, maxima[i]);
        const struct ending end = answer(&req);
        assert_int_equal(end.reason, FINISH_CONTEXT);
        assert_int_equal(end.n_tokens, CONTEXT - PROMPT);
    }
    const struct seq_request req = request(PROMPT, CONTEXT - PROMPT);
    assert_int_equal(answer(&req).reason, FINISH_LENGTH);
}

/* ------------------------------------------------------------------ refusals */

static void a_prompt_must_leave_room_for_a_token(void **state)
{
    (void)state;
    struct seq_request req = request(CONTEXT - 1, 100);
    const struct ending end = answer(&req);
    assert_int_equal(end.n_tokens, 1);
    assert_int_equal(end.reason, FINISH_CONTEXT);
    struct engine *eng = open_engine(1, 64, 8);
    for (req.n_prompt = CONTEXT; req.n_prompt <= CONTEXT + 1; req.n_prompt++) {
        struct err e = {0};
        char number[16];
        snprintf(number, sizeof number, " %zu ", req.n_prompt);
        assert_int_equal(engine_submit(eng, &req, &e), ERR_CONTEXT);
        assert_int_equal(e.flags, ERR_JOB);
        assert_non_null(strstr(e.text, number));
        assert_non_null(strstr(e.text, " 96 "));
    }
    assert_int_equal(engine_active(eng), 0);
    engine_close(eng);
}

static void a_job_larger_than_the_pool_is_refused_and_its_neighbour_runs(void **state)
{
    (void)state;
    struct engine *eng = open_engine(4, 64, 2);
    struct seq_request req = request(PROMPT, 2 * KV_PAGE_TOKENS - PROMPT + 1);
    struct err e = {0};
    assert_int_equal(engine_submit(eng, &req, &e), ERR_LIMIT);
    assert_int_equal(e.flags, ERR_JOB);
    req.max_tokens--;
    assert_int_equal(engine_submit(eng, &req, NULL), 0);
    assert_int_equal(next_ending(eng).reason, FINISH_LENGTH);
    engine_close(eng);
}

static void ids_outside_the_vocabulary_are_job_errors(void **state)
{
    (void)state;
    static const int32_t bad[] = {-1, 320, INT32_MAX, INT32_MIN};
    struct engine *eng = open_engine(1, 64, 8);
    assert_int_equal(model->config.n_vocab, 320);
    for (size_t i = 0; i < 4; i++) {
        const int32_t ids[] = {1, 2, bad[i]};
        struct err e = {0};
        struct seq_request req = request(3, 1);
        req.prompt = ids;
        assert_int_equal(engine_submit(eng, &req, &e), ERR_INVALID);
        assert_int_equal(e.flags, ERR_JOB);
        const struct logit_bias bias[] = {{319, 1}, {bad[i], 1}};
        req = request(3, 1);
        req.sample.bias = bias;
        req.sample.n_bias = 2;
        err_clear(&e);
        assert_int_equal(engine_submit(eng, &req, &e), ERR_INVALID);
        assert_int_equal(e.flags, ERR_JOB);
        float logits[3 * 320];
        assert_int_equal(engine_logits(eng, ids, 3, logits, NULL), ERR_INVALID);
    }
    struct seq_request req = request(0, 1);
    assert_int_equal(engine_submit(eng, &req, NULL), ERR_INVALID);
    req = request(1, 0);
    assert_int_equal(engine_submit(eng, &req, NULL), ERR_INVALID);
    assert_int_equal(engine_active(eng), 0);
    engine_close(eng);
}

static void options_out_of_range_are_configuration_errors(void **state)
{
    (void)state;
    const struct engine_options good = {
        .n_threads = 1, .batch = 2, .step_tokens = 16, .chunk_tokens = 8};
    struct engine_options bad[5];
    for (size_t i = 0; i < 5; i++)
        bad[i] = good;
    bad[0].n_threads = ENGINE_THREADS_MAX + 1;
    bad[1].batch = 0;
    bad[2].batch = ENGINE_SEQS_MAX + 1;
    bad[3].step_tokens = STEP_ROWS_MAX + 1;
    bad[4].kv_bytes = 1;
    for (size_t i = 0; i < 5; i++) {
        struct engine *eng = NULL;
        struct err e = {0};
        assert_int_equal(engine_open(model, &bad[i], &eng, &e), ERR_CONFIG);
        assert_true(strlen(e.text) > 0);
        assert_null(eng);
    }
}

static void without_a_chunk_size_the_engine_measures_one_and_answers_the_same(void **state)
{
    (void)state;
    const struct engine_options o = {.n_threads = 1,
                                     .batch = 2,
                                     .step_tokens = 128,
                                     .context = CONTEXT,
                                     .activations = ACT_INT8,
                                     .kv_type = KV_BF16};
    struct engine *eng = NULL;
    assert_int_equal(engine_open(model, &o, &eng, NULL), 0);
    const struct engine_plan plan = engine_plan(eng);
    assert_true(plan.calibration.n_points >= 1);
    bool is_point = false;
    for (size_t i = 0; i < plan.calibration.n_points; i++) {
        assert_int_equal(plan.calibration.points[i].n_rows, (size_t)16 << i);
        assert_true(plan.calibration.points[i].us > 0);
        is_point = is_point || plan.calibration.points[i].n_rows == plan.chunk_tokens;
    }
    assert_true(is_point);
    const struct seq_request req = request(PROMPT, FREE);
    struct seq_result r;
    assert_int_equal(engine_submit(eng, &req, NULL), 0);
    while (!engine_collect(eng, &r))
        step(eng);
    assert_memory_equal(r.tokens, free_tokens, sizeof free_tokens);
    engine_close(eng);
}

/* The points are made up: a row of 64 costs as much as a row of 128. */
static void the_chunk_is_the_smallest_that_is_nearly_as_fast_as_any(void **state)
{
    (void)state;
    struct calibration c = {4, {{16, 8000}, {32, 12000}, {64, 20000}, {128, 39500}}};
    assert_int_equal(calibration_chunk(&c), 64);
    c.points[3].us = 30000;
    assert_int_equal(calibration_chunk(&c), 128);
    c.n_points = 1;
    assert_int_equal(calibration_chunk(&c), 16);
}

/* The pool alone would fit; with the weights it does not. */
static void more_memory_than_the_machine_has_is_a_configuration_error(void **state)
{
    (void)state;
    const size_t machine = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGE_SIZE);
    const struct kvpool_shape shape = kvpool_shape_of(&model->config, KV_F32);
    const size_t most = KV_PAGES_MAX * kvpool_page_bytes(&shape); /* hundreds of GiB */
    const size_t kv_bytes[] = {machine, most, machine / 64};
    for (size_t i = 0; i < 3; i++) {
        const struct engine_options o = {.n_threads = 1,
                                         .batch = 2,
                                         .step_tokens = 16,
                                         .chunk_tokens = 8,
                                         .kv_bytes = kv_bytes[i]};
        struct engine *eng = NULL;
        struct err e = {0};
        const bool fits = i == 2; /* the twin */
        assert_int_equal(engine_open(model, &o, &eng, &e), fits ? 0 : ERR_CONFIG);
        char has[64];
        snprintf(has, sizeof has, "the machine has %zu MiB; lower kv.mb", machine >> 20);
        assert_int_equal(strstr(e.text, has) != NULL, !fits);
        engine_close(eng);
    }
}

/* One page more than can be named. The twin is refused for its memory, where the machine has
 * less. */
static void more_pages_than_can_be_named_are_a_configuration_error(void **state)
{
    (void)state;
    const size_t machine = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGE_SIZE);
    const struct kvpool_shape shape = kvpool_shape_of(&model->config, KV_BF16);
    for (size_t n_more = 0; n_more <= 1; n_more++) {
        const struct engine_options o = {.n_threads = 1,
                                         .batch = 2,
                                         .step_tokens = 16,
                                         .chunk_tokens = 8,
                                         .kv_type = KV_BF16,
                                         .kv_bytes = ((size_t)67108863 + n_more) *
                                                     kvpool_page_bytes(&shape)};
        struct engine *eng = NULL;
        struct err e = {0};
        if (n_more == 0 && o.kv_bytes < machine)
            continue;
        assert_int_equal(engine_open(model, &o, &eng, &e), ERR_CONFIG);
        assert_int_equal(strstr(e.text, "67108864 KV pages of") != NULL, n_more);
        assert_int_equal(strstr(e.text, "lower kv.mb") != NULL, !n_more);
    }
}

static void a_context_shorter_than_a_page_leaves_the_disk_off(void **state)
{
    (void)state;
    char folder[] = "/tmp/sheaf-engine-XXXXXX";
    assert_non_null(mkdtemp(folder));
    for (size_t context = 31; context <= 32; context++) {
        const struct engine_options o = {.n_threads = 1,
                                         .batch = 2,
                                         .step_tokens = 16,
                                         .chunk_tokens = 8,
                                         .context = context,
                                         .prefix_cache = true,
                                         .prefix_tokens_min = 1,
                                         .kv_disk = folder,
                                         .kv_disk_bytes = 1 << 28};
        struct engine *eng = NULL;
        assert_int_equal(engine_open(model, &o, &eng, NULL), 0);
        struct seq_request req = request(8, 30);
        for (size_t i = 0; i < 2; i++) {
            assert_int_equal(engine_submit(eng, &req, NULL), 0);
            assert_int_equal(next_ending(eng).reason, FINISH_CONTEXT);
        }
        engine_close(eng);
    }
    assert_int_equal(rmdir(folder), 0); /* a prompt of 8 tokens leaves no file */
}

/* Tokens of a prompt of three pages that its second run found, when prefix_bytes may stay. */
static uint64_t cached_with(size_t prefix_bytes)
{
    const struct engine_options o = {.n_threads = 1,
                                     .batch = 1,
                                     .step_tokens = 64,
                                     .chunk_tokens = 64,
                                     .context = CONTEXT,
                                     .prefix_cache = true,
                                     .prefix_tokens_min = 1,
                                     .prefix_bytes = prefix_bytes};
    struct engine *eng = NULL;
    assert_int_equal(engine_open(model, &o, &eng, NULL), 0);
    const struct seq_request req = request(CONTEXT - 1, 1);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(engine_submit(eng, &req, NULL), 0);
        assert_int_equal(next_ending(eng).reason, FINISH_LENGTH);
    }
    const uint64_t n = engine_counters(eng).cached_tokens;
    engine_close(eng);
    return n;
}

static void idle_prefixes_keep_to_the_bytes_that_they_are_given(void **state)
{
    (void)state;
    const struct kvpool_shape shape = {.n_layers = model->config.n_layers,
                                       .n_kv_heads = model->config.n_kv_heads,
                                       .head_dim = model->config.head_dim,
                                       .type = KV_F32};
    const size_t page = kvpool_page_bytes(&shape);
    assert_int_equal(cached_with(0), CONTEXT - 2); /* the last token is computed always */
    assert_int_equal(cached_with(2 * page), 2 * KV_PAGE_TOKENS);
    assert_int_equal(cached_with(page), KV_PAGE_TOKENS);
    assert_int_equal(cached_with(1), KV_PAGE_TOKENS); /* a page at least */
}

/* ------------------------------------------------------------------ leaving early */

/* One that runs and one that waits; the others go on as if nothing had been. */
static void cancelling_one_ends_that_one_only(void **state)
{
    (void)state;
    static size_t users[4] = {0, 1, 2, 3};
    struct engine *eng = open_engine(2, 8, 12);
    for (size_t i = 0; i < 4; i++) {
        struct seq_request req = request(PROMPT, 20);
        req.user = &users[i];
        assert_int_equal(engine_submit(eng, &req, NULL), 0);
    }
    for (size_t i = 0; i < 8; i++)
        step(eng);
    assert_true(engine_cancel(eng, &users[1]));
    assert_true(engine_cancel(eng, &users[3]));
    assert_false(engine_cancel(eng, &eng));
    size_t n_cut[4], n_whole = 0;
    for (size_t i = 0; i < 4; i++) {
        const struct ending end = next_ending(eng);
        const size_t user = *(const size_t *)end.result.user;
        n_cut[user] = end.n_tokens;
        assert_int_equal(end.reason, user % 2 ? FINISH_CANCELLED : FINISH_LENGTH);
        assert_int_equal(end.n_tokens == 20, user % 2 == 0);
        n_whole += end.reason == FINISH_LENGTH;
    }
    assert_int_equal(n_whole, 2);
    assert_true(n_cut[1] > 0); /* the tokens so far */
    assert_int_equal(n_cut[3], 0);
    assert_false(engine_cancel(eng, &users[0]));
    engine_close(eng);
}

static void cancelling_ends_running_and_waiting_sequences(void **state)
{
    (void)state;
    struct engine *eng = open_engine(2, 8, 8);
    for (size_t i = 0; i < 5; i++) {
        const struct seq_request req = request(PROMPT, 30);
        assert_int_equal(engine_submit(eng, &req, NULL), 0);
    }
    assert_false(engine_has_room(eng));
    for (size_t i = 0; i < 6; i++)
        step(eng);
    engine_cancel_all(eng);
    size_t n_with_text = 0;
    for (size_t i = 0; i < 5; i++) {
        const struct ending end = next_ending(eng);
        assert_int_equal(end.reason, FINISH_CANCELLED);
        assert_true(end.n_tokens < 30);
        n_with_text += end.n_tokens > 0;
    }
    assert_int_equal(n_with_text, 2);
    assert_int_equal(engine_active(eng), 0);
    struct engine_counters c = engine_counters(eng);
    assert_int_equal(c.prompt_tokens + c.cached_tokens + c.generated_tokens, 0);
    assert_int_equal(c.computed_tokens, 2 * PROMPT); /* that work was done all the same */
    /* What comes after is not touched. */
    const struct seq_request req = request(PROMPT, 3);
    assert_int_equal(engine_submit(eng, &req, NULL), 0);
    assert_int_equal(next_ending(eng).reason, FINISH_LENGTH);
    c = engine_counters(eng);
    assert_int_equal(c.prompt_tokens, PROMPT);
    assert_int_equal(c.generated_tokens, 3);
    engine_close(eng);
}

static void closing_with_active_and_uncollected_sequences_leaks_nothing(void **state)
{
    (void)state;
    for (size_t steps = 0; steps < 8; steps++) {
        struct engine *eng = open_engine(2, 8, 8);
        for (size_t i = 0; i < 4; i++) {
            const struct seq_request req = request(PROMPT, 1 + 20 * (i % 2));
            assert_int_equal(engine_submit(eng, &req, NULL), 0);
        }
        for (size_t i = 0; i < steps; i++)
            step(eng);
        struct seq_result r;
        if (steps > 4)
            assert_true(engine_collect(eng, &r));
        engine_close(eng);
    }
}

/* ------------------------------------------------------------------ accounting */

static void counters_and_times_of_all_answers_add_up(void **state)
{
    (void)state;
    enum { N = 12 };
    struct engine *eng = open_engine(4, 7, 40);
    size_t n_prompt = 0, n_generated = 0, n_steps_max = 0;
    for (size_t i = 0; i < N; i++) {
        const struct seq_request req = request(1 + 6 * i, 1 + i);
        assert_int_equal(engine_submit(eng, &req, NULL), 0);
    }
    for (size_t i = 0; i < N; i++) {
        const struct ending end = next_ending(eng);
        const struct seq_result *r = &end.result;
        assert_int_equal(r->n_preempted, 0);
        assert_true(r->submitted_us <= r->scheduled_us);
        assert_true(r->scheduled_us <= r->first_token_us);
        assert_true(r->first_token_us <= r->last_token_us);
        assert_true(r->gap_us_max <= r->last_token_us - r->first_token_us);
        assert_true(r->n_chunks >= (r->n_prompt + 6) / 7);
        assert_int_equal(r->n_steps, r->n_chunks + r->n_tokens - 1);
        /* The last token's key is never computed. */
        assert_int_equal(r->kv_pages_peak, (r->n_prompt + r->n_tokens - 1 + 31) / 32);
        n_prompt += r->n_prompt;
        n_generated += r->n_tokens;
        n_steps_max = r->n_steps > n_steps_max ? r->n_steps : n_steps_max;
    }
    const struct engine_counters c = engine_counters(eng);
    assert_int_equal(c.prompt_tokens, n_prompt);
    assert_int_equal(c.computed_tokens + c.cached_tokens, n_prompt);
    assert_int_equal(c.generated_tokens, n_generated);
    assert_int_equal(c.rows, n_prompt + n_generated - N);
    assert_int_equal(c.preemptions, 0);
    assert_true(c.steps >= n_steps_max);
    assert_int_equal(c.busy_us, c.prefill_us + c.decode_us);
    engine_close(eng);
}

/* Rows of answers that are computed again are no prompt rows, however chunks are cut. */
static void preemption_counts_prompt_rows_only(void **state)
{
    (void)state;
    static const size_t chunks[] = {64, 5};
    for (size_t k = 0; k < 2; k++) {
        struct engine *eng = open_engine(2, chunks[k], 3);
        const struct seq_request req = request(PROMPT, 80);
        const size_t n = 2;
        for (size_t i = 0; i < n; i++)
            assert_int_equal(engine_submit(eng, &req, NULL), 0);
        size_t n_preempted = 0;
        for (size_t i = 0; i < n; i++)
            n_preempted += next_ending(eng).result.n_preempted;
        const struct engine_counters c = engine_counters(eng);
        assert_true(n_preempted > 0);
        assert_int_equal(c.preemptions, n_preempted);
        assert_int_equal(c.computed_tokens, (n + n_preempted) * PROMPT);
        engine_close(eng);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_end_token_ends_even_as_the_first_and_leaves_no_text),
        cmocka_unit_test(ignore_eos_goes_on_to_max_tokens),
        cmocka_unit_test(no_end_comes_before_min_tokens),
        cmocka_unit_test(a_stop_string_ends_across_token_borders),
        cmocka_unit_test(a_stop_token_ends_and_leaves_no_text),
        cmocka_unit_test(max_tokens_ends_exactly),
        cmocka_unit_test(the_context_ends_exactly_when_it_is_full),
        cmocka_unit_test(a_prompt_must_leave_room_for_a_token),
        cmocka_unit_test(a_job_larger_than_the_pool_is_refused_and_its_neighbour_runs),
        cmocka_unit_test(ids_outside_the_vocabulary_are_job_errors),
        cmocka_unit_test(options_out_of_range_are_configuration_errors),
        cmocka_unit_test(more_memory_than_the_machine_has_is_a_configuration_error),
        cmocka_unit_test(more_pages_than_can_be_named_are_a_configuration_error),
        cmocka_unit_test(a_context_shorter_than_a_page_leaves_the_disk_off),
        cmocka_unit_test(idle_prefixes_keep_to_the_bytes_that_they_are_given),
        cmocka_unit_test(without_a_chunk_size_the_engine_measures_one_and_answers_the_same),
        cmocka_unit_test(the_chunk_is_the_smallest_that_is_nearly_as_fast_as_any),
        cmocka_unit_test(cancelling_one_ends_that_one_only),
        cmocka_unit_test(cancelling_ends_running_and_waiting_sequences),
        cmocka_unit_test(closing_with_active_and_uncollected_sequences_leaks_nothing),
        cmocka_unit_test(counters_and_times_of_all_answers_add_up),
        cmocka_unit_test(preemption_counts_prompt_rows_only),
    };
    return cmocka_run_group_tests_name("engine", tests, load, unload);
}
