#include "delivery_world_int.h"

#include <string.h>

#include "io/burst_plan.h"

/* choice: the entry, twice; and whether a job without its partition is dropped: one that was
 * begun goes on. */
bool world_compute(struct worker *k, int choice)
{
    const int i = choice / 2;
    if (i >= k->n_entries || k->entries[i].stage != ENTRY_WAITS)
        return false;
    if (choice % 2) {
        if (k->entries[i].is_held)
            return false;
        world_drop_entry(k, i);
        return true;
    }
    if (k->entries[i].was_stored)
        world_found = "an answer that was stored is computed again";
    k->entries[i].stage = ENTRY_COMPUTED;
    return true;
}

static bool has_line(const struct entry *n)
{
    return n->is_in_batch && n->stage != ENTRY_KNOWN_PUBLISHED;
}

static void store(struct world *w, int worker)
{
    const struct worker *k = &w->workers[worker];
    for (int i = 0; i < k->n_entries; i++)
        if (k->entries[i].is_in_batch && k->entries[i].stage == ENTRY_COMPUTED)
            marks_store(&w->databases[worker][k->entries[i].partition],
                        (uint8_t)(1u << k->entries[i].job));
}

static void offer(struct world *w, int worker)
{
    const struct worker *k = &w->workers[worker];
    for (int i = 0; i < k->n_entries; i++)
        if (has_line(&k->entries[i]))
            marks_offer(&w->databases[worker][k->entries[i].partition],
                        (uint8_t)(1u << k->entries[i].job));
}

static void mark(struct world *w, int worker, bool all)
{
    const struct worker *k = &w->workers[worker];
    for (int i = 0; i < k->n_entries; i++) {
        const struct entry *n = &k->entries[i];
        struct marks *m = &w->databases[worker][n->partition];
        if (has_line(n) && (all || n->state == ANSWER_GIVEN))
            marks_publish(m, (uint8_t)(1u << n->job));
        else if (has_line(n) && n->state == ANSWER_NOT_OURS)
            marks_supersede(m, (uint8_t)(1u << n->job));
    }
}

/* All that is there: what a smaller batch would leave is as if it were not computed yet. */
static bool gather(struct world *w, const struct world_limits *l, int worker)
{
    struct worker *k = &w->workers[worker];
    bool is_any = false;
    for (int i = 0; i < k->n_entries; i++) {
        k->entries[i].is_in_batch = k->entries[i].stage != ENTRY_WAITS;
        is_any |= k->entries[i].is_in_batch;
    }
    if (!is_any)
        return false;
    if (is_on(l, GUARD_STORE_FIRST))
        store(w, worker);
    offer(w, worker);
    if (!is_on(l, GUARD_MARK_LAST))
        mark(w, worker, true);
    k->step = STEP_SEND;
    return true;
}

static bool find_out(struct world *w, const struct world_limits *l, struct worker *k)
{
    unsigned owned = 0;
    for (int p = 0; p < l->partitions; p++)
        owned |= (unsigned)k->held[p].is_owned << p;
    if (!world_is_stable(w, l, owned))
        return false;
    world_load(k);
    for (int p = 0; p < l->partitions; p++) {
        struct offset_bits committed;
        world_read_text(&w->committed[p], &committed);
        if (owned >> p & 1)
            burst_plan_take_over(&world_ps, TOPIC, p, &committed);
    }
    world_save(k);
    k->is_unsure = 0;
    return true;
}

static void settle(struct worker *k)
{
    world_load(k);
    for (int i = 0; i < k->n_entries; i++) {
        struct entry *n = &k->entries[i];
        struct kafka_partition *p = kafka_partitions_find(&world_ps, TOPIC, n->partition);
        if (!n->is_in_batch || n->state != ANSWER_OPEN)
            continue;
        if (p)
            offset_tracker_settle(&p->tracker, offset_of(n->job));
        n->state = ANSWER_GIVEN;
    }
    world_save(k);
}

static bool make_plan(struct worker *k, const struct world_limits *l)
{
    struct kafka_answer answers[WORLD_ENTRIES];
    enum kafka_answer_state states[WORLD_ENTRIES];
    struct entry *of[WORLD_ENTRIES];
    size_t n = 0;
    if (k->place != PLACE_ASSIGNED)
        return false;
    for (int i = 0; i < k->n_entries; i++)
        if (k->entries[i].is_in_batch) {
            of[n] = &k->entries[i];
            answers[n++] = (struct kafka_answer){
                .topic = TOPIC,
                .partition = k->entries[i].partition,
                .offset = offset_of(k->entries[i].job),
                .lease = k->entries[i].is_held ? k->entries[i].partition + 1u : OLD_LEASE};
        }
    world_load(k);
    struct burst_plan plan;
    if (burst_plan_make(&world_ps, answers, n, states, &plan, NULL) != 0)
        return false;
    memset(k->plan, 0, sizeof k->plan);
    for (size_t i = 0; i < plan.n; i++)
        k->plan[plan.items[i].partition] = world_settled_of(&plan.items[i].settled);
    for (size_t i = 0; i < n; i++)
        of[i]->state = (uint8_t)states[i];
    k->plan_is_current = k->is_current;
    k->step = plan.n > 0 ? STEP_PRODUCE : STEP_MARK;
    burst_plan_fini(&plan);
    if (!is_on(l, GUARD_SETTLE_LAST)) {
        for (size_t i = 0; i < n; i++)
            if (states[i] == ANSWER_OPEN) {
                struct kafka_partition *p =
                    kafka_partitions_find(&world_ps, TOPIC, answers[i].partition);
                offset_tracker_settle(&p->tracker, answers[i].offset);
            }
        world_save(k);
    }
    return true;
}

static bool send(struct world *w, const struct world_limits *l, int worker)
{
    struct worker *k = &w->workers[worker];
    if (!k->has_producer) {
        world_make_producer(w, worker);
        return true;
    }
    return k->is_unsure ? find_out(w, l, k) : make_plan(k, l);
}

static bool give_up_producer(struct worker *k)
{
    k->has_producer = 0;
    k->step = STEP_SEND;
    return true;
}

static bool produce(struct world *w, const struct world_limits *l, int worker)
{
    struct worker *k = &w->workers[worker];
    struct transaction *t = &w->transactions[worker];
    *t = (struct transaction){.stage = TRANSACTION_OPEN};
    for (int i = 0; i < k->n_entries; i++) {
        const struct entry *n = &k->entries[i];
        if (n->is_in_batch && n->state == ANSWER_OPEN && n->stage != ENTRY_KNOWN_PUBLISHED)
            t->results[n->partition] |= (uint8_t)(1u << n->job);
    }
    for (int p = 0; p < l->partitions; p++)
        if (!is_on(l, GUARD_RESULTS_WITH_OFFSETS) && k->plan[p].is_set)
            w->committed[p] = k->plan[p];
    k->step = STEP_OFFSETS;
    return true;
}

static bool send_offsets(struct world *w, const struct world_limits *l, int worker)
{
    struct worker *k = &w->workers[worker];
    struct transaction *t = &w->transactions[worker];
    if (t->is_fenced)
        return give_up_producer(k);
    if (!k->plan_is_current && is_on(l, GUARD_GENERATION)) { /* aborted */
        *t = (struct transaction){0};
        k->step = STEP_SEND;
        return true;
    }
    memcpy(t->offsets, k->plan, sizeof t->offsets);
    k->step = STEP_COMMIT;
    return true;
}

static bool ask_commit(struct world *w, const struct world_limits *l, int worker)
{
    struct worker *k = &w->workers[worker];
    k->is_unsure = is_on(l, GUARD_FIND_OUT);
    if (w->transactions[worker].is_fenced)
        return give_up_producer(k);
    w->transactions[worker].stage = TRANSACTION_ASKED;
    k->step = STEP_HEAR;
    return true;
}

/* choice 1: no answer is heard, whether or not the commit comes true. */
static bool hear(struct world *w, int worker, int choice)
{
    struct worker *k = &w->workers[worker];
    struct transaction *t = &w->transactions[worker];
    if (choice == 1) {
        if (w->unheard == 0)
            return false;
        w->unheard--;
        return give_up_producer(k);
    }
    if (t->is_fenced)
        return give_up_producer(k);
    if (t->stage != TRANSACTION_DONE)
        return false;
    *t = (struct transaction){0};
    k->is_unsure = 0;
    k->step = STEP_SETTLE;
    return true;
}

static bool end_batch(struct world *w, int worker)
{
    struct worker *k = &w->workers[worker];
    store(w, worker); /* changes nothing, except in the twin that stores last */
    mark(w, worker, false);
    for (int i = k->n_entries; i-- > 0;)
        if (k->entries[i].is_in_batch)
            world_drop_entry(k, i);
    memset(k->plan, 0, sizeof k->plan);
    k->plan_is_current = 0;
    k->step = STEP_GATHER;
    return true;
}

static bool deliver_step(struct world *w, const struct world_limits *l, int worker, int choice)
{
    struct worker *k = &w->workers[worker];
    if (choice == 1 && k->step != STEP_HEAR)
        return false;
    switch (k->step) {
    case STEP_GATHER: return gather(w, l, worker);
    case STEP_SEND: return send(w, l, worker);
    case STEP_PRODUCE: return produce(w, l, worker);
    case STEP_OFFSETS: return send_offsets(w, l, worker);
    case STEP_COMMIT: return ask_commit(w, l, worker);
    case STEP_HEAR: return hear(w, worker, choice);
    case STEP_SETTLE:
        settle(k);
        k->step = STEP_MARK;
        return true;
    default: return end_batch(w, worker);
    }
}

/* What was produced nobody sees before its commit; one that was asked for may still come to
 * nothing; and of settling and marking only the worker itself knows. */
bool world_deliver(struct world *w, const struct world_limits *l, int worker, int choice)
{
    const struct worker *k = &w->workers[worker];
    if (!deliver_step(w, l, worker, choice))
        return false;
    while (l->is_coarse &&
           (k->step == STEP_PRODUCE || k->step == STEP_COMMIT || k->step == STEP_MARK))
        deliver_step(w, l, worker, 0);
    return true;
}
