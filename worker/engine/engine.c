#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/size.h"
#include "engine/engine_int.h"
#include "engine/kv_disk_seq.h"
#include "engine/seq_output.h"

/* ------------------------------------------------------------------ submitting */

int engine_check_tokens(const struct model *m, const struct seq_request *req, struct err *e)
{
    const size_t n_vocab = m->config.n_vocab;
    if (req->n_prompt < 1)
        return ERR_SET_FLAGS(e, ERR_INVALID, ERR_JOB, "the prompt has no token");
    for (size_t i = 0; i < req->n_prompt; i++)
        if (req->prompt[i] < 0 || (size_t)req->prompt[i] >= n_vocab)
            return ERR_SET_FLAGS(e, ERR_INVALID, ERR_JOB,
                                 "prompt token %d is outside the vocabulary of %zu",
                                 req->prompt[i], n_vocab);
    for (size_t i = 0; i < req->sample.n_bias; i++)
        if (req->sample.bias[i].id < 0 || (size_t)req->sample.bias[i].id >= n_vocab)
            return ERR_SET_FLAGS(e, ERR_INVALID, ERR_JOB,
                                 "logit_bias token %d is outside the vocabulary of %zu",
                                 req->sample.bias[i].id, n_vocab);
    return 0;
}

static int check_room(const struct engine *eng, const struct seq_request *req, struct err *e)
{
    const size_t context = eng->options.context;
    if (req->max_tokens < 1)
        return ERR_SET_FLAGS(e, ERR_INVALID, ERR_JOB, "max_tokens must be at least 1");
    if (req->n_prompt >= context)
        return ERR_SET_FLAGS(
            e, ERR_CONTEXT, ERR_JOB,
            "the prompt has %zu tokens; the context is %zu and needs room for at "
            "least one token of the answer",
            req->n_prompt, context);
    const size_t room = context - req->n_prompt;
    const size_t n = req->n_prompt + (req->max_tokens < room ? req->max_tokens : room);
    if (seq_pages_for(n) > kvpool_pages(eng->kvpool))
        return ERR_SET_FLAGS(
            e, ERR_LIMIT, ERR_JOB,
            "prompt and answer may take %zu tokens; the KV cache holds %zu (raise "
            "kv.mb or lower max_tokens)",
            n, kvpool_pages(eng->kvpool) * KV_PAGE_TOKENS);
    return 0;
}

int engine_check(const struct engine *eng, const struct seq_request *req, struct err *e)
{
    TRY(engine_check_tokens(eng->model, req, e));
    return check_room(eng, req, e);
}

/* One slot more for every sequence that is active, so that finishing cannot fail. */
static int make_done_room(struct engine *eng, struct err *e)
{
    if (eng->n_active < eng->done_capacity)
        return 0;
    const size_t capacity = 2 * eng->n_active + 16;
    struct seq **done = realloc(eng->done, capacity * sizeof done[0]);
    if (!done)
        return ERR_SET(e, ERR_NOMEM, "no memory for %zu sequences", capacity);
    eng->done = done;
    eng->done_capacity = capacity;
    return 0;
}

int engine_submit(struct engine *eng, const struct seq_request *req, struct err *e)
{
    TRY(engine_check(eng, req, e));
    TRY(make_done_room(eng, e));
    struct seq *seq = NULL;
    TRY(seq_open(req, eng->options.context, &seq, e));
    int rc = eng->drafters ? drafters_begin(eng->drafters, seq, req, e) : 0;
    if (rc == 0 && eng->draft_model)
        rc = draft_model_begin(eng->draft_model, seq, e);
    if (rc == 0)
        rc = sched_add(eng->sched, seq, e);
    if (rc != 0) {
        seq_close(seq);
        return rc;
    }
    eng->n_active++;
    return 0;
}

size_t engine_active(const struct engine *eng)
{
    return eng->n_active;
}

bool engine_has_room(const struct engine *eng)
{
    return sched_n_running(eng->sched) + sched_n_waiting(eng->sched) < eng->options.batch;
}

int engine_want(struct engine *eng, const char *salt, const int32_t *prompt, size_t n_prompt,
                struct prefix_path **out, struct err *e)
{
    return prefix_want(eng->prefixes, salt, prompt, n_prompt, PREFIX_LATER, out, e);
}

void engine_unwant(struct engine *eng, struct prefix_path *path)
{
    prefix_unwant(eng->prefixes, path);
}

void engine_cancel_all(struct engine *eng)
{
    struct seq *seq;
    for (size_t i = 0; (seq = sched_at(eng->sched, i)); i++)
        seq->is_cancelled = eng->cancel = true;
}

bool engine_cancel(struct engine *eng, const void *user)
{
    struct seq *seq;
    for (size_t i = 0; (seq = sched_at(eng->sched, i)); i++)
        if (seq->req.user == user)
            return seq->is_cancelled = eng->cancel = true;
    return false;
}

/* ------------------------------------------------------------------ stepping */

static void finish(struct engine *eng, struct seq *seq, enum finish_reason reason)
{
    const bool is_whole = reason != FINISH_CANCELLED && reason != FINISH_NOMEM;
    ahead_forget(&eng->ahead, eng->forward, seq);
    kv_disk_save_seq(eng->disk, seq, is_whole);
    sched_remove(eng->sched, seq);
    if (eng->drafters)
        drafters_end(eng->drafters, seq);
    draft_model_end(seq);
    seq->reason = reason;
    eng->counters.preemptions += seq->n_preempted;
    if (is_whole) {
        eng->counters.prompt_tokens += seq->n_prompt;
        eng->counters.cached_tokens += seq->n_cached;
        eng->counters.generated_tokens += seq_n_output(seq);
    }
    ASSERT(eng->n_done < eng->done_capacity);
    eng->done[eng->n_done++] = seq;
}

/* Rows whose tokens need no more than the place of the greatest logit, or than what a device
 * finds of them. */
static void mark_wanted(struct engine *eng)
{
    for (size_t i = 0; i < eng->plan.n_segments; i++) {
        struct step_segment *segment = &eng->plan.segments[i];
        const struct seq *seq = segment->seq;
        const struct sample_params *p = &seq->req.sample;
        segment->is_greedy = p->temperature == 0 && sample_is_plain(p) &&
                             seq_n_output(seq) >= seq->req.min_tokens;
        segment->takes_candidates = sample_takes_candidates(p);
    }
}

static bool draw_candidate(struct engine *eng, const struct seq *seq,
                           const struct device_candidates *found, size_t logits_row,
                           size_t n_drawn, size_t thread, int32_t *token)
{
    const float *logits = forward_fetched(eng->forward, logits_row);
    if (seq_draw_candidate(seq, eng->samplers[thread], found, logits, n_drawn, token))
        return true;
    forward_want_logits(eng->forward, logits_row);
    return false;
}

/* The token after n_drawn others of the step, from a row of its logits; false: a device has to
 * be asked for them first. */
static bool draw_token(struct engine *eng, const struct step_segment *segment,
                       size_t logits_row, size_t n_drawn, size_t thread, int32_t *token)
{
    const struct seq *seq = segment->seq;
    if (segment->is_greedy) {
        *token = forward_best(eng->forward, logits_row);
        return true;
    }
    const struct device_candidates *found = forward_candidates(eng->forward, logits_row);
    if (found)
        return draw_candidate(eng, seq, found, logits_row, n_drawn, thread, token);
    *token = seq_draw_token(seq, eng->model->tokenizer, eng->samplers[thread],
                            forward_logits(eng->forward, logits_row), n_drawn);
    return true;
}

/* Of the root, then of each node that was drawn; the tokens go behind the sequence's, where
 * they are the history of those that follow. May be called again when logits were lacking:
 * only rows whose logits no penalty changes have candidates beside them. */
static void draw_segment(struct engine *eng, struct step_segment *segment, size_t thread)
{
    int32_t *drawn = segment->seq->tokens + segment->seq->n_tokens;
    int node = DRAFT_ROOT;
    size_t n = 0;
    do {
        const size_t logits_row = segment->logits_row + (size_t)(node - DRAFT_ROOT);
        if (!draw_token(eng, segment, logits_row, n, thread, &drawn[n]))
            return;
        node = segment->draft ? draft_find(segment->draft, node, drawn[n]) : DRAFT_NONE;
        n++;
    } while (node != DRAFT_NONE);
    segment->is_drawn = true;
}

static void sample_item(void *ctx, size_t item, size_t thread)
{
    struct engine *eng = ctx;
    struct step_segment *segment = &eng->plan.segments[item];
    if (segment->n_logits > 0 && !segment->is_drawn)
        draw_segment(eng, segment, thread);
}

/* Threads are called only for what is worth it, and again for the few whose draws lack logits.
 */
static void draw_tokens(struct engine *eng)
{
    bool samples = false;
    for (size_t i = 0; i < eng->plan.n_segments; i++) {
        struct step_segment *segment = &eng->plan.segments[i];
        if (segment->n_logits > 0 && segment->is_greedy)
            draw_segment(eng, segment, 0);
        else if (segment->n_logits > 0)
            samples = true;
    }
    if (!samples)
        return;
    do
        pool_run(eng->threads, sample_item, eng, eng->plan.n_segments);
    while (forward_fetch_wanted(eng->forward));
}

/* What the sequence's last token was drawn from, for heads; on a device it stays there. */
static void note_hidden(struct engine *eng, struct seq *seq, size_t logits_row)
{
    if (!eng->drafters || !(eng->options.speculation & SPECULATION_HEADS))
        return;
    if (eng->device)
        drafters_note_row(eng->drafters, seq, logits_row);
    else
        drafters_note_hidden(eng->drafters, seq, forward_hidden(eng->forward, logits_row));
}

/* What was drawn joins the sequence, up to where it ends. */
static void accept_tokens(struct engine *eng, struct step_segment *segment, int64_t now_us)
{
    struct seq *seq = segment->seq;
    int node = DRAFT_ROOT;
    size_t n = 0, logits_row;
    do {
        const int32_t token = seq->tokens[seq->n_tokens];
        logits_row = segment->logits_row + (size_t)(node - DRAFT_ROOT);
        segment->ends =
            seq_accept_token(seq, eng->model->tokenizer, token, now_us, &seq->reason);
        node = segment->draft ? draft_find(segment->draft, node, token) : DRAFT_NONE;
        n++;
    } while (node != DRAFT_NONE && !segment->ends);
    note_hidden(eng, seq, logits_row);
    if (segment->draft)
        spec_keep(eng->spec, segment, n);
}

/* The step's time goes to prefill and decode by their rows. */
static void count_step(struct engine *eng, int64_t began_us, int64_t ended_us)
{
    struct engine_counters *c = &eng->counters;
    size_t n_prefill = 0;
    for (size_t i = 0; i < eng->plan.n_segments; i++) {
        const struct step_segment *segment = &eng->plan.segments[i];
        struct seq *seq = segment->seq;
        const bool prefills = segment->position < seq->n_prompt;
        const size_t left = prefills ? seq->n_prompt - segment->position : 0;
        n_prefill += segment->n_rows < left ? segment->n_rows : left;
        seq->n_steps++;
        seq->n_chunks += prefills;
        if (seq->scheduled_us == 0)
            seq->scheduled_us = began_us;
    }
    const int64_t spent_us = ended_us - began_us;
    const int64_t prefill_us = spent_us * (int64_t)n_prefill / (int64_t)eng->plan.n_rows;
    c->steps++;
    c->rows += eng->plan.n_rows;
    c->computed_tokens += n_prefill;
    c->busy_us += spent_us;
    c->prefill_us += prefill_us;
    c->decode_us += spent_us - prefill_us;
    if (eng->disk)
        kv_disk_note_prefill(eng->disk, n_prefill, prefill_us);
}

static void finish_cancelled(struct engine *eng)
{
    size_t i = 0;
    struct seq *seq;
    while ((seq = sched_at(eng->sched, i)))
        if (seq->is_cancelled)
            finish(eng, seq, FINISH_CANCELLED);
        else
            i++;
    eng->cancel = false;
}

static void forget_collected(struct engine *eng)
{
    seq_close(eng->collected);
    eng->collected = NULL;
}

/* Tokens first, then the keys that belong to them. */
static void end_step(struct engine *eng, int64_t now_us)
{
    for (size_t i = 0; i < eng->plan.n_segments; i++)
        if (eng->plan.segments[i].n_logits > 0)
            accept_tokens(eng, &eng->plan.segments[i], now_us);
    if (eng->drafters)
        drafters_keep_rows(eng->drafters);
    sched_commit_step(eng->sched, &eng->plan);
    for (size_t i = 0; i < eng->plan.n_segments; i++) {
        const struct step_segment *segment = &eng->plan.segments[i];
        kv_disk_save_seq(eng->disk, segment->seq, false);
        if (segment->ends)
            finish(eng, segment->seq, segment->seq->reason);
    }
}

/* When a step's work began, and that on what it drafts ended. */
struct step_times {
    int64_t began_us, drafted_us;
};

/* The step that is planned from what is known; false: there is nothing to compute. */
static bool begin_planned(struct engine *eng, struct step_times *times)
{
    kv_disk_load_waiting(eng->disk, eng->prefixes, eng->sched, eng->options.batch);
    sched_plan_step(eng->sched, &eng->plan);
    if (eng->plan.n_rows == 0)
        return false;
    times->began_us = times->drafted_us = clock_mono_us();
    if (eng->spec) {
        spec_add_drafts(eng->spec, &eng->plan);
        times->drafted_us = clock_mono_us();
    }
    mark_wanted(eng);
    forward_begin(eng->forward, &eng->plan);
    return true;
}

/* The step that has been begun ahead, or one that is planned now. */
static bool begin_step(struct engine *eng, struct step_times *times)
{
    if (!ahead_take(&eng->ahead, &eng->plan))
        return begin_planned(eng, times);
    times->began_us = times->drafted_us = clock_mono_us();
    return true;
}

int engine_step(struct engine *eng, bool *worked, struct err *e)
{
    forget_collected(eng);
    *worked = false;
    if (eng->cancel)
        finish_cancelled(eng);
    if (sched_at(eng->sched, 0)) /* also what a device was asked for after its last step */
        TRY(forward_check(eng->forward, e));
    struct step_times times;
    if (!begin_step(eng, &times))
        return 0;
    ahead_begin(&eng->ahead, eng->sched, eng->forward, &eng->plan);
    forward_end(eng->forward);
    TRY(forward_check(eng->forward, e)); /* before anything is drawn from it */
    draw_tokens(eng);
    const int64_t now_us = clock_mono_us();
    count_step(eng, times.began_us, now_us);
    end_step(eng, now_us);
    if (eng->spec)
        spec_end_step(eng->spec, &eng->plan, now_us - times.drafted_us);
    ASSERT_SLOW(prefix_check(eng->prefixes));
    *worked = true;
    return 0;
}

bool engine_collect(struct engine *eng, struct seq_result *out)
{
    forget_collected(eng);
    if (eng->n_done == 0)
        return false;
    struct seq *seq = eng->done[0];
    eng->n_done--;
    memmove(eng->done, eng->done + 1, eng->n_done * sizeof eng->done[0]);
    eng->n_active--;
    eng->collected = seq;
    *out = (struct seq_result){
        .user = seq->req.user,
        .reason = seq->reason,
        .stop_index = seq->stop_index,
        .stop_token = seq->stop_token,
        .tokens = seq->tokens + seq->n_prompt,
        .n_tokens = seq_n_output(seq),
        .text = buf_str(&seq->text),
        .text_bytes = seq->text.length,
        .n_prompt = seq->n_prompt,
        .n_cached = seq->n_cached,
        .miss = seq->miss,
        .miss_at = seq->miss_at,
        .n_steps = seq->n_steps,
        .n_chunks = seq->n_chunks,
        .n_preempted = seq->n_preempted,
        .n_drafted = seq->n_drafted,
        .n_accepted = seq->n_accepted,
        .n_predicted = draft_tally_sum(seq->tally.drafted[DRAFT_PREDICTION]),
        .n_predicted_accepted = draft_tally_sum(seq->tally.accepted[DRAFT_PREDICTION]),
        .drafts = &seq->tally,
        .kv_pages_peak = seq->kv_pages_peak,
        .submitted_us = seq->submitted_us,
        .scheduled_us = seq->scheduled_us,
        .first_token_us = seq->first_token_us,
        .last_token_us = seq->last_token_us,
        .gap_us_max = seq->gap_us_max,
    };
    return true;
}

/* ------------------------------------------------------------------ logits of a text */

int engine_run_chunk(struct engine *eng, struct seq *seq, bool is_greedy, size_t *n_rows,
                     struct err *e)
{
    const size_t n = size_min(seq->n_tokens - seq->n_computed,
                              size_min(eng->options.chunk_tokens, eng->options.batch));
    eng->plan.segments[0] = (struct step_segment){.seq = seq,
                                                  .n_rows = n,
                                                  .position = seq->n_computed,
                                                  .n_logits = n,
                                                  .is_greedy = is_greedy};
    eng->plan.n_segments = 1;
    eng->plan.n_rows = eng->plan.n_logits = n;
    forward_run(eng->forward, &eng->plan);
    seq->n_computed += n;
    *n_rows = n;
    return forward_check(eng->forward, e);
}

int engine_logits(struct engine *eng, const int32_t *tokens, size_t n, float *logits,
                  struct err *e)
{
    ASSERT(eng->n_active == 0);
    const struct seq_request req = {
        .prompt = tokens, .n_prompt = n, .max_tokens = 1, .sample = sample_params_greedy()};
    TRY(engine_check(eng, &req, e));
    struct seq *seq = NULL;
    TRY(seq_open(&req, eng->options.context, &seq, e));
    const size_t n_vocab = eng->model->config.n_vocab;
    const bool reserved = seq_reserve(seq, eng->prefixes, n);
    ASSERT(reserved);
    int rc = 0;
    while (rc == 0 && seq->n_computed < n) {
        float *out = logits + seq->n_computed * n_vocab;
        size_t n_rows;
        rc = engine_run_chunk(eng, seq, false, &n_rows, e);
        memcpy(out, forward_logits(eng->forward, 0), n_rows * n_vocab * sizeof logits[0]);
    }
    while (seq->n_pages > 0)
        kvpool_release_page(eng->kvpool, seq->pages[--seq->n_pages]);
    seq_close(seq);
    return rc;
}
