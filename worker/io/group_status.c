#include "group_status.h"

#include <stdlib.h>
#include <string.h>

#include "dlq.h"
#include "kafka_admin_int.h"

struct look {
    const struct kafka_options *o;
    struct kafka_admin *reader;
    struct group_status *status;
    struct offset_bits *committed; /* [n_partitions] */
};

/* ------------------------------------------------------------------ members */

static char *copy_text(const char *text)
{
    return strdup(text ? text : "");
}

static int read_member(struct look *l, const rd_kafka_MemberDescription_t *found, int index,
                       struct err *e)
{
    struct member_status *m = &l->status->members[index];
    m->id = copy_text(rd_kafka_MemberDescription_consumer_id(found));
    m->client = copy_text(rd_kafka_MemberDescription_client_id(found));
    m->host = copy_text(rd_kafka_MemberDescription_host(found));
    const char *instance = rd_kafka_MemberDescription_group_instance_id(found);
    m->instance = instance ? strdup(instance) : NULL;
    if (!m->id || !m->client || !m->host || (instance && !m->instance))
        return ERR_SET(e, ERR_NOMEM, "no memory for a group's members");
    const rd_kafka_MemberAssignment_t *given = rd_kafka_MemberDescription_assignment(found);
    const rd_kafka_topic_partition_list_t *list =
        given ? rd_kafka_MemberAssignment_partitions(given) : NULL;
    for (int i = 0; list && i < list->cnt; i++) {
        const int32_t p = list->elems[i].partition;
        if (p >= 0 && (size_t)p < l->status->n_partitions &&
            strcmp(list->elems[i].topic, l->o->jobs_topic) == 0)
            l->status->partitions[p].member = index;
    }
    return 0;
}

static int read_group(struct look *l, const rd_kafka_ConsumerGroupDescription_t *found,
                      struct err *e)
{
    struct group_status *s = l->status;
    const rd_kafka_error_t *error = rd_kafka_ConsumerGroupDescription_error(found);
    s->state = strdup(error ? "Dead"
                            : rd_kafka_consumer_group_state_name(
                                  rd_kafka_ConsumerGroupDescription_state(found)));
    const size_t n = error ? 0 : rd_kafka_ConsumerGroupDescription_member_count(found);
    s->members = calloc(n + 1, sizeof s->members[0]);
    if (!s->state || !s->members)
        return ERR_SET(e, ERR_NOMEM, "no memory for a group's members");
    s->n_members = n;
    for (size_t i = 0; i < n; i++)
        TRY(read_member(l, rd_kafka_ConsumerGroupDescription_member(found, i), (int)i, e));
    s->is_known = n > 0;
    return 0;
}

static int look_at_group(struct look *l, struct err *e)
{
    rd_kafka_event_t *event;
    const rd_kafka_ConsumerGroupDescription_t *found;
    TRY(kafka_admin_describe(l->reader, l->o->group, &event, &found, e));
    const int rc = read_group(l, found, e);
    rd_kafka_event_destroy(event);
    return rc;
}

/* ------------------------------------------------------------------ partitions */

/* Offsets of [from, to) that are settled above the committed one. */
static uint64_t count_settled(const struct offset_bits *b, int64_t from, int64_t to)
{
    uint64_t n = 0;
    for (size_t i = 0; i < b->n_bits; i++) {
        const int64_t offset = b->base + (int64_t)i;
        n += offset >= from && offset < to && (b->bits[i / 8] >> i % 8 & 1);
    }
    return n;
}

static void count(struct partition_status *p, const struct offset_bits *committed)
{
    const int64_t base = committed->base;
    const int64_t from = base > p->begin ? base : p->begin;
    p->committed = base;
    p->settled_above = base >= 0 ? count_settled(committed, base, p->end) : 0;
    p->lag_offsets = from < p->end ? (uint64_t)(p->end - from) : 0;
    p->lag_jobs = p->lag_offsets - count_settled(committed, from, p->end);
    if (base >= 0 && base < p->begin)
        p->lost = (uint64_t)(p->begin - base) - count_settled(committed, base, p->begin);
}

/* The first record that is not settled. When there is none, what looked like jobs was none. */
static int look_at_oldest(struct look *l, int32_t partition, struct err *e)
{
    struct partition_status *p = &l->status->partitions[partition];
    const struct offset_bits *committed = &l->committed[partition];
    const int64_t from = p->committed > p->begin ? p->committed : p->begin;
    TRY(kafka_admin_seek(l->reader, l->o->jobs_topic, partition, from, p->end, e));
    for (;;) {
        rd_kafka_message_t *m;
        TRY(kafka_admin_next(l->reader, &m, e));
        if (!m) {
            p->lag_jobs = 0;
            return 0;
        }
        const bool is_settled = offset_bits_has(committed, m->offset);
        if (!is_settled)
            p->oldest_wall_us = kafka_record_timestamp_us(m);
        rd_kafka_message_destroy(m);
        if (!is_settled)
            return 0;
    }
}

static int look_at_partition(struct look *l, int32_t partition, struct err *e)
{
    struct group_status *s = l->status;
    struct partition_status *p = &s->partitions[partition];
    struct kafka_range range;
    TRY(kafka_admin_range(l->reader, l->o->jobs_topic, partition, &range, e));
    p->begin = range.begin;
    p->end = range.end;
    count(p, &l->committed[partition]);
    if (p->lag_jobs > 0)
        TRY(look_at_oldest(l, partition, e));
    s->records += (uint64_t)(p->end - p->begin);
    s->lag_offsets += p->lag_offsets;
    s->lag_jobs += p->lag_jobs;
    s->settled_above += p->settled_above;
    s->lost += p->lost;
    s->is_known |= p->committed >= 0;
    if (p->oldest_wall_us > 0 &&
        (s->oldest_wall_us == 0 || p->oldest_wall_us < s->oldest_wall_us))
        s->oldest_wall_us = p->oldest_wall_us;
    return 0;
}

static int look_at_partitions(struct look *l, struct err *e)
{
    const int n = (int)l->status->n_partitions;
    TRY(kafka_admin_committed(l->reader, l->o->group, l->o->jobs_topic, n, false, l->committed,
                              e));
    for (int32_t p = 0; p < n; p++)
        TRY(look_at_partition(l, p, e));
    return 0;
}

/* ------------------------------------------------------------------ other topics */

static int look_at_topic(struct look *l, const char *topic, struct topic_status *out,
                         struct err *e)
{
    TRY(kafka_admin_count_partitions(l->reader, topic, &out->n_partitions, e));
    for (int32_t p = 0; p < out->n_partitions; p++) {
        struct kafka_range range;
        TRY(kafka_admin_range(l->reader, topic, p, &range, e));
        out->records_max += (uint64_t)(range.end - range.begin);
    }
    return 0;
}

static int count_open_letters(struct look *l, const char *topic, struct offset_bits *noted,
                              struct err *e)
{
    const int n = l->status->dead_letters.n_partitions;
    char *group = dlq_notes_group(l->o->group);
    if (!group)
        return ERR_SET(e, ERR_NOMEM, "no memory for a group's name");
    const int rc = kafka_admin_committed(l->reader, group, topic, n, false, noted, e);
    free(group);
    TRY(rc);
    for (int32_t i = 0; i < n; i++) {
        struct kafka_range range;
        struct partition_status p = {0};
        TRY(kafka_admin_range(l->reader, topic, i, &range, e));
        p.begin = range.begin;
        p.end = range.end;
        count(&p, &noted[i]);
        l->status->open_letters_max += p.lag_jobs;
    }
    return 0;
}

static int look_at_dead_letters(struct look *l, const char *topic, struct err *e)
{
    TRY(look_at_topic(l, topic, &l->status->dead_letters, e));
    const int n = l->status->dead_letters.n_partitions;
    if (n == 0)
        return 0;
    struct offset_bits *noted = calloc((size_t)n, sizeof noted[0]);
    if (!noted)
        return ERR_SET(e, ERR_NOMEM, "no memory for the dead letters' offsets");
    const int rc = count_open_letters(l, topic, noted, e);
    free(noted);
    return rc;
}

/* ------------------------------------------------------------------ all of it */

static int make_partitions(struct look *l, struct err *e)
{
    int n;
    TRY(kafka_admin_count_partitions(l->reader, l->o->jobs_topic, &n, e));
    if (n == 0)
        return kafka_topic_refuse_unknown(l->o->jobs_topic, e);
    l->committed = calloc((size_t)n, sizeof l->committed[0]);
    l->status->partitions = calloc((size_t)n, sizeof l->status->partitions[0]);
    if (!l->committed || !l->status->partitions)
        return ERR_SET(e, ERR_NOMEM, "no memory for %d partitions", n);
    l->status->n_partitions = (size_t)n;
    for (int i = 0; i < n; i++)
        l->status->partitions[i].member = -1;
    return 0;
}

static int look_at_all(struct look *l, const char *dead_letters, struct err *e)
{
    TRY(kafka_admin_open(l->o, &l->reader, e));
    TRY(make_partitions(l, e));
    TRY(look_at_group(l, e));
    TRY(look_at_partitions(l, e));
    TRY(look_at_topic(l, l->o->results_topic, &l->status->results, e));
    return dead_letters ? look_at_dead_letters(l, dead_letters, e) : 0;
}

int group_status_read(const struct kafka_options *o, const char *dead_letters,
                      struct group_status **out, struct err *e)
{
    *out = NULL;
    struct look look = {.o = o, .status = calloc(1, sizeof *look.status)};
    if (!look.status)
        return ERR_SET(e, ERR_NOMEM, "no memory for a group's status");
    const int rc = look_at_all(&look, dead_letters, e);
    kafka_admin_close(look.reader);
    free(look.committed);
    if (rc == 0)
        *out = look.status;
    else
        group_status_free(look.status);
    return rc;
}

void group_status_free(struct group_status *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n_members; i++) {
        free(s->members[i].id);
        free(s->members[i].client);
        free(s->members[i].host);
        free(s->members[i].instance);
    }
    free(s->members);
    free(s->partitions);
    free(s->state);
    free(s);
}
