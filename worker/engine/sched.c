#include "engine/sched.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/size.h"

enum {
    PASSES_MAX = 64,
    DEFERRALS_MAX = 256,
    FIRST_SHARE = 4, /* of what is left for prompts, a fourth */
};

/* A prompt's part of the step. */
struct grant {
    struct seq *seq;
    size_t n_rows;
};

struct sched {
    struct sched_limits limits;
    struct prefix_tree *prefixes;
    struct seq **running; /* [batch] in order of admission */
    size_t n_running;
    bool owes_decoding;   /* whole_prompts: a prompt was completed, a decode step comes next */
    struct grant *grants; /* [batch] scratch */
    struct seq **waiting; /* in order of submission, preempted ones in front */
    size_t n_waiting;
    size_t waiting_capacity;
};

int sched_open(const struct sched_limits *limits, struct prefix_tree *prefixes,
               struct sched **out, struct err *e)
{
    ASSERT(limits->batch >= 1 && limits->step_tokens >= limits->batch);
    ASSERT(limits->chunk_tokens >= 1);
    struct sched *s = calloc(1, sizeof *s);
    if (!s)
        return ERR_SET(e, ERR_NOMEM, "no memory for the scheduler");
    s->limits = *limits;
    s->prefixes = prefixes;
    s->running = calloc(limits->batch, sizeof s->running[0]);
    s->grants = calloc(limits->batch, sizeof s->grants[0]);
    if (!s->running || !s->grants) {
        sched_close(s);
        return ERR_SET(e, ERR_NOMEM, "no memory for a batch of %zu", limits->batch);
    }
    *out = s;
    return 0;
}

void sched_close(struct sched *s)
{
    if (!s)
        return;
    ASSERT(s->n_running == 0 && s->n_waiting == 0);
    free(s->running);
    free(s->grants);
    free(s->waiting);
    free(s);
}

/* Room for every sequence to wait at once is made here, so that a preemption cannot fail. */
static bool make_waiting_room(struct sched *s)
{
    const size_t needed = s->n_waiting + s->limits.batch + 1;
    if (needed <= s->waiting_capacity)
        return true;
    const size_t capacity = 2 * needed;
    struct seq **waiting = realloc(s->waiting, capacity * sizeof waiting[0]);
    if (!waiting)
        return false;
    s->waiting = waiting;
    s->waiting_capacity = capacity;
    return true;
}

static void insert_at(struct seq **list, size_t *n, size_t index, struct seq *seq)
{
    memmove(list + index + 1, list + index, (*n - index) * sizeof list[0]);
    list[index] = seq;
    (*n)++;
}

static bool take_out(struct seq **list, size_t *n, const struct seq *seq)
{
    for (size_t i = 0; i < *n; i++) {
        if (list[i] != seq)
            continue;
        memmove(list + i, list + i + 1, (*n - i - 1) * sizeof list[0]);
        (*n)--;
        return true;
    }
    return false;
}

int sched_add(struct sched *s, struct seq *seq, struct err *e)
{
    ASSERT(seq->phase == SEQ_WAITING);
    if (!make_waiting_room(s))
        return ERR_SET(e, ERR_NOMEM, "no memory for %zu waiting sequences", s->n_waiting);
    TRY(prefix_want(s->prefixes, seq->salt, seq->tokens, seq->n_prompt, PREFIX_NEXT, &seq->path,
                    e));
    insert_at(s->waiting, &s->n_waiting, s->n_waiting, seq);
    return 0;
}

/* Gives the pages of a running sequence back; again: it will be admitted once more. */
static void stop(struct sched *s, struct seq *seq, bool again)
{
    prefix_stop(s->prefixes, seq->path, seq->tokens, seq->n_computed, seq->pages, seq->n_pages,
                again);
    seq->n_pages = 0;
    if (!again)
        seq->path = NULL;
}

void sched_remove(struct sched *s, struct seq *seq)
{
    if (take_out(s->running, &s->n_running, seq)) {
        stop(s, seq, false);
    } else {
        const bool found = take_out(s->waiting, &s->n_waiting, seq);
        ASSERT(found);
        prefix_unwant(s->prefixes, seq->path);
        seq->path = NULL;
    }
    seq->phase = SEQ_DONE;
}

/* ------------------------------------------------------------------ admission */

static void preempt(struct sched *s, struct seq *seq)
{
    take_out(s->running, &s->n_running, seq);
    stop(s, seq, true);
    seq->phase = SEQ_WAITING;
    seq->n_computed = 0;
    seq->was_looked_for = false; /* what it had may be gone when its turn comes */
    seq->n_pages_loaded = 0;
    seq->n_preempted++;
    insert_at(s->waiting, &s->n_waiting, 0, seq);
}

/* A running sequence is about to publish more of this one's prompt than the tree has now. */
static bool is_coming(const struct sched *s, const struct seq *seq)
{
    struct prefix_hit hit;
    prefix_find(s->prefixes, seq->path, seq->tokens, seq->n_tokens, &hit);
    return hit.n_coming > 0;
}

/* All pages of its tokens now, so that a prompt that started cannot be starved by a later one,
 * and one more for each sequence that runs already. */
static bool start(struct sched *s, struct seq *seq)
{
    struct prefix_hit hit;
    if (!prefix_start(s->prefixes, seq->path, seq->tokens, seq->n_tokens, s->n_running,
                      seq->pages, &hit))
        return false;
    seq->n_pages = seq_pages_for(seq->n_tokens);
    if (seq->n_pages > seq->kv_pages_peak)
        seq->kv_pages_peak = seq->n_pages;
    seq->n_computed = hit.n_tokens;
    seq->phase = SEQ_RUNNING;
    if (seq->n_preempted == 0) {
        seq->n_cached = hit.n_tokens;
        seq->miss = hit.miss;
        seq->miss_at = hit.miss_at;
    }
    insert_at(s->running, &s->n_running, s->n_running, seq);
    return true;
}

static void admit_waiting(struct sched *s)
{
    struct seq *short_of_pages = NULL; /* the first of them */
    size_t i = 0;
    while (i < s->n_waiting && s->n_running < s->limits.batch) {
        struct seq *seq = s->waiting[i];
        if (short_of_pages && short_of_pages->n_passed >= PASSES_MAX)
            return;
        if (seq->waits_for_disk) {
            i++;
        } else if (seq->n_deferred < DEFERRALS_MAX && is_coming(s, seq)) {
            seq->n_deferred++;
            i++;
        } else if (start(s, seq)) {
            take_out(s->waiting, &s->n_waiting, seq);
            if (short_of_pages)
                short_of_pages->n_passed++;
        } else {
            short_of_pages = short_of_pages ? short_of_pages : seq;
            i++;
        }
    }
}

/* Every running sequence gets the page of its next token, the youngest paying for it. */
static void reserve_decode_pages(struct sched *s)
{
    for (size_t i = 0; i < s->n_running; i++) {
        struct seq *seq = s->running[i];
        while (!seq_reserve(seq, s->prefixes, seq->n_tokens)) {
            struct seq *youngest = s->running[s->n_running - 1];
            preempt(s, youngest);
            if (youngest == seq)
                return;
        }
    }
}

/* ------------------------------------------------------------------ planning */

static void add_segment(struct step_plan *plan, struct seq *seq, size_t n_rows)
{
    const bool reaches_end = seq->n_computed + n_rows == seq->n_tokens;
    plan->segments[plan->n_segments++] = (struct step_segment){
        .seq = seq,
        .row = plan->n_rows,
        .n_rows = n_rows,
        .position = seq->n_computed,
        .n_logits = reaches_end ? 1 : 0,
        .logits_row = plan->n_logits,
    };
    plan->n_rows += n_rows;
    plan->n_logits += reaches_end ? 1 : 0;
}

size_t segment_position(const struct step_segment *s, size_t row)
{
    const size_t root = segment_root(s);
    return row <= root ? s->position + row
                       : s->position + root + s->draft->nodes[row - root - 1].depth;
}

int32_t segment_token(const struct step_segment *s, size_t row)
{
    const size_t root = segment_root(s);
    return row <= root ? s->seq->tokens[s->position + row]
                       : s->draft->nodes[row - root - 1].token;
}

static size_t remainder_of(const struct seq *seq)
{
    return seq->n_tokens - seq->n_computed;
}

static struct seq *first_prefilling(const struct sched *s)
{
    for (size_t i = 0; i < s->n_running; i++)
        if (!seq_is_decoding(s->running[i]))
            return s->running[i];
    return NULL;
}

/* Sorted by remainder, equals in order of admission. */
static size_t list_prefilling(struct sched *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_running; i++) {
        struct seq *seq = s->running[i];
        if (seq_is_decoding(seq))
            continue;
        size_t at = n++;
        for (; at > 0 && remainder_of(s->grants[at - 1].seq) > remainder_of(seq); at--)
            s->grants[at] = s->grants[at - 1];
        s->grants[at] = (struct grant){.seq = seq};
    }
    return n;
}

static void plan_chunks(struct sched *s, struct step_plan *plan)
{
    const struct seq *first = first_prefilling(s);
    const size_t n = list_prefilling(s);
    size_t left = s->limits.step_tokens - plan->n_rows;
    const size_t share = (left + FIRST_SHARE - 1) / FIRST_SHARE;
    for (size_t i = 0; i < n; i++) {
        struct grant *grant = &s->grants[i];
        if (grant->seq != first)
            continue;
        grant->n_rows = size_min(size_min(remainder_of(first), s->limits.chunk_tokens),
                                 size_min(share, left));
        left -= grant->n_rows;
    }
    for (size_t i = 0; i < n; i++) {
        struct grant *grant = &s->grants[i];
        const size_t chunk = size_min(remainder_of(grant->seq), s->limits.chunk_tokens);
        const size_t more = size_min(chunk - grant->n_rows, left);
        left -= more;
        if (grant->n_rows + more > 0)
            add_segment(plan, grant->seq, grant->n_rows + more);
    }
}

static void plan_decoding(struct sched *s, struct step_plan *plan)
{
    for (size_t i = 0; i < s->n_running; i++)
        if (seq_is_decoding(s->running[i]))
            add_segment(plan, s->running[i], 1);
}

/* A prompt or what decodes, never both. */
static void plan_whole(struct sched *s, struct step_plan *plan)
{
    struct seq *first = first_prefilling(s);
    if (!first || s->owes_decoding)
        plan_decoding(s, plan);
    s->owes_decoding = false;
    if (plan->n_rows > 0 || !first)
        return;
    const size_t n_rows = size_min(remainder_of(first), s->limits.step_tokens);
    s->owes_decoding = n_rows == remainder_of(first);
    add_segment(plan, first, n_rows);
}

void sched_plan_step(struct sched *s, struct step_plan *plan)
{
    plan->n_segments = plan->n_rows = plan->n_logits = 0;
    reserve_decode_pages(s);
    admit_waiting(s);
    if (s->limits.whole_prompts) {
        plan_whole(s, plan);
        return;
    }
    plan_decoding(s, plan);
    plan_chunks(s, plan);
}

/* ------------------------------------------------------------------ one step ahead */

/* With the token that the step draws. */
static bool will_be_full(const struct seq *seq)
{
    return seq->n_tokens + 1 == seq->capacity;
}

/* All that run draw one token each, from the greatest of a row's logits; nobody else is to be
 * admitted when they have. */
static bool goes_on_decoding(const struct sched *s, const struct step_plan *now)
{
    bool some_end = false;
    for (size_t i = 0; i < now->n_segments; i++) {
        const struct step_segment *segment = &now->segments[i];
        if (segment->n_logits != 1 || !segment->is_greedy || segment->draft)
            return false;
        some_end = some_end || will_be_full(segment->seq);
    }
    const bool is_full = s->n_running == s->limits.batch && !some_end;
    return now->n_segments == s->n_running && (s->n_waiting == 0 || is_full);
}

static void add_row_behind(struct step_plan *plan, const struct step_segment *before)
{
    plan->segments[plan->n_segments++] = (struct step_segment){
        .seq = before->seq,
        .row = plan->n_rows,
        .n_rows = 1,
        .position = before->seq->n_tokens,
        .n_logits = 1,
        .logits_row = plan->n_logits,
        .is_greedy = true,
        .is_behind = true,
        .token_of = before->logits_row,
    };
    plan->n_rows++;
    plan->n_logits++;
}

bool sched_plan_behind(struct sched *s, const struct step_plan *now, struct step_plan *out)
{
    out->n_segments = out->n_rows = out->n_logits = 0;
    if (!goes_on_decoding(s, now))
        return false;
    for (size_t i = 0; i < now->n_segments; i++) {
        const struct step_segment *before = &now->segments[i];
        struct seq *seq = before->seq;
        if (will_be_full(seq))
            continue;
        if (!seq_reserve(seq, s->prefixes, seq->n_tokens + 1))
            return false;
        add_row_behind(out, before);
    }
    s->owes_decoding = s->owes_decoding && out->n_rows == 0;
    return out->n_rows > 0;
}

void sched_commit_step(struct sched *s, const struct step_plan *plan)
{
    for (size_t i = 0; i < plan->n_segments; i++) {
        const struct step_segment *segment = &plan->segments[i];
        struct seq *seq = segment->seq;
        const bool ends_prompt = segment->position < seq->n_prompt && segment->n_logits > 0;
        seq->n_computed += segment->n_rows - segment->n_refused;
        prefix_commit(s->prefixes, seq->path, seq->tokens, seq->n_computed, ends_prompt,
                      seq->pages);
    }
}

size_t sched_n_running(const struct sched *s)
{
    return s->n_running;
}

size_t sched_n_waiting(const struct sched *s)
{
    return s->n_waiting;
}

struct seq *sched_at(const struct sched *s, size_t index)
{
    if (index < s->n_running)
        return s->running[index];
    index -= s->n_running;
    return index < s->n_waiting ? s->waiting[index] : NULL;
}
