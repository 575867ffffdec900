#include "spec_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "base/size.h"

enum { DOCUMENTS = 3, PAGE = KV_PAGE_TOKENS };

/* ------------------------------------------------------------------ jobs */

size_t spec_rig_roll(struct dice *d, size_t limit)
{
    return rng_bits(d->seed, 77, d->n++) % limit;
}

int32_t spec_rig_any_token(struct dice *d, const struct model *m)
{
    return (int32_t)spec_rig_roll(d, m->config.n_vocab);
}

/* The pieces of random tokens: in a random answer they come up soon. */
static void make_stops(struct dice *d, const struct model *m, struct job *job)
{
    job->req.n_stops = spec_rig_roll(d, 3) == 0 ? 1 + spec_rig_roll(d, STOPS_MAX) : 0;
    job->req.stops = job->stops;
    for (size_t i = 0; i < job->req.n_stops; i++) {
        struct gguf_str piece;
        do
            piece = tokenizer_piece(m->tokenizer, spec_rig_any_token(d, m));
        while (piece.length == 0 || piece.length >= sizeof job->stop_bytes[i] ||
               memchr(piece.data, 0, piece.length));
        memcpy(job->stop_bytes[i], piece.data, piece.length);
        job->stop_bytes[i][piece.length] = 0;
        job->stops[i] = job->stop_bytes[i];
    }
    job->stop_token = spec_rig_any_token(d, m);
    job->req.stop_tokens = &job->stop_token;
    job->req.n_stop_tokens = spec_rig_roll(d, 4) == 0;
}

static void make_sampling(struct dice *d, const struct model *m, struct job *job)
{
    struct sample_params *p = &job->req.sample;
    static const float temperatures[] = {0, 0, 0.7f, 1.2f};
    *p = sample_params_greedy();
    p->temperature = temperatures[spec_rig_roll(d, 4)];
    p->seed = spec_rig_roll(d, 1000);
    p->stream = spec_rig_roll(d, 1000);
    if (spec_rig_roll(d, 2)) {
        p->repetition_penalty = 1.2f;
        p->presence_penalty = 0.3f;
        p->frequency_penalty = 0.2f;
    }
    if (spec_rig_roll(d, 3) == 0) {
        p->top_p = 0.9f;
        p->top_k = 40;
        p->min_p = 0.02f;
    }
    if (spec_rig_roll(d, 3) == 0) { /* the end comes up at once, sooner or later */
        job->bias =
            (struct logit_bias){tokenizer_eos(m->tokenizer), (float)spec_rig_roll(d, 12)};
        p->bias = &job->bias;
        p->n_bias = 1;
    }
}

void spec_rig_make_job(struct dice *d, const struct model *m, struct job *job)
{
    *job = (struct job){.drafter = (enum drafting)spec_rig_roll(d, N_DRAFTERS)};
    static const size_t prompts[] = {CONTEXT - 1, 80, 80, 20};
    job->n_prompt = 1 + spec_rig_roll(d, prompts[spec_rig_roll(d, 4)]);
    const uint64_t document = spec_rig_roll(d, DOCUMENTS), own = spec_rig_roll(d, 1u << 30);
    const size_t n_shared = spec_rig_roll(d, 2) ? spec_rig_roll(d, job->n_prompt + 1) : 0;
    for (size_t i = 0; i < job->n_prompt; i++)
        job->prompt[i] = (int32_t)(rng_bits(i < n_shared ? document : own, 5, i) % 300);
    job->req.max_tokens = 1 + spec_rig_roll(d, spec_rig_roll(d, 3) == 0 ? CONTEXT : 40);
    job->req.min_tokens = spec_rig_roll(d, 4) == 0 ? spec_rig_roll(d, 20) : 0;
    job->req.ignore_eos = spec_rig_roll(d, 3) == 0;
    job->req.include_stop = spec_rig_roll(d, 2);
    make_sampling(d, m, job);
    make_stops(d, m, job);
}

/* Another job's prompt and answer, and how it goes on: what that one left in the cache. */
void spec_rig_make_heir(struct dice *d, const struct model *m, const struct job *job,
                        struct job *heir)
{
    spec_rig_make_job(d, m, heir);
    const size_t n = job->n_prompt + spec_rig_roll(d, job->n_tokens + 1);
    heir->n_prompt = size_min(n + spec_rig_roll(d, 3), CONTEXT - 1);
    memcpy(heir->prompt, job->prompt, size_min(n, job->n_prompt) * sizeof(int32_t));
    for (size_t i = job->n_prompt; i < heir->n_prompt; i++)
        heir->prompt[i] = i < n ? job->tokens[i - job->n_prompt] : spec_rig_any_token(d, m);
}

void spec_rig_submit(struct engine *eng, struct job *job)
{
    struct err e = {0};
    struct seq_request req = job->req;
    req.prompt = job->prompt;
    req.n_prompt = job->n_prompt;
    req.prediction = job->prediction;
    req.n_prediction = job->n_prediction;
    req.user = job;
    if (engine_submit(eng, &req, &e) != 0)
        fail_msg("%s", e.text);
}

void spec_rig_step(struct engine *eng)
{
    bool worked;
    struct err e = {0};
    if (engine_step(eng, &worked, &e) != 0)
        fail_msg("%s", e.text);
    assert_true(worked);
    assert_true(prefix_check(eng->prefixes));
}

static void keep_answer(struct job *job, const struct seq_result *r)
{
    assert_true(r->n_tokens <= CONTEXT && r->text_bytes < TEXT_MAX);
    job->reason = r->reason;
    job->stop_index = r->stop_index;
    job->n_tokens = r->n_tokens;
    job->text_bytes = r->text_bytes;
    memcpy(job->tokens, r->tokens, r->n_tokens * sizeof r->tokens[0]);
    memcpy(job->text, r->text, r->text_bytes);
}

void spec_rig_answer_plainly(struct engine *plain, struct job *jobs, size_t n)
{
    struct seq_result r;
    for (size_t i = 0; i < n; i++)
        spec_rig_submit(plain, &jobs[i]);
    while (engine_active(plain) > 0) {
        if (engine_collect(plain, &r))
            keep_answer(r.user, &r);
        else
            spec_rig_step(plain);
    }
}

bool spec_rig_is_same_answer(const struct job *job, const struct seq_result *r)
{
    return r->reason == job->reason && r->stop_index == job->stop_index &&
           r->n_tokens == job->n_tokens && r->text_bytes == job->text_bytes &&
           memcmp(r->tokens, job->tokens, r->n_tokens * sizeof r->tokens[0]) == 0 &&
           memcmp(r->text, job->text, r->text_bytes) == 0;
}

/* Lookup is given a prediction by some jobs: the answer, with any other tokens before it and
 * some in it spoilt, legal or not. It asks nobody, whatever a job's drafter is. */
void spec_rig_predict(struct dice *d, const struct model *m, struct job *job)
{
    static const int32_t strange[] = {-1, INT32_MIN, INT32_MAX, 1 << 20, 0};
    job->drafter = GUESSES;
    const size_t n_before = spec_rig_roll(d, 2) ? spec_rig_roll(d, CONTEXT) : 0,
                 spoilt_of = 1 + spec_rig_roll(d, 20);
    job->n_prediction = spec_rig_roll(d, 2) ? n_before + job->n_tokens : 0;
    for (size_t i = 0; i < job->n_prediction; i++) {
        int32_t token = i < n_before ? spec_rig_any_token(d, m) : job->tokens[i - n_before];
        if (spoilt_of > 1 && spec_rig_roll(d, spoilt_of) == 0)
            token =
                spec_rig_roll(d, 2) ? spec_rig_any_token(d, m) : strange[spec_rig_roll(d, 5)];
        job->prediction[i] = token;
    }
}

/* ------------------------------------------------------------------ drafters */

/* A node in front of the right one at some places, so that the path lies elsewhere. */
static void draft_known(struct sources *s, const struct seq *seq, size_t n_max, bool badly,
                        struct draft *out)
{
    const struct job *job = seq->req.user;
    struct dice *d = &s->dice;
    int node = DRAFT_ROOT;
    for (size_t i = seq_n_output(seq); i < job->n_tokens && out->n_nodes < n_max; i++) {
        if (badly && out->n_nodes + 1 < n_max && spec_rig_roll(d, 2)) {
            const int wrong = draft_add(out, node, job->tokens[i] ^ 1, DRAFT_RECYCLE, 0.75f);
            if (out->n_nodes + 1 < n_max && spec_rig_roll(d, 2))
                draft_add(out, wrong, spec_rig_any_token(d, s->model), DRAFT_RECYCLE, 0.5f);
        }
        node = draft_add(out, node, job->tokens[i], DRAFT_LOOKUP, 0.5f);
    }
}

/* Tokens that are none, the same again, deeper than there is room for. */
static void draft_guesses(struct sources *s, size_t n_max, struct draft *out)
{
    struct dice *d = &s->dice;
    const size_t n = spec_rig_roll(d, n_max + 1);
    const bool is_chain = spec_rig_roll(d, 2);
    for (size_t i = 0; i < n && out->n_nodes < n_max; i++) {
        const int parent =
            is_chain ? (int)out->n_nodes - 1 : (int)spec_rig_roll(d, out->n_nodes + 1) - 1;
        const size_t kind = spec_rig_roll(d, 8);
        int32_t token = spec_rig_any_token(d, s->model);
        if (kind == 0)
            token = (int32_t)s->model->config.n_vocab + (int32_t)spec_rig_roll(d, 3);
        else if (kind == 1)
            token = -1 - (int32_t)spec_rig_roll(d, 3);
        else if (kind == 2)
            token = INT32_MAX;
        for (size_t k = 0; k < 1 + spec_rig_roll(d, 2); k++)
            draft_add(out, parent, token, (unsigned)spec_rig_roll(d, DRAFT_SOURCES),
                      (float)(1 + spec_rig_roll(d, 8)) / 8);
    }
}

static void draft_errors(struct sources *s, const struct seq *seq, size_t n_max,
                         struct draft *out)
{
    const struct job *job = seq->req.user;
    const int32_t right = job->tokens[seq_n_output(seq)];
    struct dice *d = &s->dice;
    while (out->n_nodes < n_max && spec_rig_roll(d, 12)) {
        const int parent = (int)spec_rig_roll(d, out->n_nodes + 1) - 1;
        const int32_t token = spec_rig_any_token(d, s->model);
        if (parent != DRAFT_ROOT || token != right)
            draft_add(out, parent, token, DRAFT_MODEL, 1);
    }
}

/* The key of the last token but one in place of the last one's. */
static void misplace(const struct sources *s, const struct seq *seq)
{
    const size_t n = seq->n_computed;
    if (n % PAGE < 2)
        return;
    const int32_t page = seq->pages[n / PAGE];
    kvpool_move_token(s->engine->kvpool, page, n % PAGE - 1, page, n % PAGE - 2);
}

void spec_rig_propose(void *ctx, const struct seq *seq, size_t n_max, struct draft *out)
{
    struct sources *s = ctx;
    const struct job *job = seq->req.user;
    enum drafting drafter = job->drafter;
    assert_true(n_max >= 1 && n_max <= DRAFT_NODES_MAX && out->n_nodes == 0);
    if (s->misplaces)
        misplace(s, seq);
    if (drafter == IS_MOODY)
        drafter = (enum drafting)spec_rig_roll(&s->dice, N_DRAFTERS);
    if (drafter == KNOWS || drafter == KNOWS_BADLY)
        draft_known(s, seq, n_max, drafter == KNOWS_BADLY, out);
    else if (drafter == GUESSES)
        draft_guesses(s, n_max, out);
    else if (drafter == ERRS)
        draft_errors(s, seq, n_max, out);
}
