#include "text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void die(const char *what, const struct err *e)
{
    fprintf(stderr, "%s: %s\n", what, e->text);
    exit(99);
}

struct model *text_open_vocab(const char *path)
{
    struct model *m = NULL;
    struct err e = {0};
    if (model_open_vocab(path, &m, &e) != 0)
        die(path, &e);
    return m;
}

struct token_list text_encode(const struct tokenizer *tok, const char *text, size_t length,
                              bool special, bool add_bos)
{
    const struct token_span span = {text, length, special};
    struct token_list ids = {0};
    struct err e = {0};
    if (tokenizer_encode(tok, &span, 1, add_bos, &ids, &e) != 0)
        die("encoding", &e);
    return ids;
}

struct buf text_decode(const struct tokenizer *tok, const struct token_list *ids)
{
    struct buf out = {0};
    struct err e = {0};
    if (tokenizer_decode(tok, ids->ids, ids->length, &out, &e) != 0)
        die("decoding", &e);
    return out;
}

size_t text_check_round_trip(const struct tokenizer *tok, const char *text, size_t length,
                             const char *what)
{
    struct token_list ids = text_encode(tok, text, length, false, false);
    struct buf back = text_decode(tok, &ids);
    if (back.length != length || (length > 0 && memcmp(back.data, text, length) != 0))
        fail_msg("%s: %zu bytes came back as %zu others, by %zu tokens", what, length,
                 back.length, ids.length);
    const size_t n = ids.length;
    buf_fini(&back);
    token_list_fini(&ids);
    return n;
}

void text_check_ids(const struct token_list *got, const int32_t *want, size_t n_want,
                    const char *what)
{
    for (size_t i = 0; i < got->length && i < n_want; i++)
        if (got->ids[i] != want[i])
            fail_msg("%s: token %zu is %d, not %d", what, i, got->ids[i], want[i]);
    if (got->length != n_want)
        fail_msg("%s: %zu tokens, not %zu", what, got->length, n_want);
}
