#include "json_scan.h"

#include <stdint.h>
#include <string.h>

#include "base/limits.h"
#include "utf8.h"

struct scanner {
    const char *bytes;
    size_t length;
    size_t at;
    size_t depth;
    bool top_is_object;
    char before;     /* last byte outside strings that was not a space */
    bool id_follows; /* the key just read at depth 1 was custom_id */
    size_t ids;      /* custom_id keys seen */
    bool allows_nul;
    struct json_scan *out;
};

static void fault(struct scanner *s, const char *code, size_t offset, const char *text)
{
    if (s->out->code)
        return;
    s->out->code = code;
    s->out->offset = offset;
    s->out->text = text;
}

/* Steps over one byte or character that is not ASCII; false when it is no UTF-8. */
static bool skip_char(struct scanner *s)
{
    bool valid = false;
    const size_t n = utf8_measure_char(s->bytes + s->at, s->length - s->at, &valid);
    if (!valid)
        fault(s, "invalid_utf8", s->at, "the bytes here are not UTF-8");
    s->at += n;
    return valid;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* The number in \uXXXX at offset, or -1 when there is none. */
static int32_t unicode_escape(const struct scanner *s, size_t offset)
{
    if (s->length < 6 || offset > s->length - 6 || s->bytes[offset] != '\\' ||
        s->bytes[offset + 1] != 'u')
        return -1;
    int32_t value = 0;
    for (size_t i = 2; i < 6; i++) {
        const int digit = hex_digit(s->bytes[offset + i]);
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* Steps over an escape; a wrong one is left to Jansson. */
static void skip_escape(struct scanner *s)
{
    const int32_t value = unicode_escape(s, s->at);
    if (value < 0) {
        s->at += s->at + 1 < s->length && (unsigned char)s->bytes[s->at + 1] < 0x80 ? 2 : 1;
        return;
    }
    size_t n = 6;
    if (value == 0 && !s->allows_nul)
        fault(s, "invalid_value", s->at, "\\u0000 here: text with NUL characters is refused");
    if (value >= 0xd800 && value <= 0xdbff) {
        const int32_t low = unicode_escape(s, s->at + 6);
        if (low >= 0xdc00 && low <= 0xdfff)
            n = 12;
        else
            fault(s, "invalid_utf8", s->at, "half of a surrogate pair stands alone here");
    } else if (value >= 0xdc00 && value <= 0xdfff) {
        fault(s, "invalid_utf8", s->at, "half of a surrogate pair stands alone here");
    }
    s->at += n;
}

/* Steps over a string's content and closing quote. Returns whether it is plain: closed, no
 * escape, no fault. */
static bool skip_string(struct scanner *s)
{
    bool plain = true;
    while (s->at < s->length) {
        const unsigned char c = (unsigned char)s->bytes[s->at];
        if (c == '"') {
            s->at++;
            return plain;
        }
        if (c == '\\') {
            skip_escape(s);
            plain = false;
        } else if (c == 0) {
            fault(s, "invalid_json_line", s->at, "a NUL byte");
            s->at++;
            plain = false;
        } else if (c >= 0x80) {
            plain = skip_char(s) && plain;
        } else {
            plain = plain && c >= 0x20;
            s->at++;
        }
    }
    return false;
}

static void note_id(struct scanner *s, size_t begin, size_t end, bool plain)
{
    struct json_scan *out = s->out;
    out->has_id = s->ids == 1 && plain && end > begin && end - begin <= JOB_ID_BYTES_MAX;
    out->id_offset = begin;
    out->id_length = end - begin;
}

static void scan_string(struct scanner *s)
{
    static const char id_key[] = "custom_id";
    const size_t begin = ++s->at;
    const bool plain = skip_string(s);
    const size_t end = plain ? s->at - 1 : s->at;
    if (s->depth == 1 && s->top_is_object) {
        if (s->before == ':') {
            if (s->id_follows)
                note_id(s, begin, end, plain);
            s->id_follows = false;
        } else {
            s->id_follows = plain && end - begin == sizeof id_key - 1 &&
                            memcmp(s->bytes + begin, id_key, sizeof id_key - 1) == 0;
            s->ids += s->id_follows;
            s->out->has_id = s->out->has_id && !s->id_follows;
        }
    }
    s->before = '"';
}

static bool is_number_byte(char c)
{
    return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

static void scan_number(struct scanner *s)
{
    const size_t begin = s->at;
    while (s->at < s->length && is_number_byte(s->bytes[s->at]))
        s->at++;
    if (s->at - begin > JOB_NUMBER_BYTES_MAX)
        fault(s, "invalid_value", begin, "a number of more than 64 bytes");
    s->before = '0';
}

static void scan_open(struct scanner *s)
{
    if (s->depth == 0)
        s->top_is_object = s->bytes[s->at] == '{';
    if (++s->depth > JOB_JSON_DEPTH_MAX)
        fault(s, "invalid_json_line", s->at, "nesting deeper than 64 levels");
    s->before = s->bytes[s->at++];
}

static void scan_other(struct scanner *s)
{
    const unsigned char c = (unsigned char)s->bytes[s->at];
    if (c >= 0x80) {
        skip_char(s);
        s->before = '?';
        return;
    }
    if (c == 0)
        fault(s, "invalid_json_line", s->at, "a NUL byte");
    if ((c == '}' || c == ']') && s->depth > 0)
        s->depth--;
    if (c != ' ' && c != '\t' && c != '\r' && c != '\n')
        s->before = (char)c;
    s->at++;
}

static void scan(struct scanner *s)
{
    *s->out = (struct json_scan){0};
    while (s->at < s->length) {
        const char c = s->bytes[s->at];
        if (c == '"')
            scan_string(s);
        else if (c == '{' || c == '[')
            scan_open(s);
        else if ((c >= '0' && c <= '9') || c == '-')
            scan_number(s);
        else
            scan_other(s);
    }
}

void json_scan_text(const char *bytes, size_t length, struct json_scan *out)
{
    struct scanner s = {.bytes = bytes, .length = length, .out = out};
    scan(&s);
}

void json_scan_answer(const char *bytes, size_t length, struct json_scan *out)
{
    struct scanner s = {.bytes = bytes, .length = length, .allows_nul = true, .out = out};
    scan(&s);
}

static_assert(JOB_JSON_DEPTH_MAX == 64 && JOB_NUMBER_BYTES_MAX == 64,
              "the sentences above name the limits");
