#include "delivery_world_int.h"

#include <string.h>

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
    if (world_is_in_group(w, worker))
        w->group.ghosts |= (uint8_t)(1u << worker);
    world_leave_group(w, worker);
    memset(k, 0, sizeof *k);
    return true;
}

static bool start(struct world *w, const struct world_limits *l, int worker)
{
    struct worker *k = &w->workers[worker];
    if (k->is_alive)
        return false;
    k->is_alive = 1;
    world_make_producer(w, worker);
    return l->is_coarse ? world_join(w, k, worker) : true;
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
        world_apply(w, a.worker);
        return true;
    case ACTION_TIME_OUT: return world_time_out(w, a.worker);
    case ACTION_KICK: return world_kick(w, a.worker);
    case ACTION_COMPLETE: return a.worker == 0 && world_complete(w, l, a.choice);
    case ACTION_CRASH: return crash(w, a.worker);
    case ACTION_START: return start(w, l, a.worker);
    case ACTION_NOTICE: return world_notice(w, l, k, a.worker);
    case ACTION_JOIN: return world_join(w, k, a.worker);
    case ACTION_ASSIGN: return world_assign(w, l, a.worker);
    case ACTION_RECEIVE: return world_receive(w, l, a.worker, a.choice);
    case ACTION_END: return world_reach_end(w, a.worker, a.choice);
    case ACTION_COMPUTE: return world_compute(k, a.choice);
    case ACTION_DELIVER: return world_deliver(w, l, a.worker, a.choice);
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

static const char *check_partition(const struct world *w, const struct world_limits *l, int p)
{
    for (int job = 0; job < l->jobs; job++) {
        if (w->answers[p][job] > 1)
            return "a job has two committed answers";
        if (world_is_settled(&w->committed[p], job) && w->answers[p][job] == 0)
            return "a job is lost: settled without an answer";
        if (!world_is_settled(&w->committed[p], job) && w->answers[p][job] > 0)
            return "an answer is committed and its job is not settled";
        for (int i = 0; i < WORLD_WORKERS; i++) {
            const uint8_t bit = (uint8_t)(1u << job);
            const struct marks *m = &w->databases[i][p];
            if ((m->published & bit) && w->answers[p][job] == 0)
                return "a row is marked as published that nobody can see";
            if (l->checks_marks && (m->published & bit) && !(w->answered_by[p][job] >> i & 1))
                return "a row is marked as published, and another worker's answer is visible";
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
    const char *what = world_found;
    for (int p = 0; p < l->partitions && !what; p++) {
        what = check_partition(w, l, p);
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
        for (int i = 0; i < WORLD_WORKERS; i++) {
            const struct marks *m = &w->databases[i][p];
            if (w->workers[i].held[p].is_owned && (m->stored & ~m->published & ~m->superseded))
                return "at rest: the partition's owner has an answer that it takes for "
                       "unpublished";
            for (int job = 0; job < l->jobs && l->checks_marks; job++)
                if ((m->superseded >> job & 1) && (w->answered_by[p][job] >> i & 1))
                    return "at rest: a visible answer is taken for another worker's";
        }
    }
    for (int i = 0; i < WORLD_WORKERS; i++)
        if (w->workers[i].n_entries > 0 || w->workers[i].place != PLACE_ASSIGNED)
            return "at rest: a worker is stuck";
    return NULL;
}

void world_forget_violation(void)
{
    world_found = NULL;
}
