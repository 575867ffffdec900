/*
 * The job queue's reading side: bytes in librdkafka -> struct kafka_record.
 *
 * One call of kafka_source_poll serves the group's duties (commits, pauses, lost positions),
 * then librdkafka, in slices of 100 ms, so that a settle from another thread is acted on soon
 * while the caller waits.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/limits.h"
#include "base/log.h"
#include "kafka_int.h"

enum {
    SLICE_MS = 100,
    OPEN_WAIT_MS = 10000,
    TOPIC_WAIT_US = 2000000,  /* a topic that was just made is not known everywhere */
    TOPIC_GONE_US = 15000000, /* and a broker that starts may not know all yet */
    STABLE_US = 3000000,      /* an empty assignment counts after that time */
    CLOSE_COMMIT_MS = 8000,
    CLOSE_LEAVE_US = 10000000,
};

static void on_error(rd_kafka_t *rk, int code, const char *reason, void *source)
{
    (void)rk;
    struct kafka_source *s = source;
    /* A fatal one also comes as a message, with its cause. */
    if (code != RD_KAFKA_RESP_ERR__FATAL)
        kafka_error_log_line(&s->error_log, code, reason);
}

static int check_topic(struct kafka_source *s, const char *brokers, struct err *e)
{
    TRY(kafka_reach(s->rk, &s->error_log, brokers, e));
    const int64_t began_us = clock_mono_us();
    for (;;) {
        int n;
        const rd_kafka_resp_err_t code =
            kafka_topic_look_up(s->rk, s->jobs_topic, OPEN_WAIT_MS, &n);
        if (code == RD_KAFKA_RESP_ERR_NO_ERROR && n > 0)
            return 0;
        if (code == RD_KAFKA_RESP_ERR__TRANSPORT || code == RD_KAFKA_RESP_ERR__TIMED_OUT)
            return ERR_SET_FLAGS(e, ERR_BROKER, ERR_RETRY, "no Kafka broker answers at %s",
                                 brokers);
        if (kafka_error_reaction(code) != KAFKA_IGNORE)
            return ERR_SET_FLAGS(e, ERR_BROKER, ERR_FATAL, "topic %s: %s", s->jobs_topic,
                                 rd_kafka_err2str(code));
        if (clock_mono_us() - began_us >= TOPIC_WAIT_US)
            /* that has no partitions is not there either */
            return code == RD_KAFKA_RESP_ERR_NO_ERROR || kafka_topic_is_unknown(code)
                       ? kafka_topic_refuse_unknown(s->jobs_topic, e)
                       : ERR_SET_FLAGS(e, ERR_BROKER, ERR_RETRY, "topic %s: %s", s->jobs_topic,
                                       rd_kafka_err2str(code));
        nanosleep(&(struct timespec){.tv_nsec = SLICE_MS * 1000000L}, NULL);
    }
}

static int subscribe(struct kafka_source *s, struct err *e)
{
    rd_kafka_topic_partition_list_t *topics = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(topics, s->jobs_topic, RD_KAFKA_PARTITION_UA);
    const rd_kafka_resp_err_t code = rd_kafka_subscribe(s->rk, topics);
    rd_kafka_topic_partition_list_destroy(topics);
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR)
        return 0;
    return ERR_SET(e, ERR_BROKER, "cannot subscribe to %s: %s", s->jobs_topic,
                   rd_kafka_err2str(code));
}

static int make_handle(struct kafka_source *s, const struct kafka_options *o, struct err *e)
{
    rd_kafka_conf_t *conf;
    TRY(kafka_conf_build(o, KAFKA_CONSUMER, &conf, e));
    rd_kafka_conf_set_opaque(conf, s);
    rd_kafka_conf_set_error_cb(conf, on_error);
    rd_kafka_conf_set_rebalance_cb(conf, kafka_group_rebalance);
    TRY(kafka_conf_open_consumer(conf, &s->rk, e));
    s->commits = rd_kafka_queue_new(s->rk);
    return 0;
}

static void source_free(struct kafka_source *s)
{
    if (s->commits)
        rd_kafka_queue_destroy(s->commits);
    if (s->rk)
        rd_kafka_destroy_flags(s->rk, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
    kafka_partitions_fini(&s->partitions);
    pthread_mutex_destroy(&s->lock);
    free(s->member);
    free(s->jobs_topic);
    free(s);
}

int kafka_source_open(const struct kafka_options *o, struct kafka_source **out, struct err *e)
{
    *out = NULL;
    if (!o->jobs_topic || !o->jobs_topic[0])
        return ERR_SET(e, ERR_CONFIG, "no topic to read jobs from is given (topic)");
    struct kafka_source *s = calloc(1, sizeof *s);
    if (!s)
        return ERR_SET(e, ERR_NOMEM, "no memory for a Kafka consumer");
    pthread_mutex_init(&s->lock, NULL);
    s->is_transactional = o->transactional_id != NULL;
    s->jobs_max = o->inflight_jobs_max;
    s->bytes_max = o->inflight_bytes_max;
    int code = 0;
    if (!(s->jobs_topic = strdup(o->jobs_topic)))
        code = ERR_SET(e, ERR_NOMEM, "no memory for a Kafka consumer");
    if (code == 0)
        code = make_handle(s, o, e);
    if (code == 0)
        code = check_topic(s, o->brokers, e);
    if (code == 0)
        code = subscribe(s, e);
    if (code != 0) {
        source_free(s);
        return code;
    }
    *out = s;
    return 0;
}

char *kafka_source_cluster(struct kafka_source *s)
{
    char *id = rd_kafka_clusterid(s->rk, OPEN_WAIT_MS);
    char *copy = id ? strdup(id) : NULL;
    rd_kafka_mem_free(s->rk, id);
    return copy;
}

/* While closing, everything comes as an event: also what was fetched and is not wanted now. */
static void serve_closing(struct kafka_source *s, rd_kafka_queue_t *events)
{
    rd_kafka_event_t *event = rd_kafka_queue_poll(events, SLICE_MS);
    if (!event)
        return;
    if (rd_kafka_event_type(event) == RD_KAFKA_EVENT_REBALANCE)
        kafka_group_rebalance(s->rk, rd_kafka_event_error(event),
                              rd_kafka_event_topic_partition_list(event), s);
    rd_kafka_event_destroy(event);
}

/* Leaves the group, so that its partitions go to another worker at once instead of after the
 * session's end. Bounded: the brokers may be away. */
static void leave_group(struct kafka_source *s)
{
    rd_kafka_queue_t *events = rd_kafka_queue_new(s->rk);
    rd_kafka_error_t *error = rd_kafka_consumer_close_queue(s->rk, events);
    const int64_t deadline_us = clock_mono_us() + CLOSE_LEAVE_US;
    while (!error && !rd_kafka_consumer_closed(s->rk) && clock_mono_us() < deadline_us)
        serve_closing(s, events);
    if (error)
        rd_kafka_error_destroy(error);
    else if (!rd_kafka_consumer_closed(s->rk))
        log_warn("Kafka: the group was not told that this worker leaves");
    rd_kafka_queue_destroy(events);
}

int kafka_source_close(struct kafka_source *s, struct err *e)
{
    if (!s)
        return 0;
    int code = 0;
    if (!s->is_broken) {
        const rd_kafka_resp_err_t outcome = kafka_group_commit_now(s, CLOSE_COMMIT_MS);
        if (outcome != RD_KAFKA_RESP_ERR_NO_ERROR && outcome != RD_KAFKA_RESP_ERR__NO_OFFSET)
            code = ERR_SET_FLAGS(e, ERR_BROKER, ERR_RETRY,
                                 "the last offsets were not committed (%s): the last jobs will "
                                 "come again",
                                 rd_kafka_err2str(outcome));
        s->is_broken = code != 0; /* do not wait a second time when partitions are revoked */
    }
    s->is_closing = true;
    CRASH_POINT("leave");
    if (s->to_assign)
        kafka_group_unassign(s);
    leave_group(s);
    CRASH_POINT("left");
    kafka_group_drop_held(s);
    source_free(s);
    return code;
}

static int hold(struct kafka_source *s, struct kafka_record *r, struct err *e)
{
    struct kafka_held *held = calloc(1, sizeof *held);
    if (!held) {
        kafka_record_free(r);
        return ERR_SET(e, ERR_NOMEM, "no memory to hold a record");
    }
    held->record = r;
    struct kafka_held **end = &s->held;
    while (*end)
        end = &(*end)->next;
    *end = held;
    return 0;
}

/* A poll ends when there is one, so more than a few never wait. */
static void note_lost(struct kafka_source *s, int32_t partition, int64_t first, int64_t last)
{
    if (s->n_lost < sizeof s->lost / sizeof s->lost[0])
        s->lost[s->n_lost++] =
            (struct kafka_lost){.partition = partition, .first = first, .last = last};
}

bool kafka_source_next_lost(struct kafka_source *s, struct kafka_lost *out)
{
    if (s->n_lost == 0)
        return false;
    *out = s->lost[--s->n_lost];
    return true;
}

/*
 * librdkafka begins at the oldest record when the position is not in the log. Either retention
 * has deleted jobs before they were read, and somebody should know; or the log ends before
 * our position, because the topic was deleted and made anew (or lost its end): then what is
 * known of the old log says nothing about the new one. Locks: taken by the caller.
 */
static void notice_reset(struct kafka_source *s, struct kafka_partition *p, int64_t offset)
{
    const int64_t next = p->tracker.next;
    int64_t low, high;
    if (next < 0 || offset == next ||
        rd_kafka_get_watermark_offsets(s->rk, p->topic, p->id, &low, &high) != 0 || high < 0)
        return;
    if (next > high && offset < next) {
        log_error("Kafka: %s [%d] ends at %lld but the group was at %lld: the topic was made "
                  "anew; reading it from %lld",
                  p->topic, p->id, (long long)high, (long long)next, (long long)offset);
        /* A job of the old topic that is still in work would settle its namesake. */
        if (p->tracker.n_unsettled > 0) {
            s->is_broken = true;
            ERR_SET_FLAGS(&s->failure, ERR_STATE, ERR_FATAL,
                          "the topic %s was made anew while its jobs were in work: start again",
                          p->topic);
            return;
        }
        offset_tracker_restart(&p->tracker, offset);
        p->committed = -1;
    } else if (low > next) {
        log_error(
            "Kafka: %s [%d]: offsets %lld to %lld were deleted before they were read: up to "
            "%lld jobs are lost to the topic's retention",
            p->topic, p->id, (long long)next, (long long)low - 1, (long long)(low - next));
        note_lost(s, p->id, next, low - 1);
    }
}

enum admission { ADMIT, HOLD, DROP };

/* Enters the record into its partition's tracker. Dropped: a partition that is not ours any
 * more, or an offset that is in work already. */
static enum admission admit(struct kafka_source *s, struct kafka_record *r, bool is_held)
{
    enum admission admission = DROP;
    const size_t bytes = job_record_bytes(&r->record);
    pthread_mutex_lock(&s->lock);
    struct kafka_partition *p = kafka_partitions_find(&s->partitions, r->topic, r->partition);
    if (p && p->is_owned)
        notice_reset(s, p, r->offset);
    if (p && p->is_owned && !s->is_broken) {
        /* behind a held record there is no overtaking */
        if ((p->is_held && !is_held) || !offset_tracker_has_room(&p->tracker, r->offset)) {
            admission = HOLD;
            p->is_held = true;
        } else if (offset_tracker_receive(&p->tracker, r->offset,
                                          bytes < UINT32_MAX ? (uint32_t)bytes : UINT32_MAX)) {
            admission = ADMIT;
            r->lease = p->lease;
            s->n_received++;
        }
        p->is_at_end = false;
    }
    pthread_mutex_unlock(&s->lock);
    return admission;
}

/* Whether more records of this partition are held. */
static void update_held(struct kafka_source *s, const struct kafka_record *r)
{
    bool is_held = false;
    for (const struct kafka_held *h = s->held; h; h = h->next)
        is_held |= h->record->partition == r->partition && !strcmp(h->record->topic, r->topic);
    pthread_mutex_lock(&s->lock);
    struct kafka_partition *p = kafka_partitions_find(&s->partitions, r->topic, r->partition);
    if (p)
        p->is_held = is_held;
    pthread_mutex_unlock(&s->lock);
}

/* The first held record of a partition that has room now; NULL: none. */
static struct kafka_record *take_held(struct kafka_source *s)
{
    for (struct kafka_held **link = &s->held; *link; link = &(*link)->next) {
        struct kafka_held *held = *link;
        const enum admission admission = admit(s, held->record, true);
        if (admission == HOLD)
            continue;
        *link = held->next;
        struct kafka_record *r = held->record;
        free(held);
        update_held(s, r);
        if (admission == ADMIT)
            return r;
        kafka_record_free(r);
        return NULL;
    }
    return NULL;
}

static void reach_end(struct kafka_source *s, const rd_kafka_message_t *m)
{
    pthread_mutex_lock(&s->lock);
    struct kafka_partition *p =
        kafka_partitions_find(&s->partitions, rd_kafka_topic_name(m->rkt), m->partition);
    if (p && p->is_owned && !p->is_held) {
        notice_reset(s, p, m->offset);
        offset_tracker_skip_to(&p->tracker, m->offset);
        p->is_at_end = true;
    }
    pthread_mutex_unlock(&s->lock);
}

static int fail_for_good(struct kafka_source *s, const rd_kafka_message_t *m, struct err *e)
{
    char cause[256];
    const char *text = rd_kafka_message_errstr(m);
    if (rd_kafka_fatal_error(s->rk, cause, sizeof cause) != RD_KAFKA_RESP_ERR_NO_ERROR)
        text = cause;
    s->is_broken = true;
    ERR_SET_FLAGS(&s->failure, ERR_BROKER, ERR_FATAL, "Kafka: %s", text ? text : "fatal error");
    *e = s->failure;
    return e->code;
}

static int serve_event(struct kafka_source *s, const rd_kafka_message_t *m, struct err *e)
{
    switch ((int)m->err) {
    case RD_KAFKA_RESP_ERR__PARTITION_EOF: reach_end(s, m); return 0;
    case RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART:
    case RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC:
    case RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION:
        if (s->unknown_topic_us == 0)
            s->unknown_topic_us = clock_mono_us();
        break;
    default: break;
    }
    if (kafka_error_reaction(m->err) != KAFKA_IGNORE)
        return fail_for_good(s, m, e);
    kafka_error_log_line(&s->error_log, m->err, rd_kafka_message_errstr(m));
    return 0;
}

static int serve_message(struct kafka_source *s, const rd_kafka_message_t *m,
                         struct kafka_record **out, struct err *e)
{
    if (m->err != RD_KAFKA_RESP_ERR_NO_ERROR)
        return serve_event(s, m, e);
    s->unknown_topic_us = 0;
    struct kafka_record *r = kafka_record_copy(m);
    if (!r)
        return ERR_SET_FLAGS(e, ERR_NOMEM, ERR_FATAL, "no memory for a record of %zu bytes",
                             m->len);
    switch (admit(s, r, false)) {
    case ADMIT: *out = r; return 0;
    case HOLD: return hold(s, r, e);
    case DROP: break;
    }
    kafka_record_free(r);
    return 0;
}

static int serve_once(struct kafka_source *s, int wait_ms, struct kafka_record **out,
                      struct err *e)
{
    kafka_group_serve_assignment(s);
    kafka_group_serve_commits(s);
    kafka_group_apply_flow(s);
    if (s->is_broken) {
        *e = s->failure;
        return e->code;
    }
    if (s->unknown_topic_us != 0 && clock_mono_us() - s->unknown_topic_us > TOPIC_GONE_US)
        return kafka_topic_refuse_unknown(s->jobs_topic, e);
    if (!s->is_full && (*out = take_held(s)) != NULL)
        return 0;
    rd_kafka_message_t *m = rd_kafka_consumer_poll(s->rk, wait_ms);
    if (!m)
        return 0;
    const int code = serve_message(s, m, out, e);
    rd_kafka_message_destroy(m);
    return code;
}

int kafka_source_poll(struct kafka_source *s, int wait_ms, struct kafka_record **out,
                      struct err *e)
{
    *out = NULL;
    struct err local = {0};
    const int64_t deadline_us = clock_mono_us() + (int64_t)wait_ms * 1000;
    for (;;) {
        const int64_t left_ms = (deadline_us - clock_mono_us()) / 1000;
        const int slice_ms = left_ms < 0 ? 0 : left_ms < SLICE_MS ? (int)left_ms : SLICE_MS;
        const int code = serve_once(s, slice_ms, out, &local);
        if (code != 0) {
            /* A record that was read and not handed out must never count as done. */
            if (!s->is_broken && code == ERR_NOMEM) {
                s->is_broken = true;
                s->failure = local;
            }
            return err_set(e, code, local.flags, local.file, local.line, "%s", local.text);
        }
        if (*out || s->n_lost > 0 || clock_mono_us() >= deadline_us)
            return 0;
    }
}

int kafka_source_tend(struct kafka_source *s, int wait_ms, struct err *e)
{
    s->is_tended = true;
    struct kafka_record *late;
    const int code = kafka_source_poll(s, wait_ms, &late, e);
    kafka_record_free(late); /* unsettled, so whoever reads on gets it */
    return code;
}

void kafka_source_on_committed(struct kafka_source *s,
                               void (*callback)(void *ctx, const char *topic, int32_t partition,
                                                const struct offset_bits *settled),
                               void *ctx)
{
    s->on_committed = callback;
    s->on_committed_ctx = ctx;
}

void kafka_source_settle(struct kafka_source *s, const char *topic, int32_t partition,
                         int64_t offset)
{
    pthread_mutex_lock(&s->lock);
    struct kafka_partition *p = kafka_partitions_find(&s->partitions, topic, partition);
    if (p && offset_tracker_settle(&p->tracker, offset)) {
        s->n_settled++;
        s->n_settled_uncommitted++;
        p->is_changed = true;
    }
    pthread_mutex_unlock(&s->lock);
}

bool kafka_source_holds(struct kafka_source *s, const char *topic, int32_t partition,
                        uint64_t lease)
{
    pthread_mutex_lock(&s->lock);
    const struct kafka_partition *p = kafka_partitions_find(&s->partitions, topic, partition);
    const bool holds = p && p->lease == lease;
    pthread_mutex_unlock(&s->lock);
    return holds;
}

bool kafka_source_is_drained(struct kafka_source *s)
{
    pthread_mutex_lock(&s->lock);
    const bool is_empty = kafka_partitions_count_owned(&s->partitions) == 0;
    const bool are_drained = kafka_partitions_are_drained(&s->partitions);
    pthread_mutex_unlock(&s->lock);
    if (!s->is_assigned || s->held || !are_drained)
        return false;
    return !is_empty || clock_mono_us() - s->assigned_us > STABLE_US;
}

void kafka_source_progress(struct kafka_source *s, struct kafka_progress *out)
{
    *out = (struct kafka_progress){.behind_known = true};
    pthread_mutex_lock(&s->lock);
    out->received = s->n_received;
    out->settled = s->n_settled;
    out->is_paused = s->is_full;
    kafka_partitions_sum_unsettled(&s->partitions, &out->inflight_jobs, &out->inflight_bytes);
    for (size_t i = 0; i < s->partitions.n; i++) {
        const struct kafka_partition *p = s->partitions.items[i];
        if (!p->is_owned)
            continue;
        out->partitions++;
        int64_t low = -1, high = -1;
        rd_kafka_get_watermark_offsets(s->rk, p->topic, p->id, &low, &high);
        if (high < 0) /* nothing was fetched yet */
            out->behind_known = false;
        else if (high > p->tracker.next)
            out->behind += (uint64_t)(high - (p->tracker.next < 0 ? low : p->tracker.next));
    }
    pthread_mutex_unlock(&s->lock);
}
