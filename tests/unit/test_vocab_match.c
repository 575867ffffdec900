/* Vocabularies that are the same by every id, and the first id where two are not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/vocab_match.h"
#include "small_vocab.h"

/* The bytes, a word (256), a control token (257), an end (258), and what is given. */
struct vocab {
    const char *word;
    int32_t kind; /* of 257 */
    int32_t eos;
    const char *more[3];
    int32_t more_kind;
};

static const struct vocab plain = {.word = "lo", .kind = SMALL_CONTROL, .eos = 258};

static struct tokenizer *open_vocab(const struct vocab *x)
{
    struct small_vocab v = {.n = 0};
    small_vocab_add_bpe_bytes(&v);
    small_vocab_add(&v, x->word, SMALL_NORMAL, 0);
    small_vocab_add(&v, "<mark>", x->kind, 0);
    small_vocab_add(&v, "<the end>", SMALL_CONTROL, 0);
    for (size_t i = 0; i < 3 && x->more[i]; i++)
        small_vocab_add(&v, x->more[i], x->more_kind, 0);
    struct gguf_builder b;
    small_vocab_write(&v, "gpt2", &b);
    builder_string(&b, "tokenizer.ggml.pre", "gpt-2");
    const char *const merges[] = {"l o"};
    builder_strings(&b, "tokenizer.ggml.merges", merges, 1);
    builder_u32(&b, "tokenizer.ggml.eos_token_id", (uint32_t)x->eos);
    struct tokenizer *tok = NULL;
    struct err e = {0};
    if (small_vocab_open(&b, &tok, &e) != 0)
        fail_msg("%s", e.text);
    small_vocab_fini(&v);
    return tok;
}

/* says NULL: they match. */
static void check(const struct vocab *target, const struct vocab *drafting, const char *says)
{
    struct tokenizer *a = open_vocab(target), *b = open_vocab(drafting);
    struct err e = {0};
    const int rc = vocab_match(a, b, &e);
    assert_int_equal(rc, says ? ERR_CONFIG : 0);
    if (says && !strstr(e.text, says))
        fail_msg("\"%s\" does not say \"%s\"", e.text, says);
    tokenizer_close(a);
    tokenizer_close(b);
}

static void what_is_the_same_matches(void **state)
{
    (void)state;
    check(&plain, &plain, NULL);
}

static void another_text_is_named_with_its_id_and_both_texts(void **state)
{
    (void)state;
    struct vocab other = plain;
    other.word = "ol";
    check(&plain, &other, "token 256 is \"ol\" there and \"lo\" in the model");
    other.word = "lo\x1b[31m\xc3\xa9";
    check(&plain, &other, "token 256 is \"lo?[31m?\" there and \"lo\" in the model");
    /* The first one counts. */
    other.kind = SMALL_NORMAL;
    check(&plain, &other, "token 256 ");
}

static void the_same_text_may_be_something_else(void **state)
{
    (void)state;
    struct vocab other = plain;
    other.kind = SMALL_NORMAL;
    check(&plain, &other,
          "token 257, \"<mark>\", is text there and is a control token in the model");
    other = plain;
    other.eos = 257;
    check(&plain, &other,
          "token 257, \"<mark>\", ends a turn there and is a control token in the model");
}

static void padding_may_be_longer_on_either_side(void **state)
{
    (void)state;
    struct vocab padded = plain;
    padded.more[0] = "[PAD259]";
    padded.more[1] = "[PAD260]";
    padded.more_kind = SMALL_UNUSED;
    check(&plain, &padded, NULL);
    check(&padded, &plain, NULL);
    struct vocab longer = padded;
    longer.more[2] = "[PAD261]";
    check(&padded, &longer, NULL);
}

static void tokens_of_one_side_only_are_named(void **state)
{
    (void)state;
    struct vocab longer = plain;
    longer.more[0] = "more";
    longer.more_kind = SMALL_NORMAL;
    check(&longer, &plain, "token 259, \"more\", is in that of the model only");
    check(&plain, &longer, "token 259, \"more\", is in that of the draft model only");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_the_same_matches),
        cmocka_unit_test(another_text_is_named_with_its_id_and_both_texts),
        cmocka_unit_test(the_same_text_may_be_something_else),
        cmocka_unit_test(padding_may_be_longer_on_either_side),
        cmocka_unit_test(tokens_of_one_side_only_are_named),
    };
    return cmocka_run_group_tests_name("vocab_match", tests, NULL, NULL);
}
