#include "io/offset_metadata.h"

#include <string.h>

#include "base/check.h"

enum { KIND_BITMAP, KIND_RUNS };
enum {
    CRC_AT = 1,
    BASE_AT = CRC_AT + 4,
    COUNT_AT = BASE_AT + 8,
    BYTES_MAX = OFFSET_METADATA_HEAD_BYTES + OFFSET_BITS_BYTES,
};
static const char PREFIX[] = "shf1.";
enum { PREFIX_LENGTH = sizeof PREFIX - 1 };

/* ------------------------------------------------------------------ crc32c, base64url */

/* Castagnoli's polynomial, bits reversed. Texts are short and seldom, so no table. */
static uint32_t crc32c_add(uint32_t crc, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? UINT32_C(0x82f63b78) : 0);
    }
    return crc;
}

static uint32_t crc_of(const uint8_t *bytes, size_t n)
{
    const uint32_t crc = crc32c_add(UINT32_MAX, bytes, CRC_AT);
    return ~crc32c_add(crc, bytes + BASE_AT, n - BASE_AT);
}

static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

static size_t base64_encode(const uint8_t *bytes, size_t n, char *out)
{
    uint32_t group = 0;
    unsigned n_bits = 0;
    size_t length = 0;
    for (size_t i = 0; i < n; i++) {
        group = group << 8 | bytes[i];
        n_bits += 8;
        for (; n_bits >= 6; n_bits -= 6)
            out[length++] = DIGITS[group >> (n_bits - 6) & 63];
    }
    if (n_bits > 0)
        out[length++] = DIGITS[group << (6 - n_bits) & 63];
    return length;
}

/* False for a foreign character, bits left over that are set, or more than BYTES_MAX bytes. */
static bool base64_decode(const char *text, size_t length, uint8_t bytes[BYTES_MAX], size_t *n)
{
    uint32_t group = 0;
    unsigned n_bits = 0;
    *n = 0;
    for (size_t i = 0; i < length; i++) {
        const char *digit = text[i] ? strchr(DIGITS, text[i]) : NULL;
        if (!digit)
            return false;
        group = group << 6 | (uint32_t)(digit - DIGITS);
        n_bits += 6;
        if (n_bits < 8)
            continue;
        n_bits -= 8;
        if (*n == BYTES_MAX)
            return false;
        bytes[(*n)++] = (uint8_t)(group >> n_bits);
    }
    return n_bits < 6 && (group & ((1u << n_bits) - 1)) == 0;
}

/* ------------------------------------------------------------------ numbers */

static void put_le(uint8_t *at, uint64_t value, size_t n)
{
    for (size_t i = 0; i < n; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

static uint64_t get_le(const uint8_t *at, size_t n)
{
    uint64_t value = 0;
    for (size_t i = 0; i < n; i++)
        value |= (uint64_t)at[i] << 8 * i;
    return value;
}

static size_t put_varint(uint8_t *at, size_t value)
{
    size_t n = 0;
    for (; value >= 128; value >>= 7)
        at[n++] = (uint8_t)(value | 128);
    at[n++] = (uint8_t)value;
    return n;
}

/* Bytes that are still to be read. */
struct reader {
    const uint8_t *at;
    size_t left;
};

/* Three bytes at most, and none more than needed: every number has one form. */
static bool get_varint(struct reader *r, size_t *value)
{
    *value = 0;
    for (unsigned i = 0; i < 3 && r->left > 0; i++) {
        const uint8_t byte = *r->at++;
        r->left--;
        *value |= (size_t)(byte & 127) << 7 * i;
        if (byte < 128)
            return byte != 0 || i == 0;
    }
    return false;
}

/* ------------------------------------------------------------------ bits */

static bool is_set(const struct offset_bits *b, size_t i)
{
    return b->bits[i / 8] >> (i % 8) & 1;
}

bool offset_bits_has(const struct offset_bits *b, int64_t offset)
{
    if (offset < b->base)
        return true;
    const size_t i = (size_t)(offset - b->base);
    return i < b->n_bits && is_set(b, i);
}

static void drop_first(struct offset_bits *b, size_t n)
{
    for (size_t i = 0; i < OFFSET_BITS_BYTES; i++) {
        const size_t from = i + n / 8;
        const unsigned low = from < OFFSET_BITS_BYTES ? b->bits[from] : 0;
        const unsigned high = from + 1 < OFFSET_BITS_BYTES ? b->bits[from + 1] : 0;
        b->bits[i] = (uint8_t)((low | high << 8) >> n % 8);
    }
    b->base += (int64_t)n;
    b->n_bits -= n;
}

void offset_bits_settle(struct offset_bits *b, int64_t offset)
{
    ASSERT(offset >= b->base && offset - b->base < INFLIGHT_SPAN_MAX);
    const size_t i = (size_t)(offset - b->base);
    b->bits[i / 8] |= (uint8_t)(1u << i % 8);
    if (i >= b->n_bits)
        b->n_bits = i + 1;
    size_t n = 0;
    while (n < b->n_bits && is_set(b, n))
        n++;
    if (n > 0)
        drop_first(b, n);
}

static size_t end_of_run(const struct offset_bits *b, size_t from)
{
    size_t end = from + 1;
    while (end < b->n_bits && is_set(b, end) == is_set(b, from))
        end++;
    return end;
}

/* Returns the bytes; 0 when they are more than max. */
static size_t put_runs(const struct offset_bits *b, uint8_t *at, size_t max)
{
    size_t n = 0;
    for (size_t i = 0; i < b->n_bits;) {
        const size_t end = end_of_run(b, i);
        uint8_t varint[3];
        const size_t n_bytes = put_varint(varint, end - i);
        if (n + n_bytes > max)
            return 0;
        memcpy(at + n, varint, n_bytes);
        n += n_bytes;
        i = end;
    }
    return n;
}

static const char *get_runs(struct reader *r, struct offset_bits *out)
{
    size_t i = 0;
    for (bool set = false; i < out->n_bits; set = !set) {
        size_t length;
        if (!get_varint(r, &length) || length == 0 || length > out->n_bits - i)
            return "a run is no length";
        for (const size_t end = i + length; i < end; i++)
            out->bits[i / 8] |= (uint8_t)(set << i % 8);
    }
    return r->left == 0 ? NULL : "more follows the runs";
}

static const char *get_bitmap(const struct reader *r, struct offset_bits *out)
{
    if (r->left != (out->n_bits + 7) / 8)
        return "the bitmap has another length";
    memcpy(out->bits, r->at, r->left);
    const unsigned n_last = (unsigned)(out->n_bits % 8);
    if (n_last > 0 && out->bits[r->left - 1] >> n_last != 0)
        return "bits follow the last one";
    return NULL;
}

/* ------------------------------------------------------------------ the text */

size_t offset_metadata_encode(const struct offset_bits *settled,
                              char out[OFFSET_METADATA_MAX + 1])
{
    struct offset_bits b = *settled;
    ASSERT(b.n_bits <= INFLIGHT_SPAN_MAX && b.base >= 0);
    while (b.n_bits > 0 && !is_set(&b, b.n_bits - 1))
        b.n_bits--;
    *out = '\0';
    if (b.n_bits == 0)
        return 0;
    ASSERT(!is_set(&b, 0));
    uint8_t bytes[BYTES_MAX];
    put_le(bytes + BASE_AT, (uint64_t)b.base, 8);
    size_t n = COUNT_AT + put_varint(bytes + COUNT_AT, b.n_bits);
    const size_t n_bitmap = (b.n_bits + 7) / 8;
    const size_t n_runs = put_runs(&b, bytes + n, n_bitmap - 1);
    bytes[0] = n_runs > 0 ? KIND_RUNS : KIND_BITMAP;
    if (n_runs == 0)
        memcpy(bytes + n, b.bits, n_bitmap);
    n += n_runs > 0 ? n_runs : n_bitmap;
    put_le(bytes + CRC_AT, crc_of(bytes, n), 4);
    memcpy(out, PREFIX, PREFIX_LENGTH);
    const size_t length = PREFIX_LENGTH + base64_encode(bytes, n, out + PREFIX_LENGTH);
    out[length] = '\0';
    return length;
}

static const char *decode_bytes(const uint8_t *bytes, size_t n, struct offset_bits *out)
{
    if (n < COUNT_AT + 1)
        return "it is cut short";
    if (get_le(bytes + CRC_AT, 4) != crc_of(bytes, n))
        return "its checksum is wrong";
    if (get_le(bytes + BASE_AT, 8) != (uint64_t)out->base)
        return "it belongs to another offset";
    struct reader r = {bytes + COUNT_AT, n - COUNT_AT};
    if (!get_varint(&r, &out->n_bits) || out->n_bits < 2 || out->n_bits > INFLIGHT_SPAN_MAX)
        return "its number of offsets is out of range";
    if (bytes[0] != KIND_BITMAP && bytes[0] != KIND_RUNS)
        return "it is of an unknown kind";
    const char *why = bytes[0] == KIND_RUNS ? get_runs(&r, out) : get_bitmap(&r, out);
    if (!why && (is_set(out, 0) || !is_set(out, out->n_bits - 1)))
        why = "its first or last offset cannot be so";
    return why;
}

const char *offset_metadata_decode(const char *text, size_t length, int64_t base,
                                   struct offset_bits *out)
{
    *out = (struct offset_bits){.base = base};
    if (length == 0)
        return NULL;
    uint8_t bytes[BYTES_MAX];
    size_t n;
    const char *why;
    if (length < PREFIX_LENGTH || memcmp(text, PREFIX, PREFIX_LENGTH) != 0)
        why = "it is not Sheaf's";
    else if (!base64_decode(text + PREFIX_LENGTH, length - PREFIX_LENGTH, bytes, &n))
        why = "it is not base64url of the right length";
    else
        why = decode_bytes(bytes, n, out);
    if (why)
        *out = (struct offset_bits){.base = base};
    return why;
}
