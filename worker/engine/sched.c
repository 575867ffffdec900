#include "engine/sched.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

struct sched {
    struct sched_limits limits;
    struct kvpool *pool;
    struct seq **running; /* [batch] in order of admission */
    size_t n_running;
    struct seq **waiting; /* in order of submission, preempted ones in front */
    size_t n_waiting;
    size_t waiting_capacity;
};

int sched_open(const struct sched_limits *limits, struct kvpool *pool, struct sched **out,
               struct err *e)
{
    ASSERT(limits->batch >= 1 && limits->step_tokens >= limits->batch);
    ASSERT(limits->chunk_tokens >= 1);
    struct sched *s = calloc(1, sizeof *s);
    if (!s)
        return ERR_SET(e, ERR_NOMEM, "no memory for the scheduler");
    s->limits = *limits;
    s->pool = pool;
    s->running = calloc(limits->batch, sizeof s->running[0]);
    if (!s->running) {
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
    insert_at(s->waiting, &s->n_waiting, s->n_waiting, seq);
    return 0;
}

void sched_remove(struct sched *s, struct seq *seq)
{
    const bool found =
        take_out(s->running, &s->n_running, seq) || take_out(s->waiting, &s->n_waiting, seq);
    ASSERT(found);
    seq_release_pages(seq, s->pool);
    seq->phase = SEQ_DONE;
}

static void preempt(struct sched *s, struct seq *seq)
{
    take_out(s->running, &s->n_running, seq);
    seq_release_pages(seq, s->pool);
    seq->phase = SEQ_WAITING;
    seq->n_computed = 0;
    seq->n_preempted++;
    insert_at(s->waiting, &s->n_waiting, 0, seq);
}

static void admit_waiting(struct sched *s)
{
    while (s->n_waiting > 0 && s->n_running < s->limits.batch) {
        struct seq *seq = s->waiting[0];
        /* All pages of its tokens now: a prompt that started cannot be starved by a later one.
         */
        if (seq_pages_for(seq->n_tokens) > kvpool_free_pages(s->pool))
            return;
        take_out(s->waiting, &s->n_waiting, seq);
        const bool reserved = seq_reserve(seq, s->pool, seq->n_tokens);
        ASSERT(reserved);
        seq->phase = SEQ_RUNNING;
        insert_at(s->running, &s->n_running, s->n_running, seq);
    }
}

/* Every running sequence gets the page of its next token, the youngest paying for it. */
static void reserve_decode_pages(struct sched *s)
{
    for (size_t i = 0; i < s->n_running; i++) {
        struct seq *seq = s->running[i];
        while (!seq_reserve(seq, s->pool, seq->n_tokens)) {
            struct seq *youngest = s->running[s->n_running - 1];
            preempt(s, youngest);
            if (youngest == seq)
                return;
        }
    }
}

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

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

void sched_plan_step(struct sched *s, struct step_plan *plan)
{
    plan->n_segments = plan->n_rows = plan->n_logits = 0;
    reserve_decode_pages(s);
    admit_waiting(s);
    for (size_t i = 0; i < s->n_running; i++)
        if (seq_is_decoding(s->running[i]))
            add_segment(plan, s->running[i], 1);
    for (size_t i = 0; i < s->n_running && plan->n_rows < s->limits.step_tokens; i++) {
        struct seq *seq = s->running[i];
        if (seq_is_decoding(seq))
            continue;
        const size_t left = seq->n_tokens - seq->n_computed;
        const size_t chunk = smaller(left, s->limits.chunk_tokens);
        add_segment(plan, seq, smaller(chunk, s->limits.step_tokens - plan->n_rows));
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
