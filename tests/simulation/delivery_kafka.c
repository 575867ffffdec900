#include "delivery_world_int.h"

void world_leave_group(struct world *w, int worker)
{
    const uint8_t others = (uint8_t) ~(1u << worker);
    w->group.members &= others;
    w->group.joined &= others;
    w->workers[worker].is_current = w->workers[worker].plan_is_current = 0;
}

bool world_is_in_group(const struct world *w, int worker)
{
    return (w->group.members | w->group.joined) >> worker & 1;
}

bool world_kick(struct world *w, int worker)
{
    if (w->group.ghosts >> worker & 1) {
        w->group.ghosts &= (uint8_t) ~(1u << worker);
    } else {
        if (!w->workers[worker].is_alive || !world_is_in_group(w, worker) || w->kicks == 0)
            return false;
        w->kicks--;
        world_leave_group(w, worker);
    }
    w->group.is_preparing = (w->group.members | w->group.joined) != 0;
    return true;
}

bool world_join(struct world *w, struct worker *k, int worker)
{
    if (!k->is_alive || k->place != PLACE_OUT)
        return false;
    k->place = PLACE_JOINED;
    w->group.joined |= (uint8_t)(1u << worker);
    w->group.is_preparing = 1;
    return true;
}

/* choice, bit p: whose the partition p becomes. */
bool world_complete(struct world *w, const struct world_limits *l, int choice)
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

void world_apply(struct world *w, int worker)
{
    struct transaction *t = &w->transactions[worker];
    for (int p = 0; p < WORLD_PARTITIONS; p++) {
        if (t->offsets[p].is_set)
            w->committed[p] = t->offsets[p];
        for (int job = 0; job < WORLD_JOBS; job++)
            if (t->results[p] >> job & 1) {
                w->answers[p][job]++;
                w->answered_by[p][job] |= (uint8_t)(1u << worker);
            }
        if (t->results[p] & ~w->databases[worker][p].stored)
            world_found = "an answer was committed that its worker has not stored";
    }
    t->stage = TRANSACTION_DONE;
}

bool world_time_out(struct world *w, int worker)
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
void world_make_producer(struct world *w, int worker)
{
    w->transactions[worker] = (struct transaction){0};
    w->workers[worker].has_producer = 1;
}

bool world_is_stable(const struct world *w, const struct world_limits *l, unsigned partitions)
{
    for (int i = 0; i < WORLD_WORKERS && is_on(l, GUARD_STABLE); i++)
        for (int p = 0; p < WORLD_PARTITIONS; p++)
            if (w->transactions[i].offsets[p].is_set &&
                w->transactions[i].stage != TRANSACTION_DONE && (partitions >> p & 1))
                return false;
    return true;
}
