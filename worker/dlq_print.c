#include "dlq_print.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "base/clock.h"
#include "base/limits.h"
#include "result.h"
#include "text_excerpt.h"
#include "utf8.h"

enum {
    ID_CHARS = 24,
    CODE_CHARS = 22,
    ORIGIN_CHARS = 28,
    MESSAGE_CHARS = 200,
    TIME_CHARS = 24,
    HEADER_CHARS = 1024, /* of one header on stderr */
    HEADERS_MAX = 1000,  /* on stderr */
    TEXT_BYTES_MAX = 4096,
};

static const char *const state_names[] = {[LETTER_OPEN] = "open",
                                          [LETTER_REDRIVEN] = "redriven",
                                          [LETTER_ELSEWHERE] = "elsewhere",
                                          [LETTER_FOREIGN] = "foreign"};

/* ------------------------------------------------------------------ a table */

/* How many bytes the first chars_max characters take, and how many characters there are. */
static size_t cut(const char *text, size_t length, size_t chars_max, size_t *n_chars)
{
    size_t at = 0;
    bool valid;
    for (*n_chars = 0; at < length && *n_chars < chars_max; ++*n_chars)
        at += utf8_measure_char(text + at, length - at, &valid);
    return at;
}

static void pad(size_t n_chars, size_t width)
{
    printf("%*s", (int)(n_chars < width ? width - n_chars : 0) + 2, "");
}

static void print_cell(const char *text, size_t length, size_t width)
{
    size_t n_chars;
    const size_t shown = cut(text, length, width, &n_chars);
    if (shown < length) {
        excerpt_print(text, cut(text, length, width - 1, &n_chars));
        fputs("\xe2\x80\xa6", stdout);
        n_chars++;
    } else {
        excerpt_print(text, shown);
    }
    pad(n_chars, width);
}

static void print_header_cell(const struct dlq_letter *letter, const char *name, size_t width)
{
    struct kafka_header h;
    if (dlq_letter_header(letter, name, &h))
        print_cell(h.value, h.length, width);
    else
        print_cell("-", 1, width);
}

static void print_place(const struct dlq_letter *letter)
{
    char place[48];
    const int n =
        snprintf(place, sizeof place, "%d/%lld", letter->partition, (long long)letter->offset);
    print_cell(place, (size_t)n, 10);
}

/* When the job failed, as its worker says, else when the letter was written. */
static void print_time(const struct dlq_letter *letter)
{
    struct kafka_header h;
    char utc[CLOCK_UTC_BYTES];
    if (dlq_letter_header(letter, "sheaf.error.timestamp", &h)) {
        print_cell(h.value, h.length, TIME_CHARS);
    } else {
        clock_format_utc(letter->timestamp_us, utc);
        print_cell(utc, strlen(utc), TIME_CHARS);
    }
}

/* topic/partition/offset as the headers say; returns the length. */
static size_t read_origin(const struct dlq_letter *letter, char *out, size_t capacity)
{
    static const char *const names[] = {"sheaf.error.topic", "sheaf.error.partition",
                                        "sheaf.error.offset"};
    size_t n = 0;
    for (size_t i = 0; i < 3; i++) {
        struct kafka_header h;
        if (!dlq_letter_header(letter, names[i], &h) || n + h.length + 1 >= capacity)
            return (size_t)snprintf(out, capacity, "-");
        if (i > 0)
            out[n++] = '/';
        memcpy(out + n, h.value, h.length);
        n += h.length;
    }
    return n;
}

void dlq_print_titles(void)
{
    printf("%-10s  %-24s  %-*s  %-*s  %-9s  %-*s  %s\n", "place", "time", ID_CHARS, "job",
           CODE_CHARS, "code", "state", ORIGIN_CHARS, "from", "message");
}

void dlq_print_row(const struct dlq_letter *letter)
{
    char origin[TOPIC_NAME_BYTES_MAX + 64];
    print_place(letter);
    print_time(letter);
    print_header_cell(letter, "sheaf.error.job_id", ID_CHARS);
    print_header_cell(letter, "sheaf.error.code", CODE_CHARS);
    print_cell(state_names[letter->state], strlen(state_names[letter->state]), 9);
    print_cell(origin, read_origin(letter, origin, sizeof origin), ORIGIN_CHARS);
    struct kafka_header h;
    size_t n_chars;
    if (dlq_letter_header(letter, "sheaf.error.message", &h))
        excerpt_print(h.value, cut(h.value, h.length, MESSAGE_CHARS, &n_chars));
    putchar('\n');
}

void dlq_print_headers(const struct dlq_letter *letter)
{
    struct kafka_header h;
    size_t n_chars;
    if (letter->key) {
        fputs("key: ", stderr);
        excerpt_write(stderr, letter->key,
                      cut(letter->key, letter->key_length, HEADER_CHARS, &n_chars));
        fputc('\n', stderr);
    }
    for (size_t i = 0; i < HEADERS_MAX && dlq_letter_header_at(letter, i, &h); i++) {
        excerpt_write(stderr, h.name, cut(h.name, strlen(h.name), HEADER_CHARS, &n_chars));
        fputs(": ", stderr);
        if (h.value)
            excerpt_write(stderr, h.value, cut(h.value, h.length, HEADER_CHARS, &n_chars));
        fputs(h.value ? "\n" : "(null)\n", stderr);
    }
}

/* ------------------------------------------------------------------ JSON */

/* Text under its name; bytes that are none as base64 under NAME_base64. False: no memory. */
static bool set_bytes(json_t *object, const char *name, const void *bytes, size_t length)
{
    if (!bytes)
        return json_object_set_new(object, name, json_null()) == 0;
    json_t *text = json_stringn(bytes, length);
    if (text)
        return json_object_set_new(object, name, text) == 0;
    char key[64];
    snprintf(key, sizeof key, "%s_base64", name);
    char *encoded = base64_encode(bytes, length);
    const bool is_set = encoded && json_object_set_new(object, key, json_string(encoded)) == 0;
    free(encoded);
    return is_set;
}

/* A header that is always text, of bounded length; absent ones are null. */
static json_t *header_text(const struct dlq_letter *letter, const char *name)
{
    struct kafka_header h;
    if (!dlq_letter_header(letter, name, &h))
        return json_null();
    size_t length;
    char *clean = result_clean_utf8(
        h.value, h.length < TEXT_BYTES_MAX ? h.length : TEXT_BYTES_MAX, &length);
    json_t *text = clean ? json_stringn(clean, length) : NULL;
    free(clean);
    return text;
}

/* Digits are a number. */
static json_t *header_number(const struct dlq_letter *letter, const char *name)
{
    struct kafka_header h;
    char digits[24];
    if (!dlq_letter_header(letter, name, &h) || h.length == 0 || h.length > 18)
        return json_null();
    memcpy(digits, h.value, h.length);
    digits[h.length] = '\0';
    if (strspn(digits, "0123456789") != h.length)
        return json_null();
    return json_integer(strtoll(digits, NULL, 10));
}

static json_t *time_of(const struct dlq_letter *letter)
{
    char utc[CLOCK_UTC_BYTES];
    return letter->timestamp_us > 0 ? json_string(clock_format_utc(letter->timestamp_us, utc))
                                    : json_null();
}

/* Takes object. */
static int print_object(json_t *object, bool is_whole, struct err *e)
{
    if (!object || !is_whole) {
        json_decref(object);
        return ERR_SET(e, ERR_NOMEM, "no memory for a dead letter as JSON");
    }
    json_dumpf(object, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(object);
    return 0;
}

int dlq_print_row_json(const struct dlq_letter *letter, struct err *e)
{
    json_t *row = json_pack(
        "{s:i, s:I, s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:{s:o, s:o, s:o}, s:I}",
        "partition", letter->partition, "offset", (json_int_t)letter->offset, "written_at",
        time_of(letter), "state", state_names[letter->state], "job_id",
        header_text(letter, "sheaf.error.job_id"), "code",
        header_text(letter, "sheaf.error.code"), "message",
        header_text(letter, "sheaf.error.message"), "failed_at",
        header_text(letter, "sheaf.error.timestamp"), "stage",
        header_text(letter, "sheaf.error.stage"), "attempts",
        header_number(letter, "sheaf.error.attempts"), "worker",
        header_text(letter, "sheaf.error.worker"), "group",
        header_text(letter, "sheaf.error.group"), "from", "topic",
        header_text(letter, "sheaf.error.topic"), "partition",
        header_number(letter, "sheaf.error.partition"), "offset",
        header_number(letter, "sheaf.error.offset"), "value_bytes",
        (json_int_t)letter->value_length);
    return print_object(row, true, e);
}

static bool add_header(json_t *list, const struct kafka_header *h)
{
    json_t *object = json_object();
    if (object && set_bytes(object, "name", h->name, strlen(h->name)) &&
        set_bytes(object, "value", h->value, h->length))
        return json_array_append_new(list, object) == 0;
    json_decref(object);
    return false;
}

int dlq_print_letter_json(const struct dlq_letter *letter, const char *topic, struct err *e)
{
    json_t *root =
        json_pack("{s:s, s:i, s:I, s:o, s:s}", "topic", topic, "partition", letter->partition,
                  "offset", (json_int_t)letter->offset, "written_at", time_of(letter), "state",
                  state_names[letter->state]);
    json_t *headers = json_array();
    bool is_whole = root && headers;
    struct kafka_header h;
    for (size_t i = 0; is_whole && dlq_letter_header_at(letter, i, &h); i++)
        is_whole = add_header(headers, &h);
    is_whole = is_whole && set_bytes(root, "key", letter->key, letter->key_length) &&
               set_bytes(root, "value", letter->value, letter->value_length) &&
               json_object_set(root, "headers", headers) == 0;
    json_decref(headers);
    return print_object(root, is_whole, e);
}
