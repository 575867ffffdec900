#include "dlq_int.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/log.h"

/* ------------------------------------------------------------------ one letter */

bool dlq_letter_header_at(const struct dlq_letter *letter, size_t i, struct kafka_header *out)
{
    return letter->headers && rd_kafka_header_get_all(letter->headers, i, &out->name,
                                                      &out->value, &out->length) == 0;
}

bool dlq_letter_header(const struct dlq_letter *letter, const char *name,
                       struct kafka_header *out)
{
    *out = (struct kafka_header){.name = name};
    return letter->headers &&
           rd_kafka_header_get_last(letter->headers, name, &out->value, &out->length) == 0 &&
           out->value;
}

bool dlq_letter_is_added(const char *header_name)
{
    static const char *const prefixes[] = {"sheaf.error.", "__connect.errors.", "kafka_dlt-"};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(header_name, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

bool dlq_letter_header_is(const struct dlq_letter *letter, const char *name, const char *text)
{
    struct kafka_header header;
    return dlq_letter_header(letter, name, &header) && header.length == strlen(text) &&
           memcmp(header.value, text, header.length) == 0;
}

bool dlq_is_of_group(const struct dlq *d, const struct dlq_letter *letter)
{
    return dlq_letter_header_is(letter, "sheaf.error.group", d->kafka->group);
}

static enum dlq_letter_state state_of(const struct dlq *d, const struct dlq_letter *letter)
{
    struct kafka_header header;
    if (!dlq_letter_header(letter, "sheaf.error.code", &header))
        return LETTER_FOREIGN;
    if (!dlq_is_of_group(d, letter) ||
        !dlq_letter_header_is(letter, "sheaf.error.topic", d->kafka->jobs_topic))
        return LETTER_ELSEWHERE;
    return offset_bits_has(&d->committed[letter->partition], letter->offset) ? LETTER_REDRIVEN
                                                                             : LETTER_OPEN;
}

void dlq_read(const struct dlq *d, const rd_kafka_message_t *message, struct dlq_letter *out)
{
    ASSERT(message->partition >= 0 && message->partition < d->n_partitions);
    *out = (struct dlq_letter){.partition = message->partition,
                               .offset = message->offset,
                               .timestamp_us = kafka_record_timestamp_us(message),
                               .key = message->key,
                               .key_length = message->key_len,
                               .value = message->payload,
                               .value_length = message->len};
    if (rd_kafka_message_headers(message, &out->headers) != RD_KAFKA_RESP_ERR_NO_ERROR)
        out->headers = NULL;
    out->state = state_of(d, out);
}

/* ------------------------------------------------------------------ the topic */

char *dlq_notes_group(const char *group)
{
    const size_t n = strlen(group) + sizeof ".dlq";
    char *name = malloc(n);
    if (name)
        snprintf(name, n, "%s.dlq", group);
    return name;
}

static int find_topic(struct dlq *d, struct err *e)
{
    TRY(kafka_admin_count_partitions(d->reader, d->topic, &d->n_partitions, e));
    if (d->n_partitions == 0)
        return ERR_SET(e, ERR_NOTFOUND,
                       "the dead-letter topic %s does not exist: no job of %s has died, or "
                       "their dead letters go elsewhere (dead_letters)",
                       d->topic, d->kafka->jobs_topic);
    d->committed = calloc((size_t)d->n_partitions, sizeof d->committed[0]);
    return d->committed ? 0 : ERR_SET(e, ERR_NOMEM, "no memory for the topic %s", d->topic);
}

int dlq_open(const struct dlq_options *o, struct dlq **out, struct err *e)
{
    *out = NULL;
    struct dlq *d = calloc(1, sizeof *d);
    if (!d)
        return ERR_SET(e, ERR_NOMEM, "no memory for the topic %s", o->topic);
    d->kafka = o->kafka;
    d->topic = o->topic;
    d->notes_group = dlq_notes_group(o->kafka->group);
    int rc = d->notes_group ? 0 : ERR_SET(e, ERR_NOMEM, "no memory for a group's name");
    if (rc == 0)
        rc = kafka_admin_open(o->kafka, &d->reader, e);
    if (rc == 0)
        rc = find_topic(d, e);
    if (rc == 0)
        rc = dlq_read_notes(d, false, e);
    if (rc != 0) {
        dlq_close(d);
        return rc;
    }
    *out = d;
    return 0;
}

void dlq_close(struct dlq *d)
{
    if (!d)
        return;
    kafka_admin_close(d->reader);
    free(d->notes_group);
    free(d->committed);
    free(d);
}

int dlq_count_partitions(const struct dlq *d)
{
    return d->n_partitions;
}

int dlq_read_notes(struct dlq *d, bool is_stable, struct err *e)
{
    return kafka_admin_committed(d->reader, d->notes_group, d->topic, d->n_partitions,
                                 is_stable, d->committed, e);
}

int dlq_range(struct dlq *d, int32_t partition, struct kafka_range *out, struct err *e)
{
    TRY(kafka_admin_range(d->reader, d->topic, partition, out, e));
    struct offset_bits *noted = &d->committed[partition];
    if (noted->base <= out->end)
        return 0;
    log_warn("the group %s has notes up to offset %lld of %s [%d], which ends at %lld: it was "
             "made anew, and nothing of it counts as sent again",
             d->notes_group, (long long)noted->base, d->topic, partition, (long long)out->end);
    *noted = (struct offset_bits){.base = -1};
    return 0;
}

/* ------------------------------------------------------------------ walks */

/* Below `end`, or to the end of the partition as it is now when that comes first. */
static int walk_partition(struct dlq *d, int32_t partition, int64_t end, dlq_visit visit,
                          void *ctx, bool *stop, struct err *e)
{
    struct kafka_range range;
    TRY(dlq_range(d, partition, &range, e));
    if (end > range.end)
        end = range.end;
    TRY(kafka_admin_seek(d->reader, d->topic, partition, range.begin, end, e));
    while (!*stop) {
        rd_kafka_message_t *message;
        TRY(kafka_admin_next(d->reader, &message, e));
        if (!message)
            return 0;
        struct dlq_letter letter;
        dlq_read(d, message, &letter);
        const int rc = visit(ctx, &letter, stop, e);
        rd_kafka_message_destroy(message);
        TRY(rc);
    }
    return 0;
}

int dlq_walk(struct dlq *d, dlq_visit visit, void *ctx, struct err *e)
{
    bool stop = false;
    for (int32_t p = 0; p < d->n_partitions && !stop; p++)
        TRY(walk_partition(d, p, INT64_MAX, visit, ctx, &stop, e));
    return 0;
}

static int read_at(struct dlq *d, int32_t partition, int64_t offset, rd_kafka_message_t **out,
                   struct err *e)
{
    *out = NULL;
    if (partition < 0 || partition >= d->n_partitions)
        return ERR_SET(e, ERR_NOTFOUND, "%s has no partition %d: there are %d, from 0 on",
                       d->topic, partition, d->n_partitions);
    struct kafka_range range;
    TRY(dlq_range(d, partition, &range, e));
    if (offset >= range.begin && offset < range.end) {
        TRY(kafka_admin_seek(d->reader, d->topic, partition, offset, offset + 1, e));
        TRY(kafka_admin_next(d->reader, out, e));
    }
    if (*out)
        return 0;
    return ERR_SET(e, ERR_NOTFOUND,
                   "%s has no record at partition %d, offset %lld (its offsets go from %lld to "
                   "below %lld, with gaps)",
                   d->topic, partition, (long long)offset, (long long)range.begin,
                   (long long)range.end);
}

int dlq_show(struct dlq *d, int32_t partition, int64_t offset, dlq_visit visit, void *ctx,
             struct err *e)
{
    rd_kafka_message_t *message;
    TRY(read_at(d, partition, offset, &message, e));
    struct dlq_letter letter;
    dlq_read(d, message, &letter);
    bool stop = false;
    const int rc = visit(ctx, &letter, &stop, e);
    rd_kafka_message_destroy(message);
    return rc;
}

/* ------------------------------------------------------------------ deletion */

static int count_letter(void *ctx, const struct dlq_letter *letter, bool *stop, struct err *e)
{
    (void)stop;
    (void)e;
    struct purge_report *report = ctx;
    report->letters += letter->state == LETTER_OPEN || letter->state == LETTER_REDRIVEN;
    report->open += letter->state == LETTER_OPEN;
    report->elsewhere += letter->state == LETTER_ELSEWHERE;
    report->foreign += letter->state == LETTER_FOREIGN;
    return 0;
}

/* Up to where is deleted; what is not counted is not deleted either. */
static int list_ends(struct dlq *d, int32_t partition, int64_t before,
                     rd_kafka_topic_partition_list_t *list, struct err *e)
{
    for (int32_t p = 0; p < d->n_partitions; p++) {
        if (partition >= 0 && p != partition)
            continue;
        struct kafka_range range;
        TRY(kafka_admin_range(d->reader, d->topic, p, &range, e));
        if (partition >= 0 && before > range.end)
            return ERR_SET(e, ERR_INVALID,
                           "--before %lld is behind the end of %s [%d], which is %lld",
                           (long long)before, d->topic, p, (long long)range.end);
        const int64_t end = partition >= 0 ? before : range.end;
        if (end > range.begin)
            rd_kafka_topic_partition_list_add(list, d->topic, p)->offset = end;
    }
    return 0;
}

static void ask_to_delete(rd_kafka_t *rk, const rd_kafka_AdminOptions_t *options,
                          rd_kafka_queue_t *answers, void *ctx)
{
    rd_kafka_DeleteRecords_t *wanted = rd_kafka_DeleteRecords_new(ctx);
    rd_kafka_DeleteRecords(rk, &wanted, 1, options, answers);
    rd_kafka_DeleteRecords_destroy(wanted);
}

static int delete_records(struct dlq *d, rd_kafka_topic_partition_list_t *list, struct err *e)
{
    rd_kafka_event_t *event;
    TRY(kafka_admin_request(d->reader, RD_KAFKA_ADMIN_OP_DELETERECORDS, false, ask_to_delete,
                            list, "the deletion of records", &event, e));
    const rd_kafka_topic_partition_list_t *done =
        rd_kafka_DeleteRecords_result_offsets(rd_kafka_event_DeleteRecords_result(event));
    int rc = 0;
    for (int i = 0; i < done->cnt && rc == 0; i++)
        if (done->elems[i].err != RD_KAFKA_RESP_ERR_NO_ERROR)
            rc = ERR_SET(e, ERR_BROKER, "records of %s [%d] cannot be deleted: %s", d->topic,
                         (int)done->elems[i].partition, rd_kafka_err2str(done->elems[i].err));
    rd_kafka_event_destroy(event);
    return rc;
}

static int purge(struct dlq *d, rd_kafka_topic_partition_list_t *list, bool is_sure,
                 struct purge_report *report, struct err *e)
{
    bool stop = false;
    for (int i = 0; i < list->cnt; i++)
        TRY(walk_partition(d, list->elems[i].partition, list->elems[i].offset, count_letter,
                           report, &stop, e));
    return is_sure && list->cnt > 0 ? delete_records(d, list, e) : 0;
}

int dlq_purge(struct dlq *d, int32_t partition, int64_t before, bool is_sure,
              struct purge_report *report, struct err *e)
{
    *report = (struct purge_report){0};
    if (partition >= d->n_partitions)
        return ERR_SET(e, ERR_NOTFOUND, "%s has no partition %d: there are %d, from 0 on",
                       d->topic, partition, d->n_partitions);
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(d->n_partitions);
    int rc = list_ends(d, partition, before, list, e);
    if (rc == 0)
        rc = purge(d, list, is_sure, report, e);
    rd_kafka_topic_partition_list_destroy(list);
    return rc;
}
