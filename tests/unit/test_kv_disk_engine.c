/*
 * Nights over the same documents: with files of the night before, with damaged ones, with those
 * of another model or without any, the answers are the same; what is loaded is not computed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "golden.h"
#include "kv_make.h"

enum { DOCUMENTS = 3, QUESTIONS = 4, N_JOBS = DOCUMENTS * QUESTIONS, N_OUT = 6 };
enum { DOCUMENT_TOKENS = 4 * PAGE, QUESTION_TOKENS = 9 };

/* ------------------------------------------------------------------ the tree's part */

static struct prefix_tree *open_tree(struct kvpool **pool, size_t pages_max)
{
    const struct kvpool_shape shape = small_shape(KV_BF16);
    const struct prefix_options o = {
        .enabled = true, .evicts_by_demand = true, .tokens_min = 1, .pages_max = pages_max};
    struct prefix_tree *t = NULL;
    assert_int_equal(kvpool_open(&shape, pool, NULL), 0);
    assert_int_equal(prefix_open(&o, *pool, &t, NULL), 0);
    return t;
}

static struct prefix_path *want(struct prefix_tree *t, const int32_t *tokens, size_t n)
{
    struct prefix_path *path = NULL;
    assert_int_equal(prefix_want(t, NULL, tokens, n, PREFIX_NEXT, &path, NULL), 0);
    return path;
}

static size_t found(const struct prefix_tree *t, const struct prefix_path *path,
                    const int32_t *tokens, size_t n)
{
    struct prefix_hit hit;
    assert_true(prefix_check(t));
    prefix_find(t, path, tokens, n, &hit);
    return hit.n_tokens;
}

static void an_inserted_page_is_found_by_whoever_goes_that_way(void **state)
{
    (void)state;
    int32_t tokens[3 * PAGE + 1] = {0};
    const size_t n = 3 * PAGE + 1;
    struct kvpool *pool;
    struct prefix_tree *t = open_tree(&pool, 0);
    struct prefix_path *path = want(t, tokens, n);
    struct prefix_path *other = want(t, tokens, n);
    assert_true(prefix_insert_page(t, path, 0, prefix_acquire_page(t)));
    assert_true(prefix_insert_page(t, path, 1, prefix_acquire_page(t)));
    assert_int_equal(found(t, path, tokens, n), 2 * PAGE);
    assert_int_equal(found(t, other, tokens, n), 2 * PAGE);
    assert_int_equal(kvpool_idle_pages(pool), 2);
    assert_int_equal(prefix_pages_available(t), POOL_PAGES);
    /* A twin is given back. */
    assert_true(prefix_insert_page(t, other, 1, prefix_acquire_page(t)));
    assert_int_equal(kvpool_idle_pages(pool), 2);
    assert_int_equal(prefix_pages_available(t), POOL_PAGES);
    int32_t pages[4];
    struct prefix_hit hit;
    assert_true(prefix_start(t, path, tokens, n, 0, pages, &hit));
    assert_int_equal(hit.n_pages_shared, 2);
    assert_true(prefix_check(t));
    prefix_stop(t, path, tokens, n, pages, 4, false);
    assert_int_equal(found(t, other, tokens, n), 3 * PAGE);
    prefix_unwant(t, other);
    prefix_close(t);
    kvpool_close(pool);
}

static void a_page_without_the_one_before_it_is_given_back(void **state)
{
    (void)state;
    int32_t tokens[3 * PAGE] = {0};
    struct kvpool *pool;
    struct prefix_tree *t = open_tree(&pool, 0);
    struct prefix_path *path = want(t, tokens, 3 * PAGE);
    assert_false(prefix_insert_page(t, path, 1, prefix_acquire_page(t)));
    assert_false(prefix_insert_page(t, path, 3, prefix_acquire_page(t)));
    assert_int_equal(found(t, path, tokens, 3 * PAGE), 0);
    assert_int_equal(kvpool_free_pages(pool), POOL_PAGES);
    assert_true(prefix_insert_page(t, path, 0, prefix_acquire_page(t)));
    assert_true(prefix_insert_page(t, path, 1, prefix_acquire_page(t)));
    assert_true(prefix_insert_page(t, path, 2, prefix_acquire_page(t)));
    assert_int_equal(found(t, path, tokens, 3 * PAGE), 3 * PAGE - 1);
    prefix_unwant(t, path);
    prefix_close(t);
    kvpool_close(pool);
}

static void inserted_pages_keep_the_limit_and_go_when_needed(void **state)
{
    (void)state;
    int32_t tokens[4 * PAGE] = {0};
    struct kvpool *pool;
    struct prefix_tree *t = open_tree(&pool, 2);
    struct prefix_path *path = want(t, tokens, 4 * PAGE);
    for (size_t i = 0; i < 4; i++)
        prefix_insert_page(t, path, i, prefix_acquire_page(t));
    assert_true(prefix_check(t));
    assert_in_range(kvpool_idle_pages(pool), 1, 2);
    int32_t pages[POOL_PAGES];
    for (size_t i = 0; i < POOL_PAGES; i++) {
        pages[i] = prefix_acquire_page(t);
        assert_int_not_equal(pages[i], KVPOOL_NO_PAGE);
    }
    assert_int_equal(prefix_acquire_page(t), KVPOOL_NO_PAGE);
    assert_int_equal(found(t, path, tokens, 4 * PAGE), 0);
    for (size_t i = 0; i < POOL_PAGES; i++)
        kvpool_release_page(pool, pages[i]);
    prefix_unwant(t, path);
    prefix_close(t);
    kvpool_close(pool);
}

/* One bad file among three: what stands before it is used, and each is said when bad. */
static void every_bad_file_of_a_prefix_is_said_at_once(void **state)
{
    (void)state;
    struct kv_world w;
    make_world(&w, KV_BF16);
    save_pages(&w, 7, PREFIX_PAGES);
    static const size_t ends[] = {8, 16, 20};
    char path[192];
    for (size_t n_bad = 0; n_bad <= 3; n_bad++) { /* the last n_bad files */
        reopen_world(&w);
        save_pages(&w, 7, PREFIX_PAGES);
        reopen_world(&w);
        for (size_t i = 3 - n_bad; i < 3; i++) {
            path_of(&w, NULL, ends[i], path);
            assert_int_equal(truncate(path, 1000), 0);
        }
        for (size_t i = 0; i < PREFIX_PAGES; i++)
            kvpool_release_page(w.pool, w.pages[i]);
        struct prefix_tree *t = NULL;
        const struct prefix_options o = {.enabled = true, .tokens_min = 1};
        assert_int_equal(prefix_open(&o, w.pool, &t, NULL), 0);
        struct prefix_path *way = want(t, w.tokens, PREFIX_PAGES * PAGE);
        struct said said;
        listen_begin(&said);
        const size_t n = kv_disk_load(w.disk, t, way, NULL, w.tokens, PREFIX_PAGES * PAGE);
        assert_int_equal(count_of(listen_end(&said), "is ignored"), n_bad);
        const size_t good = n_bad == 3 ? 0 : ends[2 - n_bad];
        assert_int_equal(n, good * PAGE);
        const size_t last = good == PREFIX_PAGES; /* that token is always computed */
        assert_int_equal(found(t, way, w.tokens, PREFIX_PAGES * PAGE), good * PAGE - last);
        assert_int_equal(each_entry(w.folder, NULL), 3 - n_bad);
        prefix_unwant(t, way);
        prefix_close(t);
        for (size_t i = 0; i < PREFIX_PAGES; i++)
            w.pages[i] = kvpool_acquire_page(w.pool);
    }
    drop_world(&w);
}

/* ------------------------------------------------------------------ nights */

struct night {
    int32_t tokens[N_JOBS][N_OUT];
    size_t n_cached;
    struct engine_counters counters;
};

struct nights {
    char folder[64];
    struct model *model;
    struct engine_options options;
    struct night computed; /* without files */
};

static void submit(struct engine *eng, size_t job, size_t *id)
{
    int32_t prompt[DOCUMENT_TOKENS + QUESTION_TOKENS];
    const size_t n = DOCUMENT_TOKENS + QUESTION_TOKENS;
    for (size_t i = 0; i < n; i++) {
        const bool is_shared = i < DOCUMENT_TOKENS;
        const uint64_t stream = is_shared ? 100 + job % DOCUMENTS : job;
        prompt[i] = (int32_t)(rng_bits(11, stream, i) % 300);
    }
    *id = job;
    const struct seq_request req = {.prompt = prompt,
                                    .n_prompt = n,
                                    .max_tokens = N_OUT,
                                    .ignore_eos = true,
                                    .sample = sample_params_greedy(),
                                    .user = id};
    struct err e = {0};
    if (engine_submit(eng, &req, &e) != 0)
        fail_msg("%s", e.text);
}

static void spend(const struct nights *w, const char *folder, struct night *out)
{
    static size_t ids[N_JOBS];
    struct engine_options o = w->options;
    o.kv_disk = folder;
    *out = (struct night){0};
    struct engine *eng = golden_open_engine(w->model, "ref", ACT_INT8, KV_BF16, &o);
    for (size_t i = 0; i < N_JOBS; i++)
        submit(eng, i, &ids[i]);
    struct seq_result r;
    for (size_t n = 0; n < N_JOBS;) {
        bool worked;
        assert_int_equal(engine_step(eng, &worked, NULL), 0);
        for (; engine_collect(eng, &r); n++) {
            assert_int_equal(r.n_tokens, N_OUT);
            memcpy(out->tokens[*(size_t *)r.user], r.tokens, N_OUT * sizeof r.tokens[0]);
            out->n_cached += r.n_cached;
        }
    }
    out->counters = engine_counters(eng);
    engine_close(eng);
}

static int begin_nights(void **state)
{
    struct nights *w = calloc(1, sizeof *w);
    assert_non_null(w);
    snprintf(w->folder, sizeof w->folder, "/tmp/sheaf-kv-XXXXXX");
    assert_non_null(mkdtemp(w->folder));
    w->model = golden_open_tiny("tiny-llama-q4_1.gguf");
    w->options = (struct engine_options){.n_threads = 1,
                                         .batch = 4,
                                         .step_tokens = 64,
                                         .chunk_tokens = 48,
                                         .context = 192,
                                         .prefix_cache = true,
                                         .prefix_tokens_min = 1,
                                         .evicts_by_demand = true,
                                         .shared_attention = true,
                                         .kv_disk_bytes = 1 << 28,
                                         .kv_disk_tokens_min = PAGE,
                                         .kv_disk_always = true};
    spend(w, NULL, &w->computed);
    assert_int_equal(w->computed.counters.disk.files_saved, 0);
    *state = w;
    return 0;
}

static int end_nights(void **state)
{
    struct nights *w = *state;
    each_entry(w->folder, remove_entry);
    rmdir(w->folder);
    model_close(w->model);
    free(w);
    return 0;
}

static void expect_same_answers(const struct nights *w, const struct night *night)
{
    assert_memory_equal(night->tokens, w->computed.tokens, sizeof night->tokens);
}

/* The counters were read while the writer was still at it: the folder tells. */
static void the_second_night_loads_what_the_first_computed(void **state)
{
    struct nights *w = *state;
    struct night first, second;
    spend(w, w->folder, &first);
    expect_same_answers(w, &first);
    assert_int_equal(first.counters.computed_tokens, w->computed.counters.computed_tokens);
    assert_int_equal(first.counters.disk.tokens_loaded, 0);
    const size_t n_files = each_entry(w->folder, NULL);
    assert_true(n_files >= DOCUMENTS);
    spend(w, w->folder, &second);
    expect_same_answers(w, &second);
    const size_t n_loaded = second.counters.disk.tokens_loaded;
    assert_int_equal(second.counters.disk.files_loaded, DOCUMENTS);
    assert_int_equal(n_loaded, second.counters.disk.files_loaded * 4 * PAGE);
    assert_int_equal(each_entry(w->folder, NULL), n_files);
    assert_int_equal(second.counters.computed_tokens,
                     w->computed.counters.computed_tokens - n_loaded);
    assert_int_equal(second.n_cached, w->computed.n_cached + n_loaded);
}

static void in_a_pool_that_is_too_small_nights_are_the_same(void **state)
{
    struct nights *w = *state;
    const struct kvpool_shape shape = {.n_layers = w->model->config.n_layers,
                                       .n_kv_heads = w->model->config.n_kv_heads,
                                       .head_dim = w->model->config.head_dim,
                                       .type = KV_BF16};
    struct night night;
    w->options.kv_bytes = 7 * kvpool_page_bytes(&shape);
    for (size_t i = 0; i < 3; i++) {
        spend(w, w->folder, &night);
        expect_same_answers(w, &night);
    }
    assert_true(night.counters.disk.tokens_loaded > 0);
    assert_true(night.counters.prefix.pages_evicted > 0);
}

static void without_the_prefix_cache_there_are_no_files(void **state)
{
    struct nights *w = *state;
    struct night night;
    w->options.prefix_cache = false;
    spend(w, w->folder, &night);
    expect_same_answers(w, &night);
    assert_int_equal(each_entry(w->folder, NULL), 0);
}

static void tear(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size * 2 / 3), 0);
}

static void damage(const char *path)
{
    uint8_t *bytes;
    const size_t length = read_file(path, &bytes);
    bytes[length * 3 / 5] ^= 16;
    write_file(path, bytes, length);
    free(bytes);
}

static void make_foreign(const char *path)
{
    uint8_t *bytes;
    const size_t length = read_file(path, &bytes);
    memcpy(bytes + 80, model_a, 64);
    write_file(path, bytes, length);
    free(bytes);
}

static void a_night_over_bad_files_says_so_and_computes(void **state)
{
    struct nights *w = *state;
    static void (*const changes[])(const char *) = {tear, damage, make_foreign};
    struct night night;
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        spend(w, w->folder, &night);
        each_entry(w->folder, changes[i]);
        struct said said;
        listen_begin(&said);
        spend(w, w->folder, &night);
        const char *text = listen_end(&said);
        expect_same_answers(w, &night);
        assert_true(night.counters.disk.files_bad > 0);
        assert_int_equal(count_of(text, "is ignored"), night.counters.disk.files_bad);
        assert_true(each_entry(w->folder, NULL) >= DOCUMENTS); /* in their place */
        spend(w, w->folder, &night);
        expect_same_answers(w, &night);
        assert_int_equal(night.counters.disk.files_bad, 0);
        assert_int_equal(night.counters.disk.tokens_loaded, DOCUMENTS * 4 * PAGE);
    }
}

#define NIGHTS(name) cmocka_unit_test_setup_teardown(name, begin_nights, end_nights)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_inserted_page_is_found_by_whoever_goes_that_way),
        cmocka_unit_test(a_page_without_the_one_before_it_is_given_back),
        cmocka_unit_test(inserted_pages_keep_the_limit_and_go_when_needed),
        cmocka_unit_test(every_bad_file_of_a_prefix_is_said_at_once),
        NIGHTS(the_second_night_loads_what_the_first_computed),
        NIGHTS(in_a_pool_that_is_too_small_nights_are_the_same),
        NIGHTS(without_the_prefix_cache_there_are_no_files),
        NIGHTS(a_night_over_bad_files_says_so_and_computes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
