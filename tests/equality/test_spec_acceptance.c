/*
 * How many tokens a step yields does not depend on how many sequences decode together: one
 * sequence's drafts are never another's. Wrong ones would show in no answer, since every token
 * is verified, only here.
 *
 * Drafts are computed whatever they cost, so that no measured time has a say, and each job has
 * a salt of its own, so that it does not matter whose answer was there first.
 *
 * SHEAF_SPEC_ACCEPTANCE=1 reads the demo model and the example documents too, with the heads in
 * SHEAF_HEADS if there are any, and prints what ops/claims/spec-acceptance compares with what
 * was recorded.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "base/size.h"
#include "engine/engine_int.h"
#include "golden.h"
#include "model/heads.h"

enum {
    JOBS_MAX = 32,
    ANSWER = 64,
    TEXT_BYTES = 8192,
    NODES = 32, /* of one sequence's draft: as many as its sources propose */
};
static const size_t batches[] = {1, 5, 16};
enum { N_BATCHES = sizeof batches / sizeof batches[0] };
static const double BATCHES_DIFFER_MAX = 0.01;

struct corpus {
    struct model *model;
    struct heads *heads; /* or NULL */
    size_t context;
    struct token_list prompts[JOBS_MAX];
    char salts[JOBS_MAX][32];
    size_t n;
};

struct yield {
    size_t n_tokens, n_steps; /* behind each answer's first token */
    size_t n_drafted, n_accepted;
};

static double tokens_per_step(const struct yield *y)
{
    return (double)y->n_tokens / (double)y->n_steps;
}

/* ------------------------------------------------------------------ answering */

static struct engine *open_engine(const struct corpus *c, unsigned speculation, size_t batch)
{
    const char *isas[3];
    const char *isa = isas[golden_isas(isas) - 1];
    const size_t step_tokens = 256;
    const struct engine_options o = {.n_threads = 2,
                                     .batch = batch,
                                     .step_tokens = step_tokens,
                                     .chunk_tokens = 128,
                                     .context = c->context,
                                     .speculation = speculation,
                                     .heads = c->heads,
                                     .draft_always = true,
                                     .draft_tokens = NODES * batch};
    return golden_open_engine(c->model, isa, ACT_INT8, KV_BF16, &o);
}

static void submit(struct engine *eng, struct corpus *c, size_t i)
{
    struct err e = {0};
    snprintf(c->salts[i], sizeof c->salts[i], "job-%zu", i);
    const struct seq_request req = {.prompt = c->prompts[i].ids,
                                    .n_prompt = c->prompts[i].length,
                                    .max_tokens = ANSWER,
                                    .ignore_eos = true,
                                    .salt = c->salts[i],
                                    .sample = sample_params_greedy()};
    if (engine_submit(eng, &req, &e) != 0)
        fail_msg("%s", e.text);
}

static struct yield answer_all(struct corpus *c, unsigned speculation, size_t batch)
{
    struct engine *eng = open_engine(c, speculation, batch);
    struct yield y = {0};
    size_t next = 0;
    while (next < c->n || engine_active(eng) > 0) {
        struct seq_result r;
        struct err e = {0};
        bool worked;
        while (next < c->n && engine_has_room(eng))
            submit(eng, c, next++);
        assert_int_equal(engine_step(eng, &worked, &e), 0);
        while (engine_collect(eng, &r)) {
            assert_int_equal(r.n_tokens, ANSWER);
            y.n_tokens += r.n_tokens - 1;
            y.n_steps += r.n_steps - r.n_chunks;
            y.n_drafted += r.n_drafted;
            y.n_accepted += r.n_accepted;
        }
    }
    engine_close(eng);
    return y;
}

static void check_batches(struct corpus *c, const char *name, const char *source,
                          unsigned speculation)
{
    double first = 0;
    for (size_t i = 0; i < N_BATCHES; i++) {
        const struct yield y = answer_all(c, speculation, batches[i]);
        const double rate = tokens_per_step(&y);
        print_message("%s: %s, batch %zu: %.4f tokens a step, %zu of %zu drafted tokens "
                      "accepted\n",
                      name, source, batches[i], rate, y.n_accepted, y.n_drafted);
        assert_true(y.n_accepted > 0);
        if (i == 0)
            first = rate;
        assert_true(fabs(rate / first - 1) <= BATCHES_DIFFER_MAX);
    }
}

static void close_corpus(struct corpus *c)
{
    for (size_t i = 0; i < c->n; i++)
        token_list_fini(&c->prompts[i]);
    heads_close(c->heads);
    model_close(c->model);
}

/* ------------------------------------------------------------------ tiny */

/* Prompts that say the same a few times, in as many ways as there are jobs. */
static void make_tiny(struct corpus *c)
{
    struct err e = {0};
    *c = (struct corpus){
        .model = golden_open_tiny("tiny-llama-q4_1.gguf"), .context = 256, .n = JOBS_MAX};
    for (size_t i = 0; i < c->n; i++)
        for (size_t k = 0; k < 96 + i; k++) {
            const int32_t id = (int32_t)(rng_bits(i, 1, k % 24) % 300);
            assert_int_equal(token_list_append(&c->prompts[i], id, &e), 0);
        }
}

static void tokens_per_step_do_not_depend_on_the_batch(void **state)
{
    (void)state;
    struct corpus c;
    make_tiny(&c);
    check_batches(&c, "tiny", "lookup", SPECULATION_LOOKUP);
    close_corpus(&c);
}

/* ------------------------------------------------------------------ the demo model */

static const char *const documents[] = {"cheese",     "clock",       "ferry",   "library",
                                        "lighthouse", "observatory", "seedbank"};
static const char *const questions[] = {
    "Copy the first paragraph of the text word for word.",
    "Which people does the text name, and what do they do? Use the words of the text.",
    "Summarise the text in three sentences."};

static void add_prompt(struct corpus *c, const char *document, const char *question)
{
    static char text[TEXT_BYTES];
    char path[64], prompt[2 * TEXT_BYTES];
    struct err e = {0};
    snprintf(path, sizeof path, "../jobs/examples/documents/%s.txt", document);
    char *full = golden_path(path);
    FILE *f = fopen(full, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    free(full);
    snprintf(prompt, sizeof prompt,
             "<|im_start|>user\n%s\n\n%s<|im_end|>\n<|im_start|>assistant\n", text, question);
    const struct token_span span = {prompt, strlen(prompt), true};
    struct token_list *list = &c->prompts[c->n++];
    assert_int_equal(tokenizer_encode(c->model->tokenizer, &span, 1, true, list, &e), 0);
    assert_true(list->length + ANSWER <= c->context);
}

static void the_demo_model_yields_what_was_recorded(void **state)
{
    (void)state;
    if (!getenv("SHEAF_SPEC_ACCEPTANCE"))
        skip();
    struct corpus c = {.model = golden_open_model(golden_demo_model()), .context = 2048};
    for (size_t k = 0; k < sizeof questions / sizeof questions[0]; k++)
        for (size_t i = 0; i < sizeof documents / sizeof documents[0]; i++)
            add_prompt(&c, documents[i], questions[k]);
    const char *heads = getenv("SHEAF_HEADS");
    struct err e = {0};
    if (heads && heads_open(heads, c.model, &c.heads, &e) != 0)
        fail_msg("%s", e.text);
    check_batches(&c, "demo", "lookup", SPECULATION_LOOKUP);
    if (heads) {
        check_batches(&c, "demo", "heads", SPECULATION_HEADS);
        check_batches(&c, "demo", "all", SPECULATION_LOOKUP | SPECULATION_HEADS);
    }
    close_corpus(&c);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_per_step_do_not_depend_on_the_batch),
        cmocka_unit_test(the_demo_model_yields_what_was_recorded),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("acceptance", tests, NULL, NULL);
}
