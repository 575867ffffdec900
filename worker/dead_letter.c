#include "dead_letter.h"

#include <assert.h>
#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/clock.h"

enum { ADDED_MAX = 32 };
static_assert(ERR_TEXT_BYTES <= 1024, "a message is 1 KiB at most");

/* The values of added headers: in one text, so found by where they begin. */
struct added {
    const char *name;
    size_t begin, length;
};
struct letter_writer {
    struct buf text;
    struct added items[ADDED_MAX];
    size_t n;
};

int dead_letter_parse_headers(const char *text, unsigned *out, struct err *e)
{
    static const struct {
        const char *name;
        unsigned headers;
    } names[] = {{"own", DEAD_LETTER_OWN},
                 {"connect", DEAD_LETTER_CONNECT},
                 {"spring", DEAD_LETTER_SPRING},
                 {"all", DEAD_LETTER_CONNECT | DEAD_LETTER_SPRING}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i].name, text) == 0) {
            *out = names[i].headers;
            return 0;
        }
    return ERR_SET(e, ERR_CONFIG, "dlq.headers=%s is not one of own, connect, spring, all",
                   text);
}

void dead_letter_fini(struct dead_letter *letter)
{
    free(letter->headers);
    free(letter->text);
    *letter = (struct dead_letter){0};
}

static void add_bytes(struct letter_writer *w, const char *name, const void *value, size_t n)
{
    ASSERT(w->n < ADDED_MAX);
    w->items[w->n++] = (struct added){.name = name, .begin = w->text.length, .length = n};
    buf_append(&w->text, value, n);
}

static void add_text(struct letter_writer *w, const char *name, const char *value)
{
    add_bytes(w, name, value, strlen(value));
}

static void add_number(struct letter_writer *w, const char *name, int64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    add_text(w, name, text);
}

static void add_now(struct letter_writer *w, const char *name)
{
    char utc[CLOCK_UTC_BYTES];
    add_text(w, name, clock_format_utc_ms(clock_wall_us(), utc));
}

static void add_own(struct letter_writer *w, const struct dead_letters *d,
                    const struct transport_output *o)
{
    add_text(w, "sheaf.error.code", o->error->code);
    add_text(w, "sheaf.error.message", o->error->message);
    add_number(w, "sheaf.error.attempts", o->attempts);
    add_text(w, "sheaf.error.worker", d->worker);
    add_now(w, "sheaf.error.timestamp");
    add_text(w, "sheaf.error.topic", o->source->topic);
    add_number(w, "sheaf.error.partition", o->source->partition);
    add_number(w, "sheaf.error.offset", o->source->offset);
    add_text(w, "sheaf.error.stage", o->stage);
    add_text(w, "sheaf.error.group", d->group);
    add_text(w, "sheaf.error.job_id", o->custom_id);
}

static void add_connect(struct letter_writer *w, const struct dead_letters *d,
                        const struct transport_output *o)
{
    add_text(w, "__connect.errors.topic", o->source->topic);
    add_number(w, "__connect.errors.partition", o->source->partition);
    add_number(w, "__connect.errors.offset", o->source->offset);
    add_text(w, "__connect.errors.connector.name", d->group);
    add_text(w, "__connect.errors.task.id", d->worker);
    add_text(w, "__connect.errors.stage", o->stage);
    add_text(w, "__connect.errors.class.name", "sheaf");
    add_text(w, "__connect.errors.exception.class.name", o->error->code);
    add_text(w, "__connect.errors.exception.message", o->error->message);
    add_text(w, "__connect.errors.exception.stacktrace", "");
}

static void add_spring(struct letter_writer *w, const struct dead_letters *d,
                       const struct transport_output *o)
{
    const uint32_t partition = htobe32((uint32_t)o->source->partition);
    const uint64_t offset = htobe64((uint64_t)o->source->offset);
    const uint64_t timestamp_ms = htobe64((uint64_t)(o->source->timestamp_us / 1000));
    add_text(w, "kafka_dlt-original-topic", o->source->topic);
    add_bytes(w, "kafka_dlt-original-partition", &partition, sizeof partition);
    add_bytes(w, "kafka_dlt-original-offset", &offset, sizeof offset);
    add_bytes(w, "kafka_dlt-original-timestamp", &timestamp_ms, sizeof timestamp_ms);
    add_text(w, "kafka_dlt-original-timestamp-type", "CreateTime");
    add_text(w, "kafka_dlt-original-consumer-group", d->group);
    add_text(w, "kafka_dlt-exception-fqcn", o->error->code);
    add_text(w, "kafka_dlt-exception-message", o->error->message);
}

static void list_headers(const struct job_record *record, const struct letter_writer *w,
                         const struct dead_letter *letter)
{
    size_t n = 0;
    for (size_t i = 0; i < record->n_headers; i++)
        letter->headers[n++] = (struct kafka_header){.name = record->headers[i].name,
                                                     .value = record->headers[i].value,
                                                     .length = record->headers[i].length};
    for (size_t i = 0; i < w->n; i++)
        letter->headers[n++] = (struct kafka_header){.name = w->items[i].name,
                                                     .value = letter->text + w->items[i].begin,
                                                     .length = w->items[i].length};
}

int dead_letter_make(const struct dead_letters *d, const struct transport_output *o,
                     struct dead_letter *letter, struct kafka_message *out, struct err *e)
{
    struct letter_writer w = {0};
    *letter = (struct dead_letter){0};
    add_own(&w, d, o);
    if (d->headers & DEAD_LETTER_CONNECT)
        add_connect(&w, d, o);
    if (d->headers & DEAD_LETTER_SPRING)
        add_spring(&w, d, o);
    letter->headers = calloc(o->record->n_headers + w.n, sizeof letter->headers[0]);
    letter->text = buf_take(&w.text);
    if (!letter->headers || !letter->text) {
        dead_letter_fini(letter);
        return ERR_SET_FLAGS(e, ERR_NOMEM, ERR_RETRY, "no memory for a dead letter");
    }
    list_headers(o->record, &w, letter);
    *out = (struct kafka_message){.topic = d->topic,
                                  .key = o->record->key,
                                  .key_length = o->record->key_length,
                                  .value = o->record->value,
                                  .value_length = o->record->value_length,
                                  .headers = letter->headers,
                                  .n_headers = o->record->n_headers + w.n};
    return 0;
}
