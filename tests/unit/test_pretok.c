/* How pre-tokenizers cut text, against another engine of regular expressions
 * (tests/golden/pretok.md). Byte-level BPE never merges across these borders. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "golden.h"
#include "model/tokenizer_int.h"

static struct pretok open_pretok(const char *name)
{
    struct pretok p = {0};
    struct pretok_traits traits;
    struct err e = {0};
    if (pretok_open(&p, name, strlen(name), &traits, &e) != 0)
        fail_msg("%s: %s", name, e.text);
    return p;
}

struct expected {
    const char *pre, *text;
    const json_t *pieces;
    size_t seen;
};

static int compare_piece(void *context, const char *text, size_t length, struct err *e)
{
    (void)e;
    struct expected *x = context;
    const json_t *piece = json_array_get(x->pieces, x->seen++);
    if (json_string_length(piece) != length ||
        memcmp(json_string_value(piece), text, length) != 0)
        fail_msg("%s: of \"%s\" piece %zu is \"%.*s\", not \"%s\"", x->pre, x->text, x->seen,
                 (int)length, text, piece ? json_string_value(piece) : "");
    return 0;
}

static void texts_are_cut_as_the_published_patterns_cut_them(void **state)
{
    (void)state;
    char *path = golden_path("golden/pretok.json");
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, NULL);
    assert_non_null(root);
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(root); i++) {
        const json_t *family = json_array_get(root, i);
        const json_t *cases = json_object_get(family, "cases");
        struct expected x = {.pre = json_string_value(json_object_get(family, "pre"))};
        struct pretok p = open_pretok(x.pre);
        for (size_t c = 0; c < json_array_size(cases); c++, n++) {
            const json_t *text = json_object_get(json_array_get(cases, c), "text");
            x.text = json_string_value(text);
            x.pieces = json_object_get(json_array_get(cases, c), "pieces");
            x.seen = 0;
            assert_int_equal(
                pretok_split(&p, x.text, json_string_length(text), compare_piece, &x, NULL), 0);
            assert_int_equal(x.seen, json_array_size(x.pieces));
        }
        pretok_close(&p);
    }
    assert_int_equal(n, 5 * 38);
    json_decref(root);
    free(path);
}

static int refuse_third(void *context, const char *text, size_t length, struct err *e)
{
    (void)text;
    (void)length;
    size_t *n = context;
    return ++*n == 3 ? ERR_SET(e, ERR_NOMEM, "enough") : 0;
}

static void an_error_of_the_receiver_stops_the_cutting_and_is_handed_on(void **state)
{
    (void)state;
    struct pretok p = open_pretok("smollm");
    struct err e = {0};
    size_t n = 0;
    assert_int_equal(pretok_split(&p, "a b c d e f", 11, refuse_third, &n, &e), ERR_NOMEM);
    assert_int_equal(n, 3);
    assert_string_equal(e.text, "enough");
    pretok_close(&p);
}

static void only_the_llama_3_family_takes_whole_pieces_and_wants_a_beginning(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool is_llama3;
    } names[] = {{"gpt-2", false}, {"smollm", false}, {"llama-bpe", true},
                 {"dbrx", false},  {"qwen2", false},  {"default", false}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct pretok p = {0};
        struct pretok_traits traits;
        assert_int_equal(pretok_open(&p, names[i].name, strlen(names[i].name), &traits, NULL),
                         0);
        assert_int_equal(traits.ignore_merges, names[i].is_llama3);
        assert_int_equal(traits.add_bos, names[i].is_llama3);
        pretok_close(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_cut_as_the_published_patterns_cut_them),
        cmocka_unit_test(an_error_of_the_receiver_stops_the_cutting_and_is_handed_on),
        cmocka_unit_test(only_the_llama_3_family_takes_whole_pieces_and_wants_a_beginning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
