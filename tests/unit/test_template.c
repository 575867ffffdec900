/*
 * Chat templates: each family's text against what the published templates yield under an
 * interpreter of templates (tests/golden/templates.md).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "golden.h"
#include "text.h"

enum { MESSAGES_MAX = 8 };

struct rendered {
    int code;
    struct err e;
    struct buf text;    /* all spans */
    struct buf content; /* those that are not special */
};

static struct rendered render(enum template_family family, const struct chat_message *messages,
                              size_t n, const char *default_system)
{
    struct rendered r = {0};
    struct span_list spans = {0};
    r.code = template_render(family, messages, n, default_system, &spans, &r.e);
    for (size_t i = 0; i < spans.length; i++) {
        buf_append(&r.text, spans.items[i].text, spans.items[i].length);
        if (!spans.items[i].special)
            buf_append(&r.content, spans.items[i].text, spans.items[i].length);
    }
    span_list_fini(&spans);
    return r;
}

static void rendered_fini(struct rendered *r)
{
    buf_fini(&r->text);
    buf_fini(&r->content);
}

static enum chat_role role_of(const char *name)
{
    if (strcmp(name, "system") == 0)
        return CHAT_SYSTEM;
    return strcmp(name, "user") == 0 ? CHAT_USER : CHAT_ASSISTANT;
}

static size_t messages_of(const json_t *array, struct chat_message out[MESSAGES_MAX])
{
    const size_t n = json_array_size(array);
    assert_true(n <= MESSAGES_MAX);
    for (size_t i = 0; i < n; i++) {
        const json_t *content = json_object_get(json_array_get(array, i), "content");
        const json_t *role = json_object_get(json_array_get(array, i), "role");
        out[i] = (struct chat_message){role_of(json_string_value(role)),
                                       json_string_value(content), json_string_length(content)};
    }
    return n;
}

/* Returns whether the template takes this conversation at all. */
static bool check_case(const json_t *family, const json_t *test)
{
    const char *want = json_string_value(json_object_get(test, "text"));
    const char *name = json_string_value(json_object_get(family, "family"));
    const json_t *source = json_object_get(family, "template");
    if (!want)
        return false;
    struct chat_message messages[MESSAGES_MAX];
    const size_t n = messages_of(json_object_get(test, "messages"), messages);
    struct rendered r =
        render(template_find(name), messages, n,
               template_default_system(json_string_value(source), json_string_length(source)));
    if (r.code != 0)
        fail_msg("%s: %s", name, r.e.text);
    assert_string_equal(buf_str(&r.text), want);
    rendered_fini(&r);
    return true;
}

static void families_render_what_their_published_templates_yield(void **state)
{
    (void)state;
    json_t *root = golden_json("golden/templates.json");
    const json_t *families = json_object_get(root, "families");
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(families); i++) {
        const json_t *family = json_array_get(families, i);
        const json_t *cases = json_object_get(family, "cases");
        for (size_t c = 0; c < json_array_size(cases); c++)
            n += check_case(family, json_array_get(cases, c));
    }
    assert_int_equal(n, 43); /* 9 templates, 5 conversations, less Mistral's two */
    json_decref(root);
}

static void templates_are_recognised_and_others_are_not_guessed(void **state)
{
    (void)state;
    json_t *root = golden_json("golden/templates.json");
    const json_t *families = json_object_get(root, "families");
    for (size_t i = 0; i < json_array_size(families); i++) {
        const json_t *family = json_array_get(families, i);
        const json_t *text = json_object_get(family, "template");
        assert_string_equal(
            template_name(template_detect(json_string_value(text), json_string_length(text))),
            json_string_value(json_object_get(family, "family")));
    }
    const json_t *unknown = json_object_get(root, "unknown");
    assert_int_equal(json_array_size(unknown), 9);
    for (size_t i = 0; i < json_array_size(unknown); i++) {
        const json_t *text = json_object_get(json_array_get(unknown, i), "template");
        if (template_detect(json_string_value(text), json_string_length(text)) !=
            TEMPLATE_UNKNOWN)
            fail_msg("%s is taken for a family",
                     json_string_value(json_object_get(json_array_get(unknown, i), "name")));
    }
    json_decref(root);
}

static void detection_reads_escapes_quotes_and_nul_bytes(void **state)
{
    (void)state;
    static const char spelled[] = "{{ \"<|user|>\\n\" \n +  message[\"content\"] + eos_token }}"
                                  "\0<|assistant|>";
    assert_int_equal(template_detect(spelled, sizeof spelled - 1), TEMPLATE_ZEPHYR);
    assert_int_equal(template_detect(spelled, 0), TEMPLATE_UNKNOWN);
    /* cut in the middle of the last marker: nothing is read beyond the length */
    assert_int_equal(template_detect(spelled, sizeof spelled - 2), TEMPLATE_UNKNOWN);
}

static void the_demo_models_own_template_is_chatml_with_its_system_message(void **state)
{
    (void)state;
    struct model *m = text_open_vocab(golden_demo_model());
    assert_int_equal(m->template_family, TEMPLATE_CHATML);
    assert_string_equal(m->default_system,
                        "You are a helpful AI assistant named SmolLM, trained by Hugging Face");
    const struct chat_message user = {CHAT_USER, "Hi", 2};
    struct rendered r = render(m->template_family, &user, 1, m->default_system);
    assert_string_equal(buf_str(&r.text),
                        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, "
                        "trained by Hugging Face<|im_end|>\n"
                        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    rendered_fini(&r);
    model_close(m);
}

static const enum template_family all[] = {TEMPLATE_CHATML,  TEMPLATE_LLAMA3, TEMPLATE_LLAMA2,
                                           TEMPLATE_MISTRAL, TEMPLATE_GEMMA,  TEMPLATE_PHI3,
                                           TEMPLATE_ZEPHYR};

static const struct {
    enum template_family family;
    const char *text;
} with_system[] = {
    {TEMPLATE_MISTRAL, "<s>[INST] S\n\nU [/INST]"},
    {TEMPLATE_GEMMA, "<bos><start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\n"},
};

static void a_system_text_goes_before_the_first_user_text_where_there_is_no_turn(void **state)
{
    (void)state;
    static const struct chat_message messages[] = {{CHAT_SYSTEM, "S", 1}, {CHAT_USER, "U", 1}};
    for (size_t i = 0; i < sizeof with_system / sizeof *with_system; i++) {
        struct rendered r = render(with_system[i].family, messages, 2, NULL);
        assert_string_equal(buf_str(&r.text), with_system[i].text);
        rendered_fini(&r);
    }
}

static void a_default_system_message_stands_in_front_only_where_none_is_given(void **state)
{
    (void)state;
    static const struct chat_message given[] = {{CHAT_SYSTEM, "S", 1}, {CHAT_USER, "U", 1}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct rendered plain = render(all[i], given, 2, NULL);
        struct rendered unused = render(all[i], given, 2, "D");
        struct rendered injected = render(all[i], given + 1, 1, "S");
        assert_int_equal(plain.code, 0);
        assert_string_equal(buf_str(&unused.text), buf_str(&plain.text));
        assert_string_equal(buf_str(&injected.text), buf_str(&plain.text));
        rendered_fini(&plain);
        rendered_fini(&unused);
        rendered_fini(&injected);
    }
}

static void all_text_of_messages_and_nothing_else_is_content(void **state)
{
    (void)state;
    static const struct chat_message messages[] = {
        {CHAT_SYSTEM, "<|im_end|>a", 11},
        {CHAT_USER, "</s>\0b<|eot_id|>", 16},
        {CHAT_ASSISTANT, "<end_of_turn>", 13},
        {CHAT_USER, "[/INST]<|end|>", 14},
    };
    static const char content[] = "<|im_end|>a</s>\0b<|eot_id|><end_of_turn>[/INST]<|end|>";
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct rendered r = render(all[i], messages, 4, NULL);
        assert_int_equal(r.code, 0);
        assert_int_equal(r.content.length, sizeof content - 1);
        assert_memory_equal(r.content.data, content, sizeof content - 1);
        rendered_fini(&r);
    }
}

static const struct {
    const char *roles; /* a letter each */
    const char *why;
} bad_orders[] = {
    {"a", "user first; turn 1 is assistant"},     {"uu", "turn 2 is user"},
    {"ua", "needs a user message at the end"},    {"uaua", "needs a user message at the end"},
    {"us", "takes one system message, in front"}, {"ssu", "takes one system message, in front"},
    {"s", "needs a user message at the end"},     {"suuu", "turn 2 is user"},
};

static void orders_that_a_family_cannot_express_are_refused_with_the_reason(void **state)
{
    (void)state;
    static const enum template_family strict[] = {TEMPLATE_LLAMA2, TEMPLATE_MISTRAL,
                                                  TEMPLATE_GEMMA};
    for (size_t f = 0; f < 3; f++)
        for (size_t i = 0; i < sizeof bad_orders / sizeof *bad_orders; i++) {
            struct chat_message messages[MESSAGES_MAX];
            size_t n = 0;
            for (const char *c = bad_orders[i].roles; *c; c++)
                messages[n++] = (struct chat_message){*c == 's'   ? CHAT_SYSTEM
                                                      : *c == 'u' ? CHAT_USER
                                                                  : CHAT_ASSISTANT,
                                                      "x", 1};
            struct rendered r = render(strict[f], messages, n, NULL);
            assert_int_equal(r.code, ERR_INVALID);
            assert_true(r.e.flags & ERR_JOB);
            if (!strstr(r.e.text, bad_orders[i].why) ||
                !strstr(r.e.text, template_name(strict[f])))
                fail_msg("%s: %s", bad_orders[i].roles, r.e.text);
            assert_int_equal(r.text.length, 0);
            rendered_fini(&r);
        }
}

static void no_messages_and_no_family_are_refused(void **state)
{
    (void)state;
    static const struct chat_message user = {CHAT_USER, "U", 1};
    struct rendered none = render(TEMPLATE_CHATML, NULL, 0, NULL);
    assert_int_equal(none.code, ERR_INVALID);
    struct rendered unknown = render(TEMPLATE_UNKNOWN, &user, 1, NULL);
    assert_int_equal(unknown.code, ERR_UNSUPPORTED);
    assert_non_null(strstr(unknown.e.text, "chat_template"));
    rendered_fini(&none);
    rendered_fini(&unknown);
}

static void names_find_their_family_and_no_other_name_does(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        assert_int_equal(template_find(template_name(all[i])), all[i]);
    static const char *const others[] = {"", "unknown", "auto", "ChatML", "llama", "llama-3 "};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_int_equal(template_find(others[i]), TEMPLATE_UNKNOWN);
}

static void a_vocabulary_without_a_familys_special_tokens_is_refused_by_name(void **state)
{
    (void)state;
    struct model *demo = text_open_vocab(golden_demo_model());
    struct model *phi =
        text_open_vocab(SHEAF_TEST_DATA "/golden/tokenizers/ggml-vocab-phi-3.gguf");
    const struct {
        const struct model *m;
        enum template_family family;
        const char *lacking; /* NULL: none */
    } cases[] = {
        {demo, TEMPLATE_CHATML, NULL},       {phi, TEMPLATE_PHI3, NULL},
        {phi, TEMPLATE_LLAMA2, NULL},        {phi, TEMPLATE_MISTRAL, NULL},
        {phi, TEMPLATE_ZEPHYR, NULL},        {demo, TEMPLATE_UNKNOWN, NULL},
        {demo, TEMPLATE_ZEPHYR, "</s>"},     {demo, TEMPLATE_LLAMA3, "<|begin_of_text|>"},
        {demo, TEMPLATE_PHI3, "<|system|>"}, {phi, TEMPLATE_CHATML, "<|im_start|>"},
        {phi, TEMPLATE_GEMMA, "<bos>"},      {demo, TEMPLATE_LLAMA2, "<s>"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        const int code = template_check(cases[i].family, cases[i].m->tokenizer, &e);
        assert_int_equal(code, cases[i].lacking ? ERR_UNSUPPORTED : 0);
        if (cases[i].lacking && !strstr(e.text, cases[i].lacking))
            fail_msg("%s", e.text);
    }
    model_close(demo);
    model_close(phi);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_render_what_their_published_templates_yield),
        cmocka_unit_test(templates_are_recognised_and_others_are_not_guessed),
        cmocka_unit_test(detection_reads_escapes_quotes_and_nul_bytes),
        cmocka_unit_test(the_demo_models_own_template_is_chatml_with_its_system_message),
        cmocka_unit_test(a_system_text_goes_before_the_first_user_text_where_there_is_no_turn),
        cmocka_unit_test(a_default_system_message_stands_in_front_only_where_none_is_given),
        cmocka_unit_test(all_text_of_messages_and_nothing_else_is_content),
        cmocka_unit_test(orders_that_a_family_cannot_express_are_refused_with_the_reason),
        cmocka_unit_test(no_messages_and_no_family_are_refused),
        cmocka_unit_test(names_find_their_family_and_no_other_name_does),
        cmocka_unit_test(a_vocabulary_without_a_familys_special_tokens_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
