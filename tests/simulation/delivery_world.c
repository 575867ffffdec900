#include "delivery_world.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "io/burst_plan.h"
#include "io/kafka_partitions.h"
#include "io/offset_metadata.h"

#define TOPIC "jobs"
enum { OLD_LEASE = 99 };

static const char *found; /* what an action did wrong */

static bool is_on(const struct world_limits *l, enum world_guard guard)
{
    return !(l->guards_off >> guard & 1);
}

static int64_t offset_of(int job)
{
    return job + (job >= 2);
}

static int job_at(int64_t offset)
{
    return (int)(offset - (offset > 2));
}

/* ------------------------------------------------------------------ the program's own parts */

/* Made once and filled from a worker's bytes before each use. */
static struct kafka_partition *pool[WORLD_PARTITIONS];
static struct kafka_partition *items[WORLD_PARTITIONS + 1];
static struct kafka_partitions ps = {.items = items, .capacity = WORLD_PARTITIONS + 1};

static struct kafka_partition *make_partition(int id)
{
    struct kafka_partitions made = {0};
    const struct offset_bits nothing = {.base = -1};
    int64_t start;
    ASSERT(kafka_partitions_assign(&made, TOPIC, id, &nothing, &start, NULL) == 0);
    struct kafka_partition *p = made.items[0];
    free(made.items);
    return p;
}

static void free_partition(struct kafka_partition *p)
{
    struct kafka_partitions dropped = {0};
    if (!p)
        return;
    dropped.items = malloc(sizeof(struct kafka_partition *));
    ASSERT(dropped.items);
    dropped.items[0] = p;
    dropped.n = dropped.capacity = 1;
    kafka_partitions_fini(&dropped);
}

void world_free_scratch(void)
{
    for (int p = 0; p < WORLD_PARTITIONS; p++) {
        free_partition(pool[p]);
        pool[p] = NULL;
    }
}

static void load(const struct worker *k)
{
    ps.n = 0;
    ps.leases = WORLD_PARTITIONS;
    for (int i = 0; i < WORLD_PARTITIONS; i++) {
        if (!k->held[i].exists)
            continue;
        if (!pool[i])
            pool[i] = make_partition(i);
        struct kafka_partition *p = ps.items[ps.n++] = pool[i];
        struct offset_tracker *t = &p->tracker;
        p->lease = (uint64_t)i + 1;
        p->is_owned = k->held[i].is_owned;
        t->watermark = k->held[i].watermark;
        t->next = k->held[i].next;
        t->known_end = k->held[i].known_end;
        t->bits[0] = k->held[i].unsettled;
        t->known[0] = k->held[i].known;
        t->n_unsettled = (size_t)__builtin_popcount(k->held[i].unsettled);
        t->weight_unsettled = t->n_unsettled;
        for (int slot = 0; slot < 8; slot++)
            t->weights[slot] = 1;
    }
}

static void save(struct worker *k)
{
    bool is_there[WORLD_PARTITIONS] = {false};
    for (size_t i = 0; i < ps.n; i++) {
        const struct kafka_partition *p = ps.items[i];
        const struct offset_tracker *t = &p->tracker;
        is_there[p->id] = true;
        if (pool[p->id] != p && !k->held[p->id].exists)
            free_partition(pool[p->id]);
        pool[p->id] = ps.items[i];
        if (!offset_tracker_is_sound(t))
            found = "a tracker is not sound";
        k->held[p->id].is_owned = p->is_owned;
        k->held[p->id].watermark = (int8_t)t->watermark;
        k->held[p->id].next = (int8_t)t->next;
        k->held[p->id].known_end = (int8_t)(t->known[0] ? t->known_end : 0);
        k->held[p->id].unsettled = (uint8_t)t->bits[0];
        k->held[p->id].known = (uint8_t)t->known[0];
    }
    for (int i = 0; i < WORLD_PARTITIONS; i++) {
        if (k->held[i].exists && !is_there[i])
            pool[i] = NULL; /* the program has freed it */
        if (!is_there[i])
            memset(&k->held[i], 0, sizeof k->held[i]);
        k->held[i].exists = is_there[i];
    }
}

/* What is committed, as a worker reads it: through the text beside the offset. */
static void read_text(const struct settled *s, struct offset_bits *out)
{
    *out = (struct offset_bits){.base = -1};
    if (!s->is_set)
        return;
    struct offset_bits bits = {.base = s->base, .bits = {s->bits}};
    bits.n_bits = s->bits ? 32 - (size_t)__builtin_clz(s->bits) : 0;
    char text[OFFSET_METADATA_MAX + 1];
    const size_t length = offset_metadata_encode(&bits, text);
    if (offset_metadata_decode(text, length, s->base, out) != NULL ||
        out->n_bits != bits.n_bits || out->bits[0] != s->bits)
        found = "a text beside an offset says something else than was written";
}

static struct settled settled_of(const struct offset_bits *bits)
{
    return (struct settled){.is_set = 1, .base = (int8_t)bits->base, .bits = bits->bits[0]};
}

static bool is_settled(const struct settled *s, int job)
{
    const int64_t above = offset_of(job) - s->base;
    return s->is_set && (above < 0 || (above < 8 && s->bits >> above & 1));
}

/* ------------------------------------------------------------------ the group */

static void leave_group(struct world *w, int worker)
{
    const uint8_t others = (uint8_t) ~(1u << worker);
    w->group.members &= others;
    w->group.joined &= others;
    w->workers[worker].is_current = w->workers[worker].plan_is_current = 0;
}

static bool is_in_group(const struct world *w, int worker)
{
    return (w->group.members | w->group.joined) >> worker & 1;
}

static bool kick(struct world *w, int worker)
{
    if (w->group.ghosts >> worker & 1) {
        w->group.ghosts &= (uint8_t) ~(1u << worker);
    } else {
        if (!w->workers[worker].is_alive || !is_in_group(w, worker) || w->kicks == 0)
            return false;
        w->kicks--;
        leave_group(w, worker);
    }
    w->group.is_preparing = (w->group.members | w->group.joined) != 0;
    return true;
}

static bool join(struct world *w, struct worker *k, int worker)
{
    if (!k->is_alive || k->place != PLACE_OUT)
        return false;
    k->place = PLACE_JOINED;
    w->group.joined |= (uint8_t)(1u << worker);
    w->group.is_preparing = 1;
    return true;
}

/* choice, bit p: whose the partition p becomes. */
static bool complete(struct world *w, const struct world_limits *l, int choice)
{
    const uint8_t joined = w->group.joined;
    if (!w->group.is_preparing || w->group.ghosts || (w->group.members & ~joined) || !joined)
        return false;
    uint8_t granted[WORLD_WORKERS] = {0};
    for (int p = 0; p < l->partitions; p++)
        granted[choice >> p & 1] |= (uint8_t)(1u << p);
    for (int i = 0; i < WORLD_WORKERS; i++)
        if (granted[i] && !(joined >> i & 1))
            return false;
    if (l->partitions == 2 && joined == 3 && (!granted[0] || !granted[1]))
        return false; /* they are shared evenly */
    for (int i = 0; i < WORLD_WORKERS; i++) {
        struct worker *k = &w->workers[i];
        k->is_current = k->plan_is_current = 0;
        if (!(joined >> i & 1))
            continue;
        k->place = PLACE_GRANTED;
        k->granted = granted[i];
        k->is_current = 1;
    }
    w->group.members = joined;
    w->group.joined = 0;
    w->group.is_preparing = 0;
    return true;
}

/* ------------------------------------------------------------------ transactions */

static void apply(struct world *w, int worker)
{
    struct transaction *t = &w->transactions[worker];
    for (int p = 0; p < WORLD_PARTITIONS; p++) {
        if (t->offsets[p].is_set)
            w->committed[p] = t->offsets[p];
        for (int job = 0; job < WORLD_JOBS; job++)
            w->answers[p][job] += t->results[p] >> job & 1;
        if (t->results[p] & ~w->databases[worker].stored[p])
            found = "an answer was committed that its worker has not stored";
    }
    t->stage = TRANSACTION_DONE;
}

static bool time_out(struct world *w, int worker)
{
    struct transaction *t = &w->transactions[worker];
    if (t->stage != TRANSACTION_OPEN && t->stage != TRANSACTION_ASKED)
        return false;
    if (w->workers[worker].is_alive) {
        if (w->timeouts == 0)
            return false;
        w->timeouts--;
    }
    *t = (struct transaction){.is_fenced = w->workers[worker].is_alive};
    return true;
}

/* A new producer ends what the one before left. */
static void make_producer(struct world *w, int worker)
{
    w->transactions[worker] = (struct transaction){0};
    w->workers[worker].has_producer = 1;
}

static bool is_stable(const struct world *w, const struct world_limits *l, unsigned partitions)
{
    for (int i = 0; i < WORLD_WORKERS && is_on(l, GUARD_STABLE); i++)
        for (int p = 0; p < WORLD_PARTITIONS; p++)
            if (w->transactions[i].offsets[p].is_set &&
                w->transactions[i].stage != TRANSACTION_DONE && (partitions >> p & 1))
                return false;
    return true;
}

/* ------------------------------------------------------------------ the poll thread */

static bool notice(struct world *w, const struct world_limits *l, struct worker *k, int worker)
{
    const bool is_out = !is_in_group(w, worker);
    const bool is_asked = w->group.is_preparing && w->group.members >> worker & 1;
    if (!k->is_alive || !(is_out ? k->place == PLACE_JOINED || k->place == PLACE_ASSIGNED
                                 : is_asked && k->place == PLACE_ASSIGNED))
        return false;
    load(k);
    kafka_partitions_revoke_all(&ps);
    save(k);
    k->place = PLACE_OUT;
    return l->is_coarse ? join(w, k, worker) : true;
}

static void drop_entry(struct worker *k, int i)
{
    memmove(&k->entries[i], &k->entries[i + 1],
            (size_t)(k->n_entries - i - 1) * sizeof k->entries[0]);
    memset(&k->entries[--k->n_entries], 0, sizeof k->entries[0]);
}

/* Rows that are unpublished here and settled there. */
static void reconcile(struct world *w, int worker, int p)
{
    for (int job = 0; job < WORLD_JOBS; job++)
        if (is_settled(&w->committed[p], job))
            w->databases[worker].published[p] |=
                w->databases[worker].stored[p] & (uint8_t)(1u << job);
    w->databases[worker].late[p] = 0;
}

static void assign_one(struct world *w, const struct world_limits *l, int worker, int p)
{
    struct settled read = w->committed[p];
    int64_t start;
    struct offset_bits committed;
    if (!is_on(l, GUARD_BITS))
        read.bits = 0;
    if (!is_on(l, GUARD_COMMITTED_READ))
        read.is_set = 0;
    read_text(&read, &committed);
    ASSERT(kafka_partitions_assign(&ps, TOPIC, p, &committed, &start, NULL) == 0);
    if (is_on(l, GUARD_RECONCILE))
        reconcile(w, worker, p);
}

static bool assign(struct world *w, const struct world_limits *l, int worker)
{
    struct worker *k = &w->workers[worker];
    if (k->place != PLACE_GRANTED || !is_stable(w, l, k->granted))
        return false;
    load(k);
    for (int p = 0; p < l->partitions; p++)
        if (k->granted >> p & 1)
            assign_one(w, l, worker, p);
    if (is_on(l, GUARD_DROP_REVOKED))
        kafka_partitions_drop_revoked(&ps);
    uint8_t same = 0;
    for (size_t i = 0; i < ps.n; i++)
        if (ps.items[i]->lease == (uint64_t)ps.items[i]->id + 1 &&
            k->held[ps.items[i]->id].exists)
            same |= (uint8_t)(1u << ps.items[i]->id);
    save(k);
    for (int i = k->n_entries; i-- > 0;) {
        k->entries[i].is_held &= same >> k->entries[i].partition & 1;
        if (l->is_coarse && !k->entries[i].is_held && k->entries[i].stage == ENTRY_WAITS)
            drop_entry(k, i);
    }
    k->place = PLACE_ASSIGNED;
    k->granted = 0;
    return true;
}

static void look_up(const struct world *w, const struct world_limits *l, int worker,
                    struct entry *n)
{
    const uint8_t bit = (uint8_t)(1u << n->job);
    n->was_stored = (w->databases[worker].stored[n->partition] & bit) != 0;
    n->stage = ENTRY_WAITS;
    if (n->was_stored && is_on(l, GUARD_LOOK_UP))
        n->stage = w->databases[worker].published[n->partition] & bit ? ENTRY_KNOWN_PUBLISHED
                                                                      : ENTRY_KNOWN;
}

/* In the order of their jobs, so that equal worlds are equal bytes. */
static void take_up(struct worker *k, struct entry n)
{
    ASSERT(k->n_entries < WORLD_ENTRIES);
    int at = k->n_entries++;
    for (; at > 0 && k->entries[at - 1].partition * WORLD_JOBS + k->entries[at - 1].job >
                         n.partition * WORLD_JOBS + n.job;
         at--)
        k->entries[at] = k->entries[at - 1];
    k->entries[at] = n;
}

/* The position: where the assignment began or the last record ended. Without a committed offset
 * reading begins at the start, or, had it not been asked for, where librdkafka says. */
static int64_t position_of(const struct world *w, const struct worker *k, int p)
{
    if (k->held[p].next >= 0)
        return k->held[p].next;
    return w->committed[p].is_set ? w->committed[p].base : 0;
}

static bool receive(struct world *w, const struct world_limits *l, int worker, int p)
{
    struct worker *k = &w->workers[worker];
    if (k->place != PLACE_ASSIGNED || !k->held[p].is_owned)
        return false;
    int job = 0;
    while (job < w->arrived[p] && offset_of(job) < position_of(w, k, p))
        job++;
    if (job == w->arrived[p])
        return false;
    load(k);
    struct kafka_partition *part = kafka_partitions_find(&ps, TOPIC, p);
    const bool is_new = offset_tracker_receive(&part->tracker, offset_of(job), 1);
    save(k);
    if (!is_new)
        return true;
    struct entry n = {.partition = (uint8_t)p, .job = (uint8_t)job, .is_held = 1};
    look_up(w, l, worker, &n);
    take_up(k, n);
    return true;
}

static bool reach_end(struct world *w, int worker, int p)
{
    struct worker *k = &w->workers[worker];
    if (k->place != PLACE_ASSIGNED || !k->held[p].is_owned)
        return false;
    const int64_t end = offset_of(w->arrived[p]);
    for (int job = 0; job < w->arrived[p]; job++)
        if (offset_of(job) >= position_of(w, k, p))
            return false;
    if (k->held[p].next >= end)
        return false;
    load(k);
    offset_tracker_skip_to(&kafka_partitions_find(&ps, TOPIC, p)->tracker, end);
    save(k);
    return true;
}

/* ------------------------------------------------------------------ engine and delivery */

/* choice: the entry, twice; and whether a job without its partition is dropped: one that was
 * begun goes on. */
static bool compute(struct worker *k, int choice)
{
    const int i = choice / 2;
    if (i >= k->n_entries || k->entries[i].stage != ENTRY_WAITS)
        return false;
    if (choice % 2) {
        if (k->entries[i].is_held)
            return false;
        drop_entry(k, i);
        return true;
    }
    if (k->entries[i].was_stored)
        found = "an answer that was stored is computed again";
    k->entries[i].stage = ENTRY_COMPUTED;
    return true;
}

static void store(struct world *w, int worker)
{
    const struct worker *k = &w->workers[worker];
    for (int i = 0; i < k->n_entries; i++) {
        const struct entry *n = &k->entries[i];
        const uint8_t bit = (uint8_t)(1u << n->job);
        if (!n->is_in_batch || n->stage != ENTRY_COMPUTED)
            continue;
        if (!n->is_held && !(w->databases[worker].stored[n->partition] & bit))
            w->databases[worker].late[n->partition] |= bit;
        w->databases[worker].stored[n->partition] |= bit;
    }
}

static void mark(struct world *w, int worker, bool all)
{
    const struct worker *k = &w->workers[worker];
    for (int i = 0; i < k->n_entries; i++) {
        const struct entry *n = &k->entries[i];
        if (n->is_in_batch && n->stage != ENTRY_KNOWN_PUBLISHED &&
            (all || n->state == ANSWER_GIVEN))
            w->databases[worker].published[n->partition] |= (uint8_t)(1u << n->job);
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
    if (!is_stable(w, l, owned))
        return false;
    load(k);
    for (int p = 0; p < l->partitions; p++) {
        struct offset_bits committed;
        read_text(&w->committed[p], &committed);
        if (owned >> p & 1)
            burst_plan_take_over(&ps, TOPIC, p, &committed);
    }
    save(k);
    k->is_unsure = 0;
    return true;
}

static void settle(struct worker *k)
{
    load(k);
    for (int i = 0; i < k->n_entries; i++) {
        struct entry *n = &k->entries[i];
        struct kafka_partition *p = kafka_partitions_find(&ps, TOPIC, n->partition);
        if (!n->is_in_batch || n->state != ANSWER_OPEN)
            continue;
        if (p)
            offset_tracker_settle(&p->tracker, offset_of(n->job));
        n->state = ANSWER_GIVEN;
    }
    save(k);
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
    load(k);
    struct burst_plan plan;
    if (burst_plan_make(&ps, answers, n, states, &plan, NULL) != 0)
        return false;
    memset(k->plan, 0, sizeof k->plan);
    for (size_t i = 0; i < plan.n; i++)
        k->plan[plan.items[i].partition] = settled_of(&plan.items[i].settled);
    for (size_t i = 0; i < n; i++)
        of[i]->state = (uint8_t)states[i];
    k->plan_is_current = k->is_current;
    k->step = plan.n > 0 ? STEP_PRODUCE : STEP_MARK;
    burst_plan_fini(&plan);
    if (!is_on(l, GUARD_SETTLE_LAST)) {
        for (size_t i = 0; i < n; i++)
            if (states[i] == ANSWER_OPEN) {
                struct kafka_partition *p =
                    kafka_partitions_find(&ps, TOPIC, answers[i].partition);
                offset_tracker_settle(&p->tracker, answers[i].offset);
            }
        save(k);
    }
    return true;
}

static bool send(struct world *w, const struct world_limits *l, int worker)
{
    struct worker *k = &w->workers[worker];
    if (!k->has_producer) {
        make_producer(w, worker);
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
            drop_entry(k, i);
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
static bool deliver(struct world *w, const struct world_limits *l, int worker, int choice)
{
    const struct worker *k = &w->workers[worker];
    if (!deliver_step(w, l, worker, choice))
        return false;
    while (l->is_coarse &&
           (k->step == STEP_PRODUCE || k->step == STEP_COMMIT || k->step == STEP_MARK))
        deliver_step(w, l, worker, 0);
    return true;
}

/* ------------------------------------------------------------------ the world */

void world_begin(struct world *w, const struct world_limits *l)
{
    memset(w, 0, sizeof *w);
    w->crashes = (uint8_t)l->crashes;
    w->kicks = (uint8_t)l->kicks;
    w->unheard = (uint8_t)l->unheard;
    w->timeouts = (uint8_t)l->timeouts;
    for (int i = 0; i < WORLD_WORKERS; i++)
        w->workers[i] = (struct worker){
            .is_alive = 1, .has_producer = 1, .place = PLACE_GRANTED, .is_current = 1};
    w->workers[0].granted = 1;
    if (l->partitions == 2)
        w->workers[1].granted = 2;
    w->group.members = 3;
    for (int p = 0; p < l->partitions && l->all_arrived; p++)
        w->arrived[p] = (uint8_t)l->jobs;
}

int world_choices(const struct world_limits *l, enum action_kind kind)
{
    switch (kind) {
    case ACTION_ARRIVE:
    case ACTION_RECEIVE:
    case ACTION_END: return l->partitions;
    case ACTION_COMPLETE: return 1 << l->partitions;
    case ACTION_COMPUTE: return 2 * WORLD_ENTRIES;
    case ACTION_DELIVER: return 2;
    default: return 1;
    }
}

static bool crash(struct world *w, int worker)
{
    struct worker *k = &w->workers[worker];
    if (!k->is_alive || w->crashes == 0)
        return false;
    w->crashes--;
    if (is_in_group(w, worker))
        w->group.ghosts |= (uint8_t)(1u << worker);
    leave_group(w, worker);
    memset(k, 0, sizeof *k);
    return true;
}

static bool start(struct world *w, const struct world_limits *l, int worker)
{
    struct worker *k = &w->workers[worker];
    if (k->is_alive)
        return false;
    k->is_alive = 1;
    make_producer(w, worker);
    return l->is_coarse ? join(w, k, worker) : true;
}

static bool arrive(struct world *w, const struct world_limits *l, int p)
{
    if (w->arrived[p] == l->jobs)
        return false;
    w->arrived[p]++;
    return true;
}

bool world_act(struct world *w, const struct world_limits *l, struct action a)
{
    struct worker *k = &w->workers[a.worker];
    if (a.kind >= ACTION_NOTICE && !k->is_alive)
        return false;
    switch ((enum action_kind)a.kind) {
    case ACTION_ARRIVE: return a.worker == 0 && arrive(w, l, a.choice);
    case ACTION_APPLY:
        if (w->transactions[a.worker].stage != TRANSACTION_ASKED)
            return false;
        apply(w, a.worker);
        return true;
    case ACTION_TIME_OUT: return time_out(w, a.worker);
    case ACTION_KICK: return kick(w, a.worker);
    case ACTION_COMPLETE: return a.worker == 0 && complete(w, l, a.choice);
    case ACTION_CRASH: return crash(w, a.worker);
    case ACTION_START: return start(w, l, a.worker);
    case ACTION_NOTICE: return notice(w, l, k, a.worker);
    case ACTION_JOIN: return join(w, k, a.worker);
    case ACTION_ASSIGN: return assign(w, l, a.worker);
    case ACTION_RECEIVE: return receive(w, l, a.worker, a.choice);
    case ACTION_END: return reach_end(w, a.worker, a.choice);
    case ACTION_COMPUTE: return compute(k, a.choice);
    case ACTION_DELIVER: return deliver(w, l, a.worker, a.choice);
    default: return false;
    }
}

bool world_is_fault(const struct world *before, struct action a)
{
    const bool is_alive = before->workers[a.worker].is_alive;
    return a.kind == ACTION_CRASH || (a.kind == ACTION_DELIVER && a.choice == 1) ||
           (a.kind == ACTION_TIME_OUT && is_alive) ||
           (a.kind == ACTION_KICK && !(before->group.ghosts >> a.worker & 1));
}

const char *world_action_name(enum action_kind kind)
{
    static const char *const names[N_ACTIONS] = {
        "arrive", "apply", "time out", "kick",    "complete", "crash",   "start",
        "notice", "join",  "assign",   "receive", "end",      "compute", "deliver"};
    return names[kind];
}

/* ------------------------------------------------------------------ what must hold */

static const char *check_partition(const struct world *w, int p, int jobs)
{
    for (int job = 0; job < jobs; job++) {
        if (w->answers[p][job] > 1)
            return "a job has two committed answers";
        if (is_settled(&w->committed[p], job) && w->answers[p][job] == 0)
            return "a job is lost: settled without an answer";
        if (!is_settled(&w->committed[p], job) && w->answers[p][job] > 0)
            return "an answer is committed and its job is not settled";
        for (int i = 0; i < WORLD_WORKERS; i++) {
            const uint8_t bit = (uint8_t)(1u << job);
            if ((w->databases[i].published[p] & bit) && w->answers[p][job] == 0)
                return "a row is marked as published that nobody can see";
        }
    }
    return NULL;
}

/* Offsets that a tracker passes are answered; its watermark is at most the first that is not.
 */
static const char *check_tracker(const struct world *w, const struct worker *k, int p)
{
    for (int64_t offset = 0; k->held[p].exists && offset < k->held[p].next; offset++) {
        const bool is_unsettled = k->held[p].unsettled >> offset & 1;
        if (is_unsettled && offset < k->held[p].watermark)
            return "a watermark has passed an unsettled job";
        if (!is_unsettled && offset != 2 && w->answers[p][job_at(offset)] == 0)
            return "a tracker counts a job as settled that nobody has answered";
    }
    return NULL;
}

const char *world_violation(const struct world *w, const struct world_limits *l)
{
    const char *what = found;
    for (int p = 0; p < l->partitions && !what; p++) {
        what = check_partition(w, p, l->jobs);
        for (int i = 0; i < WORLD_WORKERS && !what; i++)
            what = check_tracker(w, &w->workers[i], p);
    }
    return what;
}

const char *world_violation_at_rest(const struct world *w, const struct world_limits *l)
{
    for (int p = 0; p < l->partitions; p++) {
        for (int job = 0; job < l->jobs; job++)
            if (w->answers[p][job] != 1)
                return "at rest: a job has no answer";
        if (!w->committed[p].is_set || w->committed[p].base <= offset_of(l->jobs - 1))
            return "at rest: the committed offset is not behind the last job";
        for (int i = 0; i < WORLD_WORKERS; i++)
            if (w->workers[i].held[p].is_owned && w->databases[i].stored[p] &
                                                      ~w->databases[i].published[p] &
                                                      ~w->databases[i].late[p])
                return "at rest: the partition's owner has an answer that it takes for "
                       "unpublished";
    }
    for (int i = 0; i < WORLD_WORKERS; i++)
        if (w->workers[i].n_entries > 0 || w->workers[i].place != PLACE_ASSIGNED)
            return "at rest: a worker is stuck";
    return NULL;
}

void world_forget_violation(void)
{
    found = NULL;
}
