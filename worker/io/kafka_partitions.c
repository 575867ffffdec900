#include "kafka_partitions.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/limits.h"

struct kafka_partition *kafka_partitions_find(const struct kafka_partitions *ps,
                                              const char *topic, int32_t id)
{
    for (size_t i = 0; i < ps->n; i++)
        if (ps->items[i]->id == id && strcmp(ps->items[i]->topic, topic) == 0)
            return ps->items[i];
    return NULL;
}

static void partition_free(struct kafka_partition *p)
{
    free(p->topic);
    offset_tracker_fini(&p->tracker);
    free(p);
}

static int reserve_one(struct kafka_partitions *ps, struct err *e)
{
    if (ps->n < ps->capacity)
        return 0;
    const size_t capacity = ps->capacity ? 2 * ps->capacity : 16;
    struct kafka_partition **items =
        realloc(ps->items, capacity * sizeof(struct kafka_partition *));
    if (!items)
        return ERR_SET(e, ERR_NOMEM, "no memory for %zu partitions", capacity);
    ps->items = items;
    ps->capacity = capacity;
    return 0;
}

static int add(struct kafka_partitions *ps, const char *topic, int32_t id, int64_t start,
               struct kafka_partition **out, struct err *e)
{
    TRY(reserve_one(ps, e));
    struct kafka_partition *p = calloc(1, sizeof *p);
    if (!p || !(p->topic = strdup(topic))) {
        free(p);
        return ERR_SET(e, ERR_NOMEM, "no memory for partition %d of %s", id, topic);
    }
    const int code = offset_tracker_init(&p->tracker, start, INFLIGHT_SPAN_MAX, e);
    if (code != 0) {
        partition_free(p);
        return code;
    }
    p->id = id;
    p->lease = ++ps->leases;
    p->committed = -1;
    ps->items[ps->n++] = p;
    *out = p;
    return 0;
}

int kafka_partitions_assign(struct kafka_partitions *ps, const char *topic, int32_t id,
                            const struct offset_bits *committed, int64_t *start, struct err *e)
{
    struct kafka_partition *p = kafka_partitions_find(ps, topic, id);
    if (!p)
        TRY(add(ps, topic, id, committed->base, &p, e));
    if (committed->base >= 0 && GUARD("bitmap"))
        offset_tracker_settle_known(&p->tracker, committed);
    if (committed->base > p->committed || committed->base < 0)
        p->committed = committed->base;
    p->is_owned = true;
    p->is_paused = false; /* pauses end when partitions are taken away */
    p->is_held = false;
    p->is_at_end = false;
    *start = p->tracker.next;
    return 0;
}

void kafka_partitions_revoke_all(struct kafka_partitions *ps)
{
    for (size_t i = 0; i < ps->n; i++)
        ps->items[i]->is_owned = false;
}

void kafka_partitions_drop_revoked(struct kafka_partitions *ps)
{
    size_t kept = 0;
    for (size_t i = 0; i < ps->n; i++) {
        if (ps->items[i]->is_owned)
            ps->items[kept++] = ps->items[i];
        else
            partition_free(ps->items[i]);
    }
    ps->n = kept;
}

size_t kafka_partitions_text_max(const struct kafka_partitions *ps)
{
    return ps->are_texts_limited ? ps->text_max : OFFSET_METADATA_MAX;
}

size_t kafka_partitions_count_owned(const struct kafka_partitions *ps)
{
    size_t n = 0;
    for (size_t i = 0; i < ps->n; i++)
        n += ps->items[i]->is_owned;
    return n;
}

void kafka_partitions_sum_unsettled(const struct kafka_partitions *ps, size_t *jobs,
                                    uint64_t *bytes)
{
    *jobs = 0;
    *bytes = 0;
    for (size_t i = 0; i < ps->n; i++) {
        *jobs += ps->items[i]->tracker.n_unsettled;
        *bytes += ps->items[i]->tracker.weight_unsettled;
    }
}

bool kafka_partition_is_commit_due(const struct kafka_partition *p)
{
    return p->is_owned && p->tracker.watermark >= 0 &&
           (p->is_changed || p->tracker.watermark > p->committed);
}

bool kafka_partitions_are_drained(const struct kafka_partitions *ps)
{
    for (size_t i = 0; i < ps->n; i++) {
        const struct kafka_partition *p = ps->items[i];
        if (p->is_owned && (!p->is_at_end || p->is_held || p->tracker.n_unsettled > 0))
            return false;
    }
    return true;
}

void kafka_partitions_fini(struct kafka_partitions *ps)
{
    kafka_partitions_revoke_all(ps);
    kafka_partitions_drop_revoked(ps);
    free(ps->items);
    *ps = (struct kafka_partitions){0};
}
