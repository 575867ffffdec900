#include "sink.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "patience.h"
#include "signals.h"

enum {
    BATCH_RECORDS = 256,
    BATCH_BYTES = 16 << 20,
    BATCH_LINGER_US = 200000,
    POLL_MS = 50,
    PROGRESS_US = 10000000,
    REFUSALS_SAID = 20,
};

/* Read, and not yet in the database. */
struct batch {
    struct result_record records[BATCH_RECORDS];
    struct result_receipt receipts[BATCH_RECORDS];
    char *lines[BATCH_RECORDS]; /* owned */
    size_t n;
    struct result_position positions[BATCH_RECORDS];
    size_t n_positions;
    size_t n_read, bytes;
    int64_t began_us;
};

struct sink {
    const struct sink_options *o;
    struct store *store;
    struct kafka_reader *reader;
    struct sink_totals *totals;
    struct batch batch;
    int64_t said_us;
};

static void batch_clear(struct batch *b)
{
    for (size_t i = 0; i < b->n; i++) {
        result_record_fini(&b->records[i]);
        free(b->lines[i]);
    }
    b->n = b->n_positions = b->n_read = b->bytes = 0;
}

static int start(void *ctx, struct result_position *p, struct err *e)
{
    struct sink *k = ctx;
    return store_result_position(k->store, k->o->topic, p, e);
}

/* ------------------------------------------------------------------ into the database */

static int store_once(struct sink *k, struct err *e)
{
    struct batch *b = &k->batch;
    return store_receive(k->store, k->o->topic, b->receipts, b->n, b->positions, b->n_positions,
                         &k->totals->counts, e);
}

/* A full disk may have room later. */
static int store_batch(struct sink *k, struct err *e)
{
    struct patience patience = patience_begin();
    for (;;) {
        struct err why = {0};
        const int rc = store_once(k, &why);
        if (rc == 0)
            break;
        if (!patience_wait(&patience, &why, 0))
            return ERR_SET_FLAGS(e, rc, why.flags, "%s", why.text);
    }
    batch_clear(&k->batch);
    return 0;
}

/* ------------------------------------------------------------------ out of the topic */

static void refuse(struct sink *k, const struct kafka_read *read, const struct err *why)
{
    if (++k->totals->refused <= REFUSALS_SAID)
        log_warn("%s [%d] at %lld is %s; it is left out%s", k->o->topic, (int)read->partition,
                 (long long)read->offset, why->text,
                 k->totals->refused == REFUSALS_SAID ? ", and others are no longer named" : "");
}

static void note_position(struct sink *k, int32_t partition)
{
    struct batch *b = &k->batch;
    size_t at = 0;
    while (at < b->n_positions && b->positions[at].partition != partition)
        at++;
    b->positions[at] = *kafka_reader_position(k->reader, partition);
    if (at == b->n_positions)
        b->n_positions++;
}

static int take(struct sink *k, const struct kafka_read *read, struct err *e)
{
    struct batch *b = &k->batch;
    struct err why = {0};
    if (b->n_read++ == 0)
        b->began_us = clock_mono_us();
    b->bytes += read->length;
    note_position(k, read->partition);
    const int rc = result_read(read->value, read->length, read->headers, read->n_headers,
                               &b->records[b->n], &why);
    if (rc == ERR_FORMAT) {
        refuse(k, read, &why);
        return 0;
    }
    if (rc != 0)
        return ERR_SET(e, rc, "%s", why.text);
    char *line = strndup(read->value, read->length);
    if (!line) {
        result_record_fini(&b->records[b->n]);
        return ERR_SET(e, ERR_NOMEM, "no memory for a result line");
    }
    b->lines[b->n] = line;
    b->receipts[b->n] = (struct result_receipt){.record = &b->records[b->n],
                                                .line = line,
                                                .partition = read->partition,
                                                .offset = read->offset,
                                                .timestamp_us = read->timestamp_us};
    b->n++;
    return 0;
}

static bool is_due(const struct sink *k, bool is_idle)
{
    const struct batch *b = &k->batch;
    if (b->n_read == 0)
        return false;
    return is_idle || b->n_read == BATCH_RECORDS || b->bytes >= BATCH_BYTES ||
           clock_mono_us() - b->began_us >= BATCH_LINGER_US;
}

static void say_progress(struct sink *k)
{
    const struct receive_counts *c = &k->totals->counts;
    const int64_t now_us = clock_mono_us();
    if (k->o->quiet || now_us - k->said_us < PROGRESS_US)
        return;
    k->said_us = now_us;
    log_info("%llu results stored", (unsigned long long)(c->stored + c->replaced));
}

static int has_end(struct sink *k, bool *is_end, struct err *e)
{
    *is_end = signals_received() > 0;
    if (!k->o->exit_when_empty || *is_end)
        return 0;
    if (!kafka_reader_has_topic(k->reader))
        return ERR_SET(e, ERR_NOTFOUND, "there is no topic %s", k->o->topic);
    *is_end = kafka_reader_is_at_end(k->reader);
    return 0;
}

static int run(struct sink *k, struct err *e)
{
    bool is_end = false;
    while (!is_end) {
        const struct kafka_read *read;
        TRY(kafka_reader_poll(k->reader, POLL_MS, &read, e));
        if (read)
            TRY(take(k, read, e));
        if (is_due(k, !read))
            TRY(store_batch(k, e));
        say_progress(k);
        if (!read)
            TRY(has_end(k, &is_end, e));
        is_end |= signals_received() > 0;
    }
    return k->batch.n_read > 0 ? store_batch(k, e) : 0;
}

int sink_run(const struct sink_options *o, struct store *store, struct sink_totals *totals,
             struct err *e)
{
    struct sink *k = calloc(1, sizeof *k);
    if (!k)
        return ERR_SET(e, ERR_NOMEM, "no memory for the sink");
    *totals = (struct sink_totals){0};
    k->o = o;
    k->store = store;
    k->totals = totals;
    k->said_us = clock_mono_us();
    int code = kafka_reader_open(o->kafka, o->topic, start, k, &k->reader, e);
    if (code == 0 && !o->exit_when_empty && !kafka_reader_has_topic(k->reader))
        log_warn("there is no topic %s; waiting for it", o->topic);
    if (code == 0)
        code = run(k, e);
    batch_clear(&k->batch);
    kafka_reader_close(k->reader);
    free(k);
    return code;
}
