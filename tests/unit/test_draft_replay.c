/*
 * Drafts and their budget over real answers: 24 questions about passages of their prompts, with
 * the greedy answers of an independent implementation (golden/xquad/demo_greedy.jsonl). A model
 * that says these answers is played; what is counted is in how many steps it would have.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/drafter.h"
#include "engine/spec_budget.h"
#include "golden.h"

enum {
    VOCABULARY = 49152,
    QUESTION = 17872, /* "Question", which a prompt says behind its document */
    JOBS_MAX = 32,
    WINDOW = 1024,
};

static struct job {
    int32_t *tokens; /* prompt, then answer */
    size_t n_document, n_prompt, n_tokens;
} jobs[JOBS_MAX];
static size_t n_jobs;

/* What the play is about. */
struct play {
    size_t batch;
    bool document, own, recycle;
    size_t n_nodes;               /* of a sequence; of each source too */
    const struct spec_time *time; /* NULL: every node is computed */
};

struct running {
    const struct job *job;
    struct drafter *drafter;
    size_t n_said;
    struct draft draft;
};

struct outcome {
    double tokens_per_step; /* of a sequence, the first token apart */
    double gain;            /* speed against one token a step, by play.time */
    double expected;        /* of the accepted, what was expected */
};

struct stage {
    const struct play *play;
    struct spec_stats stats;
    struct recycle *recycle;
    struct spec_budget *budget;
    struct running running[JOBS_MAX];
    size_t n_running, next_job;
    double us, us_without;
    size_t n_tokens, n_steps;
};

static void follow(struct running *r)
{
    drafter_follow(r->drafter, r->job->tokens, r->job->n_prompt, r->job->n_prompt + r->n_said);
}

static void start_job(struct stage *s)
{
    const struct job *job = &jobs[s->next_job++];
    struct running *r = &s->running[s->n_running++];
    *r = (struct running){.job = job, .n_said = 1};
    struct automaton *document = NULL;
    if (s->play->document)
        assert_int_equal(automaton_open(job->tokens, job->n_prompt, SIZE_MAX, &document, NULL),
                         0);
    const struct drafter_options options = {.document = document,
                                            .n_document = job->n_document,
                                            .window = s->play->own ? WINDOW : 0,
                                            .recycle = s->recycle,
                                            .stats = &s->stats};
    assert_int_equal(drafter_open(&options, &r->drafter, NULL), 0);
    automaton_close(document);
    follow(r);
}

static void end_jobs(struct stage *s)
{
    for (size_t i = s->n_running; i-- > 0;) {
        struct running *r = &s->running[i];
        if (r->job->n_prompt + r->n_said < r->job->n_tokens)
            continue;
        drafter_close(r->drafter);
        *r = s->running[--s->n_running];
    }
}

/* -> nodes that came true */
static size_t verify(struct running *r)
{
    int at = DRAFT_ROOT;
    size_t n = 0;
    while (r->job->n_prompt + r->n_said < r->job->n_tokens) {
        at = draft_find(&r->draft, at, r->job->tokens[r->job->n_prompt + r->n_said++]);
        if (at == DRAFT_NONE)
            break;
        n++;
    }
    follow(r);
    return n;
}

static void cut(struct draft *d, size_t n_nodes)
{
    draft_order(d);
    d->n_nodes = d->n_nodes < n_nodes ? d->n_nodes : n_nodes;
}

static size_t draft_all(struct stage *s, const struct spec_step *step)
{
    const struct draft_limits limits = {s->play->n_nodes, 0.02};
    struct spec_seq seqs[JOBS_MAX];
    size_t n = 0;
    for (size_t i = 0; i < s->n_running; i++) {
        struct running *r = &s->running[i];
        r->draft.n_nodes = 0;
        seqs[i] = (struct spec_seq){&r->draft, s->play->n_nodes};
    }
    if (s->play->time && !spec_budget_wants(s->budget, step))
        return 0;
    for (size_t i = 0; i < s->n_running; i++) {
        drafter_propose(s->running[i].drafter, &limits, &s->running[i].draft);
        if (!s->play->time)
            cut(&s->running[i].draft, s->play->n_nodes);
        n += s->running[i].draft.n_nodes;
    }
    return s->play->time ? spec_budget_choose(s->budget, step, seqs) : n;
}

static void run_step(struct stage *s)
{
    const size_t n_seqs = s->n_running;
    const struct spec_step step = {s->play->time, n_seqs, n_seqs, (double)n_seqs, 0, 64};
    const size_t n_nodes = draft_all(s, &step);
    size_t n_accepted = 0, n_said = 0;
    for (size_t i = 0; i < n_seqs; i++) {
        const size_t before = s->running[i].n_said;
        n_accepted += verify(&s->running[i]);
        n_said += s->running[i].n_said - before;
    }
    spec_budget_observe(s->budget, n_accepted);
    s->n_steps += n_seqs;
    s->n_tokens += n_said;
    if (s->play->time) {
        const double us = spec_time_us(s->play->time, n_seqs);
        s->us += spec_time_us(s->play->time, n_seqs + n_nodes);
        s->us_without += us * (double)n_said / (double)n_seqs;
    }
    end_jobs(s);
}

static struct outcome run(const struct play *play)
{
    static struct stage s;
    s = (struct stage){.play = play};
    spec_stats_init(&s.stats);
    drafter_set_priors(&s.stats);
    if (play->recycle)
        assert_int_equal(recycle_open(VOCABULARY, &s.recycle, NULL), 0);
    const struct spec_budget_options options = spec_budget_defaults(JOBS_MAX);
    assert_int_equal(spec_budget_open(&options, &s.budget, NULL), 0);
    for (;;) {
        while (s.n_running < play->batch && s.next_job < n_jobs)
            start_job(&s);
        if (s.n_running == 0)
            break;
        run_step(&s);
    }
    const struct spec_budget_counters c = spec_budget_counters(s.budget);
    spec_budget_close(s.budget);
    recycle_close(s.recycle);
    return (struct outcome){.tokens_per_step = (double)s.n_tokens / (double)s.n_steps,
                            .gain = s.us_without / s.us,
                            .expected = c.accepted ? c.expected / (double)c.accepted : 0};
}

/* Figures of this version: a change of a source shows here. */
static void answers_take_as_few_steps_as_they_did(void **state)
{
    (void)state;
    const struct {
        const char *name;
        struct play play;
        double tokens_per_step;
    } cases[] = {
        {"document, 4 nodes", {1, true, false, false, 4, NULL}, 1.852},
        {"document, 8 nodes", {1, true, false, false, 8, NULL}, 1.989},
        {"document, 16 nodes", {1, true, false, false, 16, NULL}, 2.074},
        {"prompt as own, 8 nodes", {1, false, true, false, 8, NULL}, 1.770},
        {"recycled, 8 nodes", {1, false, false, true, 8, NULL}, 1.172},
        {"document and own, 8 nodes", {1, true, true, false, 8, NULL}, 2.074},
        {"all, 8 nodes", {1, true, true, true, 8, NULL}, 2.207},
        {"all, 16 nodes", {1, true, true, true, 16, NULL}, 2.328},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct outcome o = run(&cases[i].play);
        print_message("%-28s %.3f tokens a step\n", cases[i].name, o.tokens_per_step);
        assert_true(o.tokens_per_step >= 0.97 * cases[i].tokens_per_step);
        assert_true(o.tokens_per_step <= 1.03 * cases[i].tokens_per_step);
    }
}

/* Steps of a model of 135M parameters with 2,048 keys on two cores, of kernels timed each for
 * itself: layers, output and attention; milliseconds. */
static const struct spec_time_point two_cores[] = {
    {1, 5.35}, {2, 5.35},  {4, 5.35},  {6, 6.1},   {8, 7.3},
    {12, 10},  {16, 12.7}, {32, 24.3}, {64, 47.8},
};

static void the_budget_gains_at_one_and_loses_nothing_at_many(void **state)
{
    (void)state;
    static struct spec_time time;
    spec_time_init(&time, two_cores, sizeof two_cores / sizeof two_cores[0]);
    const struct {
        size_t batch;
        double gain_min;
    } cases[] = {{1, 1.4}, {2, 1.2}, {4, 1.0}, {8, 1.0}, {24, 0.98}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct play play = {cases[i].batch, true, true, true, 16, &time};
        const struct outcome o = run(&play);
        print_message("batch %-2zu %.3f tokens a step, %.3f times as fast, %.2f expected\n",
                      play.batch, o.tokens_per_step, o.gain, o.expected);
        assert_true(o.gain >= cases[i].gain_min);
    }
}

static int read_jobs(void **state)
{
    (void)state;
    json_t *file = golden_jsonl("golden/xquad/demo_greedy.jsonl");
    size_t i;
    json_t *line;
    json_array_foreach(file, i, line)
    {
        size_t n_answer;
        int32_t *prompt = golden_ids(json_object_get(line, "prompt_ids"), &jobs[i].n_prompt);
        int32_t *answer = golden_ids(json_object_get(line, "exact_ids"), &n_answer);
        jobs[i].n_tokens = jobs[i].n_prompt + n_answer;
        jobs[i].tokens = realloc(prompt, jobs[i].n_tokens * sizeof prompt[0]);
        for (size_t k = 0; k < n_answer; k++)
            jobs[i].tokens[jobs[i].n_prompt + k] = answer[k];
        free(answer);
        jobs[i].n_document = jobs[i].n_prompt;
        while (jobs[i].tokens[jobs[i].n_document - 1] != QUESTION)
            jobs[i].n_document--;
        n_jobs++;
    }
    json_decref(file);
    return n_jobs == 24 ? 0 : -1;
}

static int free_jobs(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_jobs; i++)
        free(jobs[i].tokens);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_take_as_few_steps_as_they_did),
        cmocka_unit_test(the_budget_gains_at_one_and_loses_nothing_at_many),
    };
    return cmocka_run_group_tests_name("draft_replay", tests, read_jobs, free_jobs);
}
