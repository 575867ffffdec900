/*
 * The documents topic: every partition from its beginning, by assignment instead of a group, so
 * that each worker has all documents and nobody's offsets move.
 *
 * The thread of this file writes the table, whoever asks reads it; the lock guards the table
 * and the failure.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "documents_int.h"
#include "kafka_int.h"

enum { POLL_MS = 100, LOOK_UP_MS = 1000, LOOK_AGAIN_MS = 250 };

struct documents_topic {
    rd_kafka_t *rk;
    char *name;
    pthread_t thread;
    bool is_started;
    _Atomic bool stop;

    pthread_mutex_t lock;
    struct documents_table table; /* Locks: lock */
    struct err failure;           /* Locks: lock; the thread has given up */

    _Atomic int64_t moved_us;
    _Atomic uint64_t generation;
    _Atomic bool is_known, is_read;
    /* The rest belongs to the thread. */
    bool *at_end; /* [n_partitions] */
    size_t n_partitions, n_at_end;
    uint64_t n_let_go;
    struct kafka_error_log error_log;
};

static void on_error(rd_kafka_t *rk, int code, const char *reason, void *topic)
{
    (void)rk;
    struct documents_topic *t = topic;
    kafka_error_log_line(&t->error_log, code, reason);
}

static void note_progress(struct documents_topic *t)
{
    if (!atomic_load(&t->is_read))
        atomic_store(&t->moved_us, clock_mono_us());
}

static int assign(struct documents_topic *t, int n, struct err *e)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(n);
    for (int i = 0; i < n; i++)
        rd_kafka_topic_partition_list_add(list, t->name, i)->offset = RD_KAFKA_OFFSET_BEGINNING;
    const rd_kafka_resp_err_t code = rd_kafka_assign(t->rk, list);
    rd_kafka_topic_partition_list_destroy(list);
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR)
        return ERR_SET(e, ERR_BROKER, "cannot read the documents topic %s: %s", t->name,
                       rd_kafka_err2str(code));
    t->at_end = calloc((size_t)n, sizeof t->at_end[0]);
    if (!t->at_end)
        return ERR_SET(e, ERR_NOMEM, "no memory to read the documents topic %s", t->name);
    t->n_partitions = (size_t)n;
    log_line(LOG_DEBUG, "reading documents from %s, %d partitions", t->name, n);
    return 0;
}

/* A topic that is not there may be made by the next submission. */
static int find_topic(struct documents_topic *t, struct err *e)
{
    const int n = kafka_topic_count_partitions(t->rk, t->name, LOOK_UP_MS, &t->error_log);
    if (n >= 0) {
        note_progress(t); /* before is_known, which shortens the wait from there */
        atomic_store(&t->is_known, true);
    }
    if (n > 0)
        return assign(t, n, e);
    if (n == 0)
        atomic_store(&t->is_read, true);
    nanosleep(&(struct timespec){.tv_nsec = LOOK_AGAIN_MS * 1000000L}, NULL);
    return 0;
}

static void note_end(struct documents_topic *t, int32_t partition)
{
    note_progress(t);
    if (partition < 0 || (size_t)partition >= t->n_partitions || t->at_end[partition])
        return;
    t->at_end[partition] = true;
    if (++t->n_at_end < t->n_partitions)
        return;
    atomic_store(&t->is_read, true);
    pthread_mutex_lock(&t->lock);
    const size_t n = t->table.n, bytes = t->table.bytes;
    pthread_mutex_unlock(&t->lock);
    log_info("%zu documents read from %s, %zu KiB", n, t->name, bytes >> 10);
}

/* One line when it begins, and one for each tenfold. */
static void say_full(struct documents_topic *t)
{
    uint64_t decade = 1;
    t->n_let_go++;
    while (decade < t->n_let_go)
        decade *= 10;
    if (decade == t->n_let_go)
        log_error("the documents of %s do not fit in documents.mb=%zu; %llu did not, and jobs "
                  "that refer to those fail",
                  t->name, t->table.bytes_max >> 20, (unsigned long long)t->n_let_go);
}

static int put(struct documents_topic *t, const char *ref, const rd_kafka_message_t *m,
               struct err *e)
{
    struct document document = {0};
    struct err why = {0};
    int rc = document_parse_value(m->payload, m->len, &document, &why);
    if (rc == ERR_NOMEM)
        return ERR_SET(e, rc, "%s", why.text);
    if (rc == 0)
        rc = documents_table_put_take(&t->table, ref, &document, e);
    else
        rc = documents_table_put_invalid(&t->table, ref, why.text, e);
    document_fini(&document);
    return rc;
}

static int keep_record(struct documents_topic *t, const rd_kafka_message_t *m, struct err *e)
{
    char ref[JOB_ID_BYTES_MAX + 1];
    note_progress(t);
    if (!m->key || m->key_len == 0 || m->key_len > JOB_ID_BYTES_MAX ||
        memchr(m->key, '\0', m->key_len))
        return 0; /* no reference can name it */
    memcpy(ref, m->key, m->key_len);
    ref[m->key_len] = '\0';
    struct err why = {0};
    int rc = 0;
    pthread_mutex_lock(&t->lock);
    if (m->payload)
        rc = put(t, ref, m, &why);
    else
        documents_table_remove(&t->table, ref);
    pthread_mutex_unlock(&t->lock);
    atomic_fetch_add(&t->generation, 1);
    if (rc == ERR_LIMIT) {
        say_full(t);
        return 0;
    }
    return rc == 0 ? 0 : ERR_SET(e, rc, "%s", why.text);
}

static int serve(struct documents_topic *t, struct err *e)
{
    rd_kafka_message_t *m = rd_kafka_consumer_poll(t->rk, POLL_MS);
    if (!m)
        return 0;
    int rc = 0;
    if (m->err == RD_KAFKA_RESP_ERR_NO_ERROR)
        rc = keep_record(t, m, e);
    else if (m->err == RD_KAFKA_RESP_ERR__PARTITION_EOF)
        note_end(t, m->partition);
    else
        kafka_error_log_line(&t->error_log, m->err, rd_kafka_message_errstr(m));
    rd_kafka_message_destroy(m);
    return rc;
}

static void *reader_main(void *arg)
{
    struct documents_topic *t = arg;
    struct err e = {0};
    int rc = 0;
    while (rc == 0 && !atomic_load(&t->stop))
        rc = t->n_partitions == 0 ? find_topic(t, &e) : serve(t, &e);
    if (rc != 0) {
        pthread_mutex_lock(&t->lock);
        t->failure = e;
        pthread_mutex_unlock(&t->lock);
        atomic_fetch_add(&t->generation, 1);
    }
    return NULL;
}

static int make_handle(struct documents_topic *t, const struct kafka_options *o, struct err *e)
{
    rd_kafka_conf_t *conf;
    TRY(kafka_conf_build(o, KAFKA_CONSUMER, &conf, e));
    rd_kafka_conf_set_opaque(conf, t);
    rd_kafka_conf_set_error_cb(conf, on_error);
    return kafka_conf_open_consumer(conf, &t->rk, e);
}

int documents_topic_open(const struct documents_options *o, struct documents_topic **out,
                         struct err *e)
{
    *out = NULL;
    struct documents_topic *t = calloc(1, sizeof *t);
    if (!t)
        return ERR_SET(e, ERR_NOMEM, "no memory for the documents topic");
    pthread_mutex_init(&t->lock, NULL);
    t->table.bytes_max = o->bytes_max;
    t->moved_us = clock_mono_us();
    int rc = 0;
    if (!(t->name = strdup(o->topic)))
        rc = ERR_SET(e, ERR_NOMEM, "no memory for the documents topic");
    if (rc == 0)
        rc = make_handle(t, o->kafka, e);
    if (rc == 0 && pthread_create(&t->thread, NULL, reader_main, t) != 0)
        rc = ERR_SET(e, ERR_NOMEM, "cannot start the thread that reads documents");
    if (rc != 0) {
        documents_topic_close(t);
        return rc;
    }
    t->is_started = true;
    *out = t;
    return 0;
}

int documents_topic_read(struct documents_topic *t, const char *ref, enum find_answer *answer,
                         struct document *out, struct err *why, struct err *e)
{
    pthread_mutex_lock(&t->lock);
    int rc = 0;
    if (t->failure.code != 0)
        rc = ERR_SET(e, t->failure.code, "%s", t->failure.text);
    else
        rc = documents_table_read(&t->table, ref, answer, out, why, e);
    pthread_mutex_unlock(&t->lock);
    return rc;
}

bool documents_topic_is_known(const struct documents_topic *t)
{
    return atomic_load(&t->is_known);
}

bool documents_topic_is_read(const struct documents_topic *t)
{
    return atomic_load(&t->is_read);
}

int64_t documents_topic_moved_us(const struct documents_topic *t)
{
    return atomic_load(&t->moved_us);
}

uint64_t documents_topic_generation(const struct documents_topic *t)
{
    return atomic_load(&t->generation);
}

void documents_topic_close(struct documents_topic *t)
{
    if (!t)
        return;
    atomic_store(&t->stop, true);
    if (t->is_started)
        pthread_join(t->thread, NULL);
    if (t->rk)
        rd_kafka_destroy_flags(t->rk, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
    documents_table_fini(&t->table);
    pthread_mutex_destroy(&t->lock);
    free(t->at_end);
    free(t->name);
    free(t);
}
