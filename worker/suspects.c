#include "suspects.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/log.h"

/* ------------------------------------------------------------------ counting */

static struct store_crash crash_of(const struct running_last *last,
                                   const struct running_name *name)
{
    const bool is_strike = last->crashed && last->crashed_in == name->hand;
    struct store_crash crash = {.topic = name->topic,
                                .partition = name->partition,
                                .offset = name->offset,
                                .strikes = is_strike,
                                .deaths = !is_strike};
    memcpy(crash.payload_sha256, name->payload_sha256, sizeof crash.payload_sha256);
    return crash;
}

static int count_last(const struct running_last *last, const char *db_path, struct store *store,
                      struct err *e)
{
    if (last->n == 0 || !GUARD("strikes"))
        return 0;
    struct store_crash *crashes = calloc(last->n, sizeof crashes[0]);
    if (!crashes)
        return ERR_SET(e, ERR_NOMEM, "no memory for the jobs of a crash");
    for (size_t i = 0; i < last->n; i++)
        crashes[i] = crash_of(last, &last->names[i]);
    const int rc = store_add_crashes(store, crashes, last->n, e);
    free(crashes);
    if (rc == 0)
        log_warn("the worker that had %s before (pid %lld) %s with %zu jobs in its hands",
                 db_path, (long long)last->pid, last->crashed ? "crashed" : "was killed",
                 last->n);
    return rc;
}

/* ------------------------------------------------------------------ loading */

static int compare(const void *a, const void *b)
{
    const struct store_crash *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    if (x->partition != y->partition)
        return x->partition < y->partition ? -1 : 1;
    const int topics = strcmp(x->topic, y->topic);
    return topics ? topics : strcmp(x->payload_sha256, y->payload_sha256);
}

static int load_one(void *ctx, const struct store_crash *crash, struct err *e)
{
    struct suspects *s = ctx;
    if (s->n == SUSPECTS_MAX)
        return 0;
    if (s->n == s->capacity) {
        const size_t capacity = s->capacity ? 2 * s->capacity : 64;
        struct store_crash *items = realloc(s->items, capacity * sizeof items[0]);
        if (!items)
            return ERR_SET(e, ERR_NOMEM, "no memory for %zu suspected jobs", capacity);
        s->items = items;
        s->capacity = capacity;
    }
    s->items[s->n] = *crash;
    s->items[s->n].topic = strdup(crash->topic);
    if (!s->items[s->n].topic)
        return ERR_SET(e, ERR_NOMEM, "no memory for a suspected job");
    s->n++;
    return 0;
}

int suspects_open(struct suspects *s, const char *db_path, struct store *store, struct err *e)
{
    *s = (struct suspects){0};
    int rc = running_read(db_path, &s->last, e);
    if (rc == 0)
        rc = count_last(&s->last, db_path, store, e);
    if (rc == 0) {
        running_remove(db_path);
        rc = store_each_crash(store, load_one, s, e);
    }
    if (rc != 0)
        suspects_fini(s);
    else if (s->n > 0)
        qsort(s->items, s->n, sizeof s->items[0], compare);
    return rc;
}

void suspects_fini(struct suspects *s)
{
    for (size_t i = 0; i < s->n; i++)
        free(s->items[i].topic);
    free(s->items);
    running_last_fini(&s->last);
    *s = (struct suspects){0};
}

/* ------------------------------------------------------------------ judging */

/* The last crash was in the hand that reads jobs, on this one. */
static bool was_being_read(const struct suspects *s, const struct store_crash *key)
{
    if (!s->last.crashed || s->last.crashed_in != RUNNING_INTAKE)
        return false;
    for (size_t i = 0; i < s->last.n; i++) {
        const struct running_name *name = &s->last.names[i];
        if (name->hand == RUNNING_INTAKE && name->offset == key->offset &&
            name->partition == key->partition && strcmp(name->topic, key->topic) == 0 &&
            strcmp(name->payload_sha256, key->payload_sha256) == 0)
            return true;
    }
    return false;
}

struct suspicion suspects_judge(const struct suspects *s, const struct job_source *source,
                                const char *payload_sha256)
{
    struct suspicion none = {0};
    if (!s || s->n == 0)
        return none;
    struct store_crash key = {
        .topic = source->topic, .partition = source->partition, .offset = source->offset};
    memcpy(key.payload_sha256, payload_sha256, sizeof key.payload_sha256);
    const struct store_crash *found =
        bsearch(&key, s->items, s->n, sizeof s->items[0], compare);
    if (!found)
        return none;
    struct suspicion out = {.strikes = found->strikes, .deaths = found->deaths};
    if (out.strikes >= POISON_STRIKES || out.deaths >= POISON_DEATHS)
        /* More strikes than it takes: even naming it in its answer was too much. */
        out.verdict = was_being_read(s, &key) || out.strikes > POISON_STRIKES ||
                              out.deaths > POISON_DEATHS
                          ? VERDICT_UNREADABLE
                          : VERDICT_POISON;
    else if (out.strikes >= SUSPECT_STRIKES || out.deaths >= SUSPECT_DEATHS)
        out.verdict = VERDICT_ALONE;
    return out;
}

void suspects_refuse(struct job *job, const struct suspicion *suspicion)
{
    job_fail(job, 500, "poison_crash", "",
             "the worker or its device crashed %lld times while it worked on this job, and it "
             "was killed %lld times; the job is not tried again",
             (long long)suspicion->strikes, (long long)suspicion->deaths);
    job->attempts = suspicion->strikes + suspicion->deaths - 1; /* but for the last */
}
