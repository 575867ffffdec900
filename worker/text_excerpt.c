#include "text_excerpt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "result.h"
#include "utf8.h"

enum { TOKENS_MAX = 256, BYTES_MAX = 65536 }; /* looked at for one excerpt */

static void append_pieces(const struct tokenizer *tok, const int32_t *tokens, size_t start,
                          size_t end, struct buf *out)
{
    bool text_start = start == 0;
    for (size_t i = start; i < end && out->length < BYTES_MAX; i++) {
        const struct gguf_str piece = tokenizer_next_piece(tok, tokens[i], &text_start);
        buf_append(out, piece.data, piece.length);
    }
}

/* Where the first n characters of valid UTF-8 end. */
static size_t pass_chars(const char *text, size_t length, size_t n)
{
    size_t at = 0;
    bool valid;
    for (; n > 0 && at < length; n--)
        at += utf8_measure_char(text + at, length - at, &valid);
    return at;
}

static size_t count_chars(const char *text, size_t length)
{
    size_t n = 0;
    for (size_t at = 0; at < length; n++)
        at += pass_chars(text + at, length - at, 1);
    return n;
}

char *excerpt_text(const struct tokenizer *tok, const int32_t *tokens, size_t start, size_t end,
                   size_t chars_max, bool keep_last, size_t *length, bool *cut)
{
    const bool is_long = end - start > TOKENS_MAX;
    if (is_long && keep_last)
        start = end - TOKENS_MAX;
    else if (is_long)
        end = start + TOKENS_MAX;
    struct buf bytes = {0};
    buf_append(&bytes, "", 0);
    append_pieces(tok, tokens, start, end, &bytes);
    char *text = buf_ok(&bytes) ? result_clean_utf8(bytes.data, bytes.length, length) : NULL;
    buf_fini(&bytes);
    if (!text)
        return NULL;
    const size_t n = count_chars(text, *length);
    *cut = is_long || n > chars_max;
    if (n <= chars_max)
        return text;
    if (keep_last) {
        const size_t from = pass_chars(text, *length, n - chars_max);
        *length -= from;
        memmove(text, text + from, *length);
    } else {
        *length = pass_chars(text, *length, chars_max);
    }
    text[*length] = '\0';
    return text;
}

static uint32_t char_code(const char *text, size_t length)
{
    static const unsigned char lead_mask[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    uint32_t code = (unsigned char)text[0] & lead_mask[length];
    for (size_t i = 1; i < length; i++)
        code = code << 6 | ((unsigned char)text[i] & 0x3f);
    return code;
}

static bool is_hidden(uint32_t code)
{
    return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0xad ||
           (code >= 0x200b && code <= 0x200f) || (code >= 0x2028 && code <= 0x202e) ||
           (code >= 0x2060 && code <= 0x206f) || code == 0x061c || code == 0xfeff ||
           code >= 0xe0000;
}

static void write_char(FILE *out, const char *text, size_t length)
{
    const uint32_t code = char_code(text, length);
    if (code == '\n')
        fputs("\\n", out);
    else if (code == '\t')
        fputs("\\t", out);
    else if (code == '\\')
        fputs("\\\\", out);
    else if (is_hidden(code))
        fprintf(out, "\\u{%x}", code);
    else
        fwrite(text, 1, length, out);
}

void excerpt_write(FILE *out, const char *text, size_t length)
{
    for (size_t at = 0; at < length;) {
        bool valid;
        const size_t n = utf8_measure_char(text + at, length - at, &valid);
        if (valid)
            write_char(out, text + at, n);
        else
            fputs("\xef\xbf\xbd", out);
        at += n;
    }
}

void excerpt_print(const char *text, size_t length)
{
    excerpt_write(stdout, text, length);
}
