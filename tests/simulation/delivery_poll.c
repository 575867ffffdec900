#include "delivery_world_int.h"

#include <string.h>

#include "base/check.h"

bool world_notice(struct world *w, const struct world_limits *l, struct worker *k, int worker)
{
    const bool is_out = !world_is_in_group(w, worker);
    const bool is_asked = w->group.is_preparing && w->group.members >> worker & 1;
    if (!k->is_alive || !(is_out ? k->place == PLACE_JOINED || k->place == PLACE_ASSIGNED
                                 : is_asked && k->place == PLACE_ASSIGNED))
        return false;
    world_load(k);
    kafka_partitions_revoke_all(&world_ps);
    world_save(k);
    k->place = PLACE_OUT;
    return l->is_coarse ? world_join(w, k, worker) : true;
}

void world_drop_entry(struct worker *k, int i)
{
    memmove(&k->entries[i], &k->entries[i + 1],
            (size_t)(k->n_entries - i - 1) * sizeof k->entries[0]);
    memset(&k->entries[--k->n_entries], 0, sizeof k->entries[0]);
}

/* Rows that are unpublished here and settled there. */
static void reconcile(struct world *w, int worker, int p)
{
    uint8_t settled = 0;
    for (int job = 0; job < WORLD_JOBS; job++)
        settled |= (uint8_t)(world_is_settled(&w->committed[p], job) << job);
    marks_reconcile(&w->databases[worker][p], settled);
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
    world_read_text(&read, &committed);
    ASSERT(kafka_partitions_assign(&world_ps, TOPIC, p, &committed, &start, NULL) == 0);
    if (is_on(l, GUARD_RECONCILE))
        reconcile(w, worker, p);
}

bool world_assign(struct world *w, const struct world_limits *l, int worker)
{
    struct worker *k = &w->workers[worker];
    if (k->place != PLACE_GRANTED || !world_is_stable(w, l, k->granted))
        return false;
    world_load(k);
    for (int p = 0; p < l->partitions; p++)
        if (k->granted >> p & 1)
            assign_one(w, l, worker, p);
    if (is_on(l, GUARD_DROP_REVOKED))
        kafka_partitions_drop_revoked(&world_ps);
    uint8_t same = 0;
    for (size_t i = 0; i < world_ps.n; i++)
        if (world_ps.items[i]->lease == (uint64_t)world_ps.items[i]->id + 1 &&
            k->held[world_ps.items[i]->id].exists)
            same |= (uint8_t)(1u << world_ps.items[i]->id);
    world_save(k);
    for (int i = k->n_entries; i-- > 0;) {
        if (!(same >> k->entries[i].partition & 1))
            k->entries[i].is_held = 0;
        if (l->is_coarse && !k->entries[i].is_held && k->entries[i].stage == ENTRY_WAITS)
            world_drop_entry(k, i);
    }
    k->place = PLACE_ASSIGNED;
    k->granted = 0;
    return true;
}

static void look_up(const struct world *w, const struct world_limits *l, int worker,
                    struct entry *n)
{
    const uint8_t bit = (uint8_t)(1u << n->job);
    const struct marks *m = &w->databases[worker][n->partition];
    n->was_stored = (m->stored & bit) != 0;
    n->stage = ENTRY_WAITS;
    if (n->was_stored && is_on(l, GUARD_LOOK_UP))
        n->stage = m->published & bit ? ENTRY_KNOWN_PUBLISHED : ENTRY_KNOWN;
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

bool world_receive(struct world *w, const struct world_limits *l, int worker, int p)
{
    struct worker *k = &w->workers[worker];
    if (k->place != PLACE_ASSIGNED || !k->held[p].is_owned)
        return false;
    int job = 0;
    while (job < w->arrived[p] && offset_of(job) < position_of(w, k, p))
        job++;
    if (job == w->arrived[p])
        return false;
    world_load(k);
    struct kafka_partition *part = kafka_partitions_find(&world_ps, TOPIC, p);
    const bool is_new = offset_tracker_receive(&part->tracker, offset_of(job), 1);
    world_save(k);
    if (!is_new)
        return true;
    struct entry n = {.partition = (uint8_t)p, .job = (uint8_t)job, .is_held = 1};
    look_up(w, l, worker, &n);
    take_up(k, n);
    return true;
}

bool world_reach_end(struct world *w, int worker, int p)
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
    world_load(k);
    offset_tracker_skip_to(&kafka_partitions_find(&world_ps, TOPIC, p)->tracker, end);
    world_save(k);
    return true;
}
