#include "io/kafka_reader.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/sha256.h"
#include "io/kafka_int.h"

enum {
    LOOK_UP_MS = 1000,
    FIRST_LOOK_UP_US = 10000000,
    REFRESH_US = 3000000, /* between looks for new partitions */
    PARTITIONS_MAX = 100000,
};

/* Of one partition. */
struct place {
    struct result_position position;
    bool is_to_check; /* the next record must be the one read last */
    bool is_at_end;
};

struct kafka_reader {
    rd_kafka_t *rk;
    char *topic;
    kafka_reader_start start;
    void *ctx;
    struct place *places; /* [n_places] */
    size_t n_places;
    int64_t looked_us;
    bool is_gone; /* partitions were not there any more: look and begin again */
    bool was_missing;
    rd_kafka_message_t *message; /* what poll lent out */
    struct kafka_read read;
    struct kafka_error_log error_log;
};

static void on_error(rd_kafka_t *rk, int code, const char *reason, void *reader)
{
    (void)rk;
    struct kafka_reader *r = reader;
    kafka_error_log_line(&r->error_log, code, reason);
}

/* ------------------------------------------------------------------ which partitions */

static int count_partitions(struct kafka_reader *r)
{
    const int n = kafka_topic_count_partitions(r->rk, r->topic, LOOK_UP_MS, &r->error_log);
    r->looked_us = clock_mono_us();
    return n < PARTITIONS_MAX ? n : PARTITIONS_MAX;
}

/* From the record read last, to see that it is still the same one. */
static int64_t offset_to_read(struct place *p, bool check)
{
    const struct result_position *at = &p->position;
    p->is_at_end = false;
    p->is_to_check = check && at->last >= 0;
    if (p->is_to_check)
        return at->last;
    return at->next > 0 ? at->next : RD_KAFKA_OFFSET_BEGINNING;
}

/* All partitions anew; what was fetched ahead is fetched again. */
static int assign(struct kafka_reader *r, bool check, struct err *e)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new((int)r->n_places);
    for (size_t i = 0; i < r->n_places; i++)
        rd_kafka_topic_partition_list_add(list, r->topic, (int32_t)i)->offset =
            offset_to_read(&r->places[i], check || r->places[i].is_to_check);
    const rd_kafka_resp_err_t code = rd_kafka_assign(r->rk, list);
    rd_kafka_topic_partition_list_destroy(list);
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR)
        return 0;
    return ERR_SET(e, ERR_BROKER, "cannot read the topic %s: %s", r->topic,
                   rd_kafka_err2str(code));
}

static int grow(struct kafka_reader *r, size_t n, struct err *e)
{
    struct place *places = realloc(r->places, n * sizeof *places);
    if (!places)
        return ERR_SET(e, ERR_NOMEM, "no memory for the partitions of %s", r->topic);
    r->places = places;
    for (size_t i = r->n_places; i < n; i++) {
        struct place *p = &places[i];
        *p = (struct place){.position = {.partition = (int32_t)i, .last = -1}};
        TRY(r->start(r->ctx, &p->position, e));
        p->is_to_check = true;
    }
    r->n_places = n;
    return 0;
}

/* A topic made anew may have fewer partitions; what the others had is told from the first. */
static int take_count(struct kafka_reader *r, size_t n, struct err *e)
{
    const bool was_gone = r->is_gone;
    if (n == r->n_places && !was_gone)
        return 0;
    if (n > r->n_places) {
        if (r->n_places > 0)
            log_info("%s has %zu partitions now", r->topic, n);
        TRY(grow(r, n, e));
    } else {
        r->n_places = n;
    }
    r->is_gone = false;
    return assign(r, was_gone, e);
}

static int look(struct kafka_reader *r, struct err *e)
{
    const int n = count_partitions(r);
    if (n > 0) {
        r->was_missing = false;
        return take_count(r, (size_t)n, e);
    }
    if (n == 0 && !r->was_missing)
        log_warn("there is no topic %s; waiting for it", r->topic);
    r->was_missing |= n == 0;
    r->is_gone |= n == 0 && r->n_places > 0;
    return 0;
}

/* ------------------------------------------------------------------ records */

static struct place *place_of(struct kafka_reader *r, int32_t partition)
{
    return partition >= 0 && (size_t)partition < r->n_places ? &r->places[partition] : NULL;
}

static void begin_again(struct kafka_reader *r, struct place *p, int64_t from)
{
    log_warn("Kafka: %s [%d] was read up to offset %lld, and what stands there now is another "
             "log: the topic was made anew or cut; reading it from %lld",
             r->topic, (int)p->position.partition, (long long)p->position.next,
             (long long)from);
    p->position = (struct result_position){.partition = p->position.partition, .last = -1};
    p->position.next = from;
    p->is_to_check = false;
}

static int hash_value(const rd_kafka_message_t *m, char hex[SHA256_HEX_BYTES], struct err *e)
{
    return sha256_hex(m->payload ? m->payload : "", m->payload ? m->len : 0, hex, e);
}

static void say_lost(const struct kafka_reader *r, const struct place *p, int64_t offset)
{
    int64_t low = -1, high = -1;
    if (p->position.next > 0 && offset > p->position.next &&
        rd_kafka_get_watermark_offsets(r->rk, r->topic, p->position.partition, &low, &high) ==
            RD_KAFKA_RESP_ERR_NO_ERROR &&
        low > p->position.next)
        log_error("Kafka: %s [%d]: offsets %lld to %lld were deleted before they were read; "
                  "their results are only in the databases of the workers (sheaf db merge)",
                  r->topic, (int)p->position.partition, (long long)p->position.next,
                  (long long)low - 1);
}

static int read_from_start(struct kafka_reader *r, struct place *p, struct err *e)
{
    begin_again(r, p, 0);
    return assign(r, false, e);
}

/* *is_new: the record was not read before. */
static int admit(struct kafka_reader *r, struct place *p, const rd_kafka_message_t *m,
                 bool *is_new, struct err *e)
{
    char hex[SHA256_HEX_BYTES];
    struct result_position *at = &p->position;
    const bool is_check = p->is_to_check;
    *is_new = false;
    TRY(hash_value(m, hex, e));
    p->is_to_check = false;
    if (is_check && m->offset == at->last && strcmp(hex, at->last_sha256) == 0)
        return 0;
    if (is_check && m->offset >= at->last && m->offset < at->next)
        return read_from_start(r, p, e);
    if (m->offset < at->next) /* librdkafka went to the beginning by itself */
        begin_again(r, p, m->offset);
    else
        say_lost(r, p, m->offset);
    at->next = m->offset + 1;
    at->last = m->offset;
    memcpy(at->last_sha256, hex, sizeof hex);
    *is_new = true;
    return 0;
}

/* The end of a log that is shorter than what was read of it: none of it was read yet. */
static int reach_end(struct kafka_reader *r, struct place *p, int64_t end, struct err *e)
{
    if (end < p->position.next)
        return read_from_start(r, p, e);
    p->is_at_end = true;
    return 0;
}

static void lend(struct kafka_reader *r, rd_kafka_message_t *m)
{
    struct kafka_read *out = &r->read;
    rd_kafka_headers_t *headers;
    r->message = m;
    out->partition = m->partition;
    out->offset = m->offset;
    out->timestamp_us = kafka_record_timestamp_us(m);
    out->value = m->payload ? m->payload : "";
    out->length = m->payload ? m->len : 0;
    out->n_headers = 0;
    if (rd_kafka_message_headers(m, &headers) != RD_KAFKA_RESP_ERR_NO_ERROR)
        return;
    const void *value;
    while (out->n_headers < KAFKA_READ_HEADERS_MAX) {
        struct result_header *h = &out->headers[out->n_headers];
        if (rd_kafka_header_get_all(headers, out->n_headers, &h->name, &value, &h->length) != 0)
            break;
        h->value = value;
        out->n_headers++;
    }
}

static int serve_event(struct kafka_reader *r, struct place *p, const rd_kafka_message_t *m,
                       struct err *e)
{
    switch ((int)m->err) {
    case RD_KAFKA_RESP_ERR__PARTITION_EOF: return p ? reach_end(r, p, m->offset, e) : 0;
    case RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART:
    case RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC:
    case RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION: r->is_gone = true; break;
    default: break;
    }
    if (kafka_error_reaction(m->err) != KAFKA_IGNORE)
        return ERR_SET_FLAGS(e, ERR_BROKER, ERR_FATAL, "Kafka: %s", rd_kafka_message_errstr(m));
    kafka_error_log_line(&r->error_log, m->err, rd_kafka_message_errstr(m));
    return 0;
}

/* Keeps the message when it is given out. */
static int serve(struct kafka_reader *r, rd_kafka_message_t *m, struct err *e)
{
    bool is_new = false;
    int code = 0;
    struct place *p = place_of(r, m->partition);
    if (m->err != RD_KAFKA_RESP_ERR_NO_ERROR)
        code = serve_event(r, p, m, e);
    else if (p) {
        p->is_at_end = false;
        code = admit(r, p, m, &is_new, e);
    }
    if (code == 0 && is_new)
        lend(r, m);
    else
        rd_kafka_message_destroy(m);
    return code;
}

int kafka_reader_poll(struct kafka_reader *r, int wait_ms, const struct kafka_read **out,
                      struct err *e)
{
    *out = NULL;
    if (r->message)
        rd_kafka_message_destroy(r->message);
    r->message = NULL;
    if (clock_mono_us() - r->looked_us > (r->is_gone ? REFRESH_US / 10 : REFRESH_US) ||
        (r->n_places == 0 && clock_mono_us() - r->looked_us > REFRESH_US / 10))
        TRY(look(r, e));
    rd_kafka_message_t *m = rd_kafka_consumer_poll(r->rk, wait_ms);
    if (!m)
        return 0;
    TRY(serve(r, m, e));
    if (r->message)
        *out = &r->read;
    return 0;
}

const struct result_position *kafka_reader_position(const struct kafka_reader *r,
                                                    int32_t partition)
{
    return &r->places[partition].position;
}

bool kafka_reader_has_topic(const struct kafka_reader *r)
{
    return r->n_places > 0 && !r->was_missing;
}

bool kafka_reader_is_at_end(const struct kafka_reader *r)
{
    bool all = r->n_places > 0 && !r->is_gone;
    for (size_t i = 0; i < r->n_places; i++)
        all &= r->places[i].is_at_end;
    return all;
}

/* ------------------------------------------------------------------ open, close */

static int make_handle(struct kafka_reader *r, const struct kafka_options *o, struct err *e)
{
    rd_kafka_conf_t *conf;
    TRY(kafka_conf_build(o, KAFKA_CONSUMER, &conf, e));
    rd_kafka_conf_set_opaque(conf, r);
    rd_kafka_conf_set_error_cb(conf, on_error);
    return kafka_conf_open_consumer(conf, &r->rk, e);
}

/* Somebody must answer once, so that a wrong address is told from an empty topic. */
static int find_broker(struct kafka_reader *r, const char *brokers, struct err *e)
{
    TRY(kafka_reach(r->rk, &r->error_log, brokers, e));
    const int64_t began_us = clock_mono_us();
    int n;
    while ((n = count_partitions(r)) < 0 && clock_mono_us() - began_us < FIRST_LOOK_UP_US)
        ;
    if (n < 0)
        return ERR_SET_FLAGS(e, ERR_BROKER, ERR_RETRY, "no Kafka broker answers at %s",
                             brokers);
    r->was_missing = n == 0;
    return n > 0 ? take_count(r, (size_t)n, e) : 0;
}

int kafka_reader_open(const struct kafka_options *o, const char *topic,
                      kafka_reader_start start, void *ctx, struct kafka_reader **out,
                      struct err *e)
{
    *out = NULL;
    struct kafka_reader *r = calloc(1, sizeof *r);
    if (!r)
        return ERR_SET(e, ERR_NOMEM, "no memory to read a topic");
    r->start = start;
    r->ctx = ctx;
    r->topic = strdup(topic);
    int code = r->topic ? 0 : ERR_SET(e, ERR_NOMEM, "no memory to read a topic");
    if (code == 0)
        code = make_handle(r, o, e);
    if (code == 0)
        code = find_broker(r, o->brokers, e);
    if (code != 0) {
        kafka_reader_close(r);
        return code;
    }
    *out = r;
    return 0;
}

void kafka_reader_close(struct kafka_reader *r)
{
    if (!r)
        return;
    if (r->message)
        rd_kafka_message_destroy(r->message);
    if (r->rk)
        rd_kafka_destroy_flags(r->rk, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
    free(r->places);
    free(r->topic);
    free(r);
}
