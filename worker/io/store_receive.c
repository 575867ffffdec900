#include "io/store_receive.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "io/store_int.h"

/* What is there already of a result. */
struct earlier {
    int64_t job_id; /* 0: nothing */
    int64_t attempt;
    bool same_payload, same_run, same_line;
    bool is_vague; /* its source or payload was not known */
};

enum { KNOWN_DIGITS = 16, PAYLOAD_DIGITS = 64 };

/* Only its first digits are known, or none. */
static bool is_vague(const char *payload)
{
    return strspn(payload + KNOWN_DIGITS, "0") == PAYLOAD_DIGITS - KNOWN_DIGITS;
}

static bool same_payload(const char *a, const char *b)
{
    const size_t n = is_vague(a) || is_vague(b) ? KNOWN_DIGITS : PAYLOAD_DIGITS;
    return strncmp(a, b, n) == 0;
}

static bool same_text(sqlite3_stmt *st, int column, const char *text)
{
    const char *stored = (const char *)sqlite3_column_text(st, column);
    return stored && strcmp(stored, text) == 0;
}

/* The columns of SQL_RECEIVE_FIND. */
static void read_earlier(sqlite3_stmt *st, const struct result *r, const char *line,
                         struct earlier *out)
{
    const struct job_source *source = &r->job->source;
    const char *payload = (const char *)sqlite3_column_text(st, 2);
    *out = (struct earlier){
        .job_id = sqlite3_column_int64(st, 0),
        .attempt = sqlite3_column_int64(st, 1),
        .same_run = sqlite3_column_int(st, 3),
        .same_line = same_text(st, 4, line),
    };
    if (payload && strlen(payload) == PAYLOAD_DIGITS) {
        out->same_payload = same_payload(payload, r->job->payload_sha256);
        out->is_vague = is_vague(payload);
    }
    out->is_vague |= !same_text(st, 5, source->topic) ||
                     sqlite3_column_int64(st, 6) != source->partition ||
                     sqlite3_column_int64(st, 7) != source->offset;
}

static int step_earlier(struct store *s, sqlite3_stmt *st, const struct result *r,
                        const char *line, struct earlier *out, struct err *e)
{
    int code = 0;
    const int rc = sqlite3_step(st);
    if (rc == SQLITE_ROW)
        read_earlier(st, r, line, out);
    else if (rc != SQLITE_DONE)
        code = store_fail(s, e, "look up a result");
    sqlite3_reset(st);
    return code;
}

/* By its place; else by its names. */
static int find_earlier(struct store *s, const char *run_id, const struct result_record *record,
                        const struct result *r, const char *line, struct earlier *out,
                        struct err *e)
{
    sqlite3_stmt *st;
    *out = (struct earlier){0};
    TRY(store_prepare(s, SQL_RECEIVE_PLACE, &st, e));
    const struct job_source *source = &r->job->source;
    struct binder b = {.statement = st};
    binder_note(&b, sqlite3_bind_text(st, 1, source->topic, -1, SQLITE_STATIC));
    binder_note(&b, sqlite3_bind_int64(st, 2, source->partition));
    binder_note(&b, sqlite3_bind_text(st, 3, run_id, -1, SQLITE_STATIC));
    binder_note(&b, sqlite3_bind_int64(st, 4, source->offset));
    if (b.rc != SQLITE_OK)
        return store_fail(s, e, "bind a source");
    TRY(step_earlier(s, st, r, line, out, e));
    if (out->job_id || (!r->id[0] && record->has_source))
        return 0;
    const char *const texts[] = {r->job->custom_id, r->id, run_id};
    TRY(store_prepare(s, SQL_RECEIVE_FIND, &st, e));
    TRY(store_bind_texts(s, st, texts, 3, e));
    TRY(step_earlier(s, st, r, line, out, e));
    out->same_payload = true; /* the id is made of it */
    return 0;
}

static int put_run(struct store *s, const char *run_id, const struct result_record *record,
                   int64_t seen_us, struct err *e)
{
    sqlite3_stmt *st;
    const char *const texts[] = {run_id,
                                 record->model ? record->model : "",
                                 record->model_sha256 ? record->model_sha256 : "",
                                 record->quant ? record->quant : "",
                                 record->kernels ? record->kernels : "",
                                 record->version ? record->version : ""};
    const int64_t began_us = record->run_started_us > 0 ? record->run_started_us : seen_us;
    TRY(store_prepare(s, SQL_RECEIVE_RUN, &st, e));
    TRY(store_bind_texts(s, st, texts, 6, e));
    if (sqlite3_bind_double(st, 7, (double)began_us / 1e6) != SQLITE_OK)
        return store_fail(s, e, "bind a run");
    return store_finish(s, st, "keep a run", e);
}

/* The failed answer that a repeated job makes up for. */
static int drop_replayed(struct store *s, const struct result_record *record, struct err *e)
{
    struct store_row row;
    if (!record->replay_of.topic)
        return 0;
    TRY(store_find_row(s, &record->replay_of, NULL, record->result->job->payload_sha256, &row,
                       NULL, e));
    if (!row.job_id || !row.same_payload)
        return 0;
    return store_by_job_id(s, SQL_JOB_DELETE, row.job_id, e);
}

static int mark(struct store *s, int64_t job_id, int64_t published_us, struct err *e)
{
    sqlite3_stmt *st;
    TRY(store_prepare(s, SQL_RECEIVE_MARK, &st, e));
    if (sqlite3_bind_int64(st, 1, job_id) != SQLITE_OK ||
        sqlite3_bind_double(st, 2, (double)published_us / 1e6) != SQLITE_OK)
        return store_fail(s, e, "bind a mark");
    return store_finish(s, st, "mark a result", e);
}

/* Makes room for the result; *is_done: it is there already. */
static int give_way(struct store *s, const char *run_id, const struct result *r,
                    const struct result_record *record, const struct earlier *earlier,
                    bool *is_done, struct err *e)
{
    const bool knows_more = earlier->is_vague && record->has_source && record->has_payload;
    *is_done = earlier->same_payload && earlier->same_line && !knows_more;
    if (!earlier->job_id || *is_done)
        return 0;
    if (earlier->same_payload)
        return store_by_job_id(s, SQL_JOB_DELETE, earlier->job_id, e);
    const struct store_row row = {.job_id = earlier->job_id, .same_run = earlier->same_run};
    return store_replace_row(s, &row, &r->job->source, run_id, e);
}

static int receive_result(struct store *s, const struct result_receipt *receipt,
                          const struct result *r, const char *run_id,
                          struct receive_counts *counts, struct err *e)
{
    const struct result_record *record = receipt->record;
    const int64_t now_us = receipt->timestamp_us ? receipt->timestamp_us : clock_wall_us();
    const int64_t stored_us = record->stored_us ? record->stored_us : now_us;
    struct earlier earlier;
    bool is_done;
    int64_t job_id = 0;
    TRY(put_run(s, run_id, record, stored_us, e));
    TRY(drop_replayed(s, record, e));
    TRY(find_earlier(s, run_id, record, r, receipt->line, &earlier, e));
    TRY(give_way(s, run_id, r, record, &earlier, &is_done, e));
    if (is_done) {
        counts->repeated++;
        return 0;
    }
    TRY(store_insert_result(s, run_id, r, receipt->line, record->attempt, stored_us, &job_id,
                            e));
    earlier.job_id ? counts->replaced++ : counts->stored++;
    return mark(s, job_id, now_us, e);
}

/* Fills in, on copies, what the record does not say. */
static int receive_one(struct store *s, const char *topic, const struct result_receipt *receipt,
                       struct receive_counts *counts, struct err *e)
{
    static const char nothing[] =
        "0000000000000000000000000000000000000000000000000000000000000000";
    struct result result = *receipt->record->result;
    struct job job = *result.job;
    char run_id[JOB_ID_BYTES_MAX + 32];
    result.job = &job;
    if (!receipt->record->has_source)
        job.source = (struct job_source){.topic = (char *)topic,
                                         .partition = receipt->partition,
                                         .offset = receipt->offset,
                                         .timestamp_us = job.source.timestamp_us};
    if (!job.payload_sha256[0])
        memcpy(job.payload_sha256, nothing, sizeof nothing);
    if (result.created_s == 0)
        result.created_s = receipt->timestamp_us / 1000000;
    snprintf(run_id, sizeof run_id, "%s", topic);
    if (receipt->record->run_id)
        snprintf(run_id, sizeof run_id, "%s", receipt->record->run_id);
    return receive_result(s, receipt, &result, run_id, counts, e);
}

static int keep_position(struct store *s, const char *topic, const struct result_position *p,
                         struct err *e)
{
    sqlite3_stmt *st;
    struct binder b = {0};
    TRY(store_prepare(s, SQL_POSITION_SET, &st, e));
    binder_note(&b, sqlite3_bind_text(st, 1, topic, -1, SQLITE_STATIC));
    binder_note(&b, sqlite3_bind_int64(st, 2, p->partition));
    binder_note(&b, sqlite3_bind_int64(st, 3, p->next));
    binder_note(&b, sqlite3_bind_double(st, 4, (double)clock_wall_us() / 1e6));
    if (b.rc != SQLITE_OK)
        return store_fail(s, e, "bind a position");
    TRY(store_finish(s, st, "keep how far the topic is read", e));
    TRY(store_prepare(s, SQL_POSITION_NOTE, &st, e));
    binder_note(&b, sqlite3_bind_text(st, 1, topic, -1, SQLITE_STATIC));
    binder_note(&b, sqlite3_bind_int64(st, 2, p->partition));
    binder_note(&b, sqlite3_bind_int64(st, 3, p->last));
    binder_note(&b, sqlite3_bind_text(st, 4, p->last_sha256, -1, SQLITE_STATIC));
    if (b.rc != SQLITE_OK)
        return store_fail(s, e, "bind a position");
    return store_finish(s, st, "keep which record was read last", e);
}

static int receive_all(struct store *s, const char *topic,
                       const struct result_receipt *receipts, size_t n,
                       const struct result_position *positions, size_t n_positions,
                       struct receive_counts *counts, struct err *e)
{
    for (size_t i = 0; i < n; i++) {
        const int code = receive_one(s, topic, &receipts[i], counts, e);
        if (code != 0) {
            err_prefix(e, "%s [%d] at %lld", topic, (int)receipts[i].partition,
                       (long long)receipts[i].offset);
            return code;
        }
    }
    for (size_t i = 0; i < n_positions; i++)
        TRY(keep_position(s, topic, &positions[i], e));
    CRASH_POINT("sink_received");
    return store_commit(s, e);
}

int store_receive(struct store *s, const char *topic, const struct result_receipt *receipts,
                  size_t n, const struct result_position *positions, size_t n_positions,
                  struct receive_counts *counts, struct err *e)
{
    struct receive_counts sum = *counts;
    TRY(store_begin(s, e));
    const int code = receive_all(s, topic, receipts, n, positions, n_positions, &sum, e);
    store_rollback(s);
    if (code == 0)
        *counts = sum;
    return code;
}

/* "<offset> <sha256>" */
static void read_note(const char *note, struct result_position *p)
{
    char *end;
    const long long last = note ? strtoll(note, &end, 10) : -1;
    if (last < 0 || last >= p->next || *end != ' ' || strlen(end + 1) != 64)
        return;
    p->last = last;
    snprintf(p->last_sha256, sizeof p->last_sha256, "%s", end + 1);
}

int store_result_position(struct store *s, const char *topic, struct result_position *position,
                          struct err *e)
{
    static const char sql[] =
        "SELECT o.next_offset, m.value FROM result_offsets o LEFT JOIN meta m "
        "ON m.key = 'result ' || o.topic || ' ' || o.partition "
        "WHERE o.topic = ?1 AND o.partition = ?2";
    sqlite3_stmt *st = NULL;
    int code = 0;
    *position = (struct result_position){.partition = position->partition, .last = -1};
    int rc = sqlite3_prepare_v2(s->db, sql, -1, &st, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_text(st, 1, topic, -1, SQLITE_STATIC);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_int64(st, 2, position->partition);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(st);
    if (rc == SQLITE_ROW) {
        position->next = sqlite3_column_int64(st, 0);
        read_note((const char *)sqlite3_column_text(st, 1), position);
    } else if (rc != SQLITE_DONE) {
        code = store_fail(s, e, "read how far the topic was read");
    }
    sqlite3_finalize(st);
    return code;
}
