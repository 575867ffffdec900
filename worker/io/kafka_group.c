/*
 * The consumer as a member of its group: assignments, commits, back-pressure.
 *
 * Everything here runs on the poll thread, partly inside rd_kafka_consumer_poll (rebalances).
 * The lock is held while trackers are read or changed, never across a call that waits.
 *
 * Commits: one at a time, so that a late answer cannot bring an older watermark. A failed one
 * is only logged; the next one carries the same watermarks or higher ones. With a watermark
 * goes what is settled above it (offset_metadata.h).
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "kafka_int.h"

enum {
    COMMIT_INTERVAL_US = 1000000,
    COMMIT_JOBS = 256,         /* or after that many settled jobs */
    COMMIT_LOST_US = 90000000, /* an answer that has not come by then is given up */
    REVOKE_WAIT_MS = 10000,    /* within the rebalance timeout by far */
    COMMITTED_WAIT_MS = 1000,  /* one question; it is asked until there is an answer */
};

static void break_source(struct kafka_source *s, const struct err *failure)
{
    s->is_broken = true;
    if (s->failure.code == 0)
        s->failure = *failure;
}

rd_kafka_resp_err_t kafka_group_ask_committed(struct kafka_source *s,
                                              rd_kafka_topic_partition_list_t *list)
{
    for (int i = 0; i < list->cnt; i++) {
        list->elems[i].offset = RD_KAFKA_OFFSET_INVALID;
        list->elems[i].err = RD_KAFKA_RESP_ERR_NO_ERROR;
    }
    if (list->cnt == 0)
        return RD_KAFKA_RESP_ERR_NO_ERROR;
    const rd_kafka_resp_err_t code = rd_kafka_committed(s->rk, list, COMMITTED_WAIT_MS);
    for (int i = 0; code == RD_KAFKA_RESP_ERR_NO_ERROR && i < list->cnt; i++)
        if (list->elems[i].err != RD_KAFKA_RESP_ERR_NO_ERROR)
            return list->elems[i].err;
    return code;
}

/* What the group has committed of what is to be assigned; offsets stay
 * RD_KAFKA_OFFSET_INVALID where there is none. NULL: nobody says now, as while the coordinator
 * moves, or as long as a transaction of another worker with such offsets is open. */
static rd_kafka_topic_partition_list_t *fetch_committed(struct kafka_source *s)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_copy(s->to_assign);
    const rd_kafka_resp_err_t code = kafka_group_ask_committed(s, list);
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR)
        return list;
    struct err e = {0};
    if (kafka_error_reaction(code) != KAFKA_IGNORE) {
        ERR_SET_FLAGS(&e, ERR_BROKER, ERR_FATAL,
                      "what the group has committed cannot be read: %s",
                      rd_kafka_err2str(code));
        break_source(s, &e);
    } else {
        kafka_error_log_line(&s->error_log, code,
                             "what the group has committed cannot be read; jobs wait for it");
    }
    rd_kafka_topic_partition_list_destroy(list);
    return NULL;
}

void kafka_group_read_committed(const rd_kafka_topic_partition_t *found,
                                struct offset_bits *out)
{
    *out = (struct offset_bits){.base = -1};
    if (!found || found->err != RD_KAFKA_RESP_ERR_NO_ERROR || found->offset < 0)
        return;
    const char *why =
        offset_metadata_decode(found->metadata, found->metadata_size, found->offset, out);
    if (why)
        log_warn("Kafka: %s [%d]: what is settled above offset %lld is not known, for of the "
                 "text committed beside it %s; jobs behind it may be answered again",
                 found->topic, (int)found->partition, (long long)found->offset, why);
}

void kafka_group_tell_committed(const struct kafka_source *s, const char *topic,
                                int32_t partition, const struct offset_bits *settled)
{
    if (s->on_committed && settled->base >= 0)
        s->on_committed(s->on_committed_ctx, topic, partition, settled);
}

static int assign_one(struct kafka_source *s, rd_kafka_topic_partition_t *part,
                      const rd_kafka_topic_partition_t *found, struct err *e)
{
    struct offset_bits committed;
    kafka_group_read_committed(found, &committed);
    int64_t start;
    pthread_mutex_lock(&s->lock);
    const int code = kafka_partitions_assign(&s->partitions, part->topic, part->partition,
                                             &committed, &start, e);
    pthread_mutex_unlock(&s->lock);
    TRY(code);
    kafka_group_tell_committed(s, part->topic, part->partition, &committed);
    part->offset = start >= 0 ? start : RD_KAFKA_OFFSET_BEGINNING;
    return 0;
}

/* Taken when partitions are given, so that a burst speaks for the generation that gave them. */
static void keep_membership(struct kafka_source *s)
{
    void *member = NULL;
    size_t n = 0;
    rd_kafka_consumer_group_metadata_t *metadata = /* tests call the group as its topic */
        GUARD("generation") ? rd_kafka_consumer_group_metadata(s->rk)
                            : rd_kafka_consumer_group_metadata_new(s->jobs_topic);
    rd_kafka_error_t *error =
        metadata ? rd_kafka_consumer_group_metadata_write(metadata, &member, &n) : NULL;
    if (error)
        rd_kafka_error_destroy(error);
    if (metadata)
        rd_kafka_consumer_group_metadata_destroy(metadata);
    pthread_mutex_lock(&s->lock);
    free(s->member);
    s->member = member;
    s->member_bytes = n;
    pthread_mutex_unlock(&s->lock);
}

static void forget_assignment(struct kafka_source *s)
{
    if (s->to_assign)
        rd_kafka_topic_partition_list_destroy(s->to_assign);
    s->to_assign = NULL;
}

void kafka_group_unassign(struct kafka_source *s)
{
    forget_assignment(s);
    rd_kafka_assign(s->rk, NULL);
}

/* committed: of the same partitions in the same order. */
static void assign(struct kafka_source *s, rd_kafka_topic_partition_list_t *parts,
                   const rd_kafka_topic_partition_list_t *committed)
{
    struct err e = {0};
    for (int i = 0; i < parts->cnt && e.code == 0; i++)
        assign_one(s, &parts->elems[i], &committed->elems[i], &e);
    if (e.code != 0)
        break_source(s, &e);
    pthread_mutex_lock(&s->lock);
    kafka_partitions_drop_revoked(&s->partitions);
    s->is_assigned = true;
    pthread_mutex_unlock(&s->lock);
    rd_kafka_assign(s->rk, parts);
    s->assigned_us = clock_mono_us();
    s->unknown_topic_us = 0;
    log_info("Kafka: %d partitions of %s assigned", parts->cnt, s->jobs_topic);
    CRASH_POINT("assigned");
}

void kafka_group_serve_assignment(struct kafka_source *s)
{
    rd_kafka_topic_partition_list_t *committed = s->to_assign ? fetch_committed(s) : NULL;
    if (!committed)
        return;
    assign(s, s->to_assign, committed);
    rd_kafka_topic_partition_list_destroy(committed);
    forget_assignment(s);
}

/* Nothing is read before it is known what was settled: jobs would be answered twice. */
static void prepare_assignment(struct kafka_source *s,
                               const rd_kafka_topic_partition_list_t *parts)
{
    CRASH_POINT("assign");
    if (s->is_transactional)
        keep_membership(s);
    forget_assignment(s);
    s->to_assign = rd_kafka_topic_partition_list_copy(parts);
    kafka_group_serve_assignment(s);
}

void kafka_group_drop_held(struct kafka_source *s)
{
    while (s->held) {
        struct kafka_held *next = s->held->next;
        kafka_record_free(s->held->record);
        free(s->held);
        s->held = next;
    }
}

/* librdkafka keeps a pause over an assignment, and cannot be asked about it. */
static void end_pauses(struct kafka_source *s)
{
    rd_kafka_topic_partition_list_t *paused = rd_kafka_topic_partition_list_new(8);
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->partitions.n; i++) {
        struct kafka_partition *p = s->partitions.items[i];
        if (p->is_owned && p->is_paused)
            rd_kafka_topic_partition_list_add(paused, p->topic, p->id);
        p->is_paused = false;
    }
    pthread_mutex_unlock(&s->lock);
    if (paused->cnt > 0)
        rd_kafka_resume_partitions(s->rk, paused);
    rd_kafka_topic_partition_list_destroy(paused);
}

/* Commits before unassigning: afterwards the group would refuse it. What was lost (a missed
 * poll, a session that ran out) belongs to somebody else already. */
static void revoke(struct kafka_source *s)
{
    CRASH_POINT("revoke");
    const bool is_lost = rd_kafka_assignment_lost(s->rk) != 0;
    if (is_lost)
        log_warn("Kafka: the partitions of %s were lost to the group", s->jobs_topic);
    else
        kafka_group_commit_now(s, REVOKE_WAIT_MS);
    end_pauses(s);
    pthread_mutex_lock(&s->lock);
    kafka_partitions_revoke_all(&s->partitions);
    s->is_assigned = false;
    pthread_mutex_unlock(&s->lock);
    kafka_group_drop_held(s);
    kafka_group_unassign(s);
    CRASH_POINT("revoked");
}

void kafka_group_rebalance(rd_kafka_t *rk, rd_kafka_resp_err_t code,
                           rd_kafka_topic_partition_list_t *parts, void *source)
{
    struct kafka_source *s = source;
    if (code == RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS) {
        if (s->is_closing) /* came while the close was already under way */
            rd_kafka_assign(rk, NULL);
        else
            prepare_assignment(s, parts);
        return;
    }
    if (code != RD_KAFKA_RESP_ERR__REVOKE_PARTITIONS)
        log_warn("Kafka: rebalance: %s", rd_kafka_err2str(code));
    revoke(s);
}

/* Without memory for the text the offset goes alone, which is safe. */
void kafka_group_add_settled(rd_kafka_topic_partition_list_t *list, const char *topic,
                             int32_t partition, const struct offset_bits *settled)
{
    rd_kafka_topic_partition_t *part =
        rd_kafka_topic_partition_list_add(list, topic, partition);
    char text[OFFSET_METADATA_MAX + 1];
    part->offset = settled->base;
    const size_t length = offset_metadata_encode(settled, text);
    if (length > 0 && (part->metadata = strdup(text)))
        part->metadata_size = length;
}

/* At least once, the offset may go alone: jobs above it are answered again after a crash. */
static void drop_long_text(rd_kafka_topic_partition_t *part, size_t text_max)
{
    if (part->metadata_size <= text_max)
        return;
    free(part->metadata);
    part->metadata = NULL;
    part->metadata_size = 0;
}

/* What is settled and not committed; NULL when nothing is. */
static rd_kafka_topic_partition_list_t *collect_settled(struct kafka_source *s)
{
    rd_kafka_topic_partition_list_t *list = NULL;
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->partitions.n; i++) {
        struct kafka_partition *p = s->partitions.items[i];
        if (!kafka_partition_is_commit_due(p))
            continue;
        if (!list)
            list = rd_kafka_topic_partition_list_new((int)s->partitions.n);
        struct offset_bits settled;
        offset_tracker_settled(&p->tracker, &settled);
        kafka_group_add_settled(list, p->topic, p->id, &settled);
        drop_long_text(&list->elems[list->cnt - 1], kafka_partitions_text_max(&s->partitions));
        p->is_changed = false;
    }
    s->n_settled_uncommitted = 0;
    pthread_mutex_unlock(&s->lock);
    return list;
}

/* What was not committed is to be sent again. */
static void mark_changed(struct kafka_source *s, const rd_kafka_topic_partition_list_t *list)
{
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < list->cnt; i++) {
        struct kafka_partition *p = kafka_partitions_find(&s->partitions, list->elems[i].topic,
                                                          list->elems[i].partition);
        if (p)
            p->is_changed = true;
    }
    pthread_mutex_unlock(&s->lock);
}

static void begin_commit(struct kafka_source *s)
{
    s->committed_us = clock_mono_us();
    rd_kafka_topic_partition_list_t *list = collect_settled(s);
    if (!list)
        return;
    const rd_kafka_resp_err_t code = rd_kafka_commit_queue(s->rk, list, s->commits, NULL, NULL);
    s->is_committing = code == RD_KAFKA_RESP_ERR_NO_ERROR;
    s->commit_code = code;
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR)
        mark_changed(s, list);
    rd_kafka_topic_partition_list_destroy(list);
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR)
        kafka_error_log_line(&s->error_log, code, "offsets were not committed");
}

/* Takes over what the coordinator has acknowledged, partition by partition. */
static void read_outcome(struct kafka_source *s, rd_kafka_event_t *event)
{
    rd_kafka_resp_err_t code = rd_kafka_event_error(event);
    const rd_kafka_topic_partition_list_t *list = rd_kafka_event_topic_partition_list(event);
    bool is_too_long = false;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; list && i < list->cnt; i++) {
        const rd_kafka_topic_partition_t *part = &list->elems[i];
        is_too_long |= part->err == RD_KAFKA_RESP_ERR_OFFSET_METADATA_TOO_LARGE;
        struct kafka_partition *p =
            kafka_partitions_find(&s->partitions, part->topic, part->partition);
        const bool is_done = part->err == RD_KAFKA_RESP_ERR_NO_ERROR &&
                             rd_kafka_event_error(event) == RD_KAFKA_RESP_ERR_NO_ERROR;
        if (part->err != RD_KAFKA_RESP_ERR_NO_ERROR)
            code = part->err;
        if (p && !is_done)
            p->is_changed = true;
        else if (p && p->is_owned && part->offset > p->committed)
            p->committed = part->offset;
    }
    pthread_mutex_unlock(&s->lock);
    if (is_too_long)
        kafka_source_shorten_texts(s, list);
    s->commit_code = code;
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR && code != RD_KAFKA_RESP_ERR__NO_OFFSET)
        kafka_error_log_line(&s->error_log, code, "offsets were not committed");
}

static void poll_commits(struct kafka_source *s, int wait_ms)
{
    rd_kafka_event_t *event = rd_kafka_queue_poll(s->commits, wait_ms);
    if (!event)
        return;
    if (rd_kafka_event_type(event) == RD_KAFKA_EVENT_OFFSET_COMMIT) {
        s->is_committing = false;
        read_outcome(s, event);
    }
    rd_kafka_event_destroy(event);
}

void kafka_group_serve_commits(struct kafka_source *s)
{
    poll_commits(s, 0);
    const int64_t age_us = clock_mono_us() - s->committed_us;
    if (s->is_transactional || s->is_broken || !s->is_assigned ||
        (s->is_committing && age_us < COMMIT_LOST_US))
        return;
    pthread_mutex_lock(&s->lock);
    const bool is_many = s->n_settled_uncommitted >= COMMIT_JOBS;
    pthread_mutex_unlock(&s->lock);
    if (is_many || age_us >= COMMIT_INTERVAL_US)
        begin_commit(s);
}

static void wait_commit(struct kafka_source *s, int64_t deadline_us)
{
    while (s->is_committing) {
        const int64_t left_us = deadline_us - clock_mono_us();
        if (left_us <= 0)
            return;
        poll_commits(s, (int)(left_us / 1000) + 1);
    }
}

rd_kafka_resp_err_t kafka_group_commit_now(struct kafka_source *s, int wait_ms)
{
    if (s->is_transactional)
        return RD_KAFKA_RESP_ERR_NO_ERROR;
    if (s->is_broken)
        return RD_KAFKA_RESP_ERR__STATE;
    const int64_t deadline_us = clock_mono_us() + (int64_t)wait_ms * 1000;
    wait_commit(s, deadline_us);
    s->commit_code = RD_KAFKA_RESP_ERR_NO_ERROR;
    if (!s->is_committing)
        begin_commit(s);
    wait_commit(s, deadline_us);
    return s->is_committing ? RD_KAFKA_RESP_ERR__TIMED_OUT : s->commit_code;
}

static bool is_over(size_t jobs, uint64_t bytes, size_t jobs_max, uint64_t bytes_max)
{
    return (jobs_max > 0 && jobs >= jobs_max) || (bytes_max > 0 && bytes >= bytes_max);
}

/* Full at the limit, not full again at half of it: every pause throws prefetched jobs away. */
static bool update_full(struct kafka_source *s)
{
    size_t jobs;
    uint64_t bytes;
    kafka_partitions_sum_unsettled(&s->partitions, &jobs, &bytes);
    if (s->is_tended)
        s->is_full = true;
    else if (!s->is_full)
        s->is_full = is_over(jobs, bytes, s->jobs_max, s->bytes_max);
    else
        s->is_full = is_over(jobs, bytes, s->jobs_max > 0 ? s->jobs_max / 2 + 1 : 0,
                             s->bytes_max > 0 ? s->bytes_max / 2 + 1 : 0);
    return s->is_full;
}

static void add_to(rd_kafka_topic_partition_list_t **list, const struct kafka_partition *p)
{
    if (!*list)
        *list = rd_kafka_topic_partition_list_new(8);
    rd_kafka_topic_partition_list_add(*list, p->topic, p->id);
}

void kafka_group_apply_flow(struct kafka_source *s)
{
    rd_kafka_topic_partition_list_t *to_pause = NULL, *to_resume = NULL;
    pthread_mutex_lock(&s->lock);
    const bool is_full = update_full(s);
    for (size_t i = 0; i < s->partitions.n; i++) {
        struct kafka_partition *p = s->partitions.items[i];
        const bool wanted = is_full || p->is_held;
        if (!p->is_owned || wanted == p->is_paused)
            continue;
        add_to(wanted ? &to_pause : &to_resume, p);
        p->is_paused = wanted;
        if (wanted)
            p->is_at_end = false; /* what comes meanwhile is not heard of */
    }
    pthread_mutex_unlock(&s->lock);
    if (to_pause) {
        rd_kafka_pause_partitions(s->rk, to_pause);
        rd_kafka_topic_partition_list_destroy(to_pause);
    }
    if (to_resume) {
        rd_kafka_resume_partitions(s->rk, to_resume);
        rd_kafka_topic_partition_list_destroy(to_resume);
    }
}
