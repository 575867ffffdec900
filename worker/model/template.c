/*
 * Rendering, family by family: s = system, u = user, a = assistant text, [..] only if given.
 *
 *   chatml   (<|im_start|>ROLE\n TEXT <|im_end|>\n)... <|im_start|>assistant\n
 *   llama-3  <|begin_of_text|>
 *            (<|start_header_id|>ROLE<|end_header_id|>\n\n TEXT <|eot_id|>)...
 *            <|start_header_id|>assistant<|end_header_id|>\n\n
 *   llama-2  (<s>[INST] [<<SYS>>\n s \n<</SYS>>\n\n] u  [/INST]  a  </s>)...
 *   mistral  <s>([INST] [s \n\n] u  [/INST] a </s>)...
 *   gemma    <bos>(<start_of_turn>ROLE\n [s \n\n] TEXT <end_of_turn>\n)...
 *            <start_of_turn>model\n
 *   phi-3    (<|ROLE|>\n TEXT <|end|>\n)... <|assistant|>\n
 *   zephyr   (<|ROLE|>\n TEXT </s>\n)... <|assistant|>\n
 *
 * Llama-3, Llama-2 and Gemma take white space off the ends of a message, as their own templates
 * do (ASCII white space here). Llama 3.1's lines about knowledge and today's date are left out:
 * an answer must not depend on the day it is computed.
 */
#include "model/template.h"

#include <stdlib.h>
#include <string.h>

void span_list_fini(struct span_list *spans)
{
    free(spans->items);
    *spans = (struct span_list){0};
}

struct render {
    struct span_list *out;
    struct err *e;
    int code; /* the first failure; later appends do nothing */
};

static void add_span(struct render *r, const char *text, size_t length, bool special)
{
    struct span_list *out = r->out;
    if (r->code != 0 || length == 0)
        return;
    if (out->length == out->capacity) {
        const size_t capacity = out->capacity ? 2 * out->capacity : 16;
        struct token_span *items = realloc(out->items, capacity * sizeof *items);
        if (!items) {
            r->code = ERR_SET(r->e, ERR_NOMEM, "no memory for %zu spans of a prompt", capacity);
            return;
        }
        out->items = items;
        out->capacity = capacity;
    }
    out->items[out->length++] = (struct token_span){text, length, special};
}

static void add_literal(struct render *r, const char *text)
{
    add_span(r, text, strlen(text), true);
}

static void add_content(struct render *r, struct chat_message text)
{
    add_span(r, text.content, text.length, false);
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static struct chat_message trim_end(struct chat_message text)
{
    while (text.length > 0 && is_space(text.content[text.length - 1]))
        text.length--;
    return text;
}

static struct chat_message trim(struct chat_message text)
{
    while (text.length > 0 && is_space(text.content[0])) {
        text.content++;
        text.length--;
    }
    return trim_end(text);
}

static const char *role_name(enum chat_role role)
{
    switch (role) {
    case CHAT_SYSTEM: return "system";
    case CHAT_USER: return "user";
    default: return "assistant";
    }
}

/* Families in which every message is a turn of its own, whatever its role. */
struct turn_form {
    const char *begin, *before_role, *after_role, *after_text;
    bool trims;
};

static const struct turn_form chatml = {"", "<|im_start|>", "\n", "<|im_end|>\n", false};
static const struct turn_form llama3 = {"<|begin_of_text|>", "<|start_header_id|>",
                                        "<|end_header_id|>\n\n", "<|eot_id|>", true};
static const struct turn_form phi3 = {"", "<|", "|>\n", "<|end|>\n", false};
static const struct turn_form zephyr = {"", "<|", "|>\n", "</s>\n", false};

static void render_role(struct render *r, const struct turn_form *form, enum chat_role role)
{
    add_literal(r, form->before_role);
    add_literal(r, role_name(role));
    add_literal(r, form->after_role);
}

static void render_turns(struct render *r, const struct turn_form *form,
                         const struct chat_message *messages, size_t n_messages)
{
    add_literal(r, form->begin);
    for (size_t i = 0; i < n_messages; i++) {
        render_role(r, form, messages[i].role);
        add_content(r, form->trims ? trim(messages[i]) : messages[i]);
        add_literal(r, form->after_text);
    }
    render_role(r, form, CHAT_ASSISTANT);
}

/* The other families: an optional system text, then user and assistant in turn. */
static void check_order(struct render *r, enum template_family family,
                        const struct chat_message *turns, size_t n_turns)
{
    const char *name = template_name(family);
    for (size_t i = 0; i < n_turns && r->code == 0; i++) {
        const enum chat_role expected = i % 2 == 0 ? CHAT_USER : CHAT_ASSISTANT;
        if (turns[i].role == expected)
            continue;
        if (turns[i].role == CHAT_SYSTEM)
            r->code = ERR_SET_FLAGS(r->e, ERR_INVALID, ERR_JOB,
                                    "the %s template takes one system message, in front", name);
        else
            r->code = ERR_SET_FLAGS(r->e, ERR_INVALID, ERR_JOB,
                                    "the %s template takes user and assistant messages in "
                                    "turn, user first; turn %zu is %s",
                                    name, i + 1, role_name(turns[i].role));
    }
    if (r->code == 0 && n_turns % 2 == 0)
        r->code = ERR_SET_FLAGS(r->e, ERR_INVALID, ERR_JOB,
                                "the %s template needs a user message at the end", name);
}

static void render_llama2(struct render *r, const struct chat_message *system,
                          const struct chat_message *turns, size_t n_turns)
{
    for (size_t i = 0; i < n_turns; i++) {
        if (turns[i].role == CHAT_ASSISTANT) {
            add_literal(r, " ");
            add_content(r, trim(turns[i]));
            add_literal(r, " </s>");
            continue;
        }
        add_literal(r, "<s>[INST] ");
        if (i == 0 && system) {
            add_literal(r, "<<SYS>>\n");
            add_content(r, *system);
            add_literal(r, "\n<</SYS>>\n\n");
            add_content(r, trim_end(turns[i])); /* its front is not the text's front */
        } else {
            add_content(r, trim(turns[i]));
        }
        add_literal(r, " [/INST]");
    }
}

static void render_mistral(struct render *r, const struct chat_message *system,
                           const struct chat_message *turns, size_t n_turns)
{
    add_literal(r, "<s>");
    for (size_t i = 0; i < n_turns; i++) {
        if (turns[i].role == CHAT_ASSISTANT) {
            add_content(r, turns[i]);
            add_literal(r, "</s>");
            continue;
        }
        add_literal(r, "[INST] ");
        if (i == 0 && system) {
            add_content(r, *system);
            add_literal(r, "\n\n");
        }
        add_content(r, turns[i]);
        add_literal(r, " [/INST]");
    }
}

static void render_gemma(struct render *r, const struct chat_message *system,
                         const struct chat_message *turns, size_t n_turns)
{
    add_literal(r, "<bos>");
    for (size_t i = 0; i < n_turns; i++) {
        add_literal(r, turns[i].role == CHAT_USER ? "<start_of_turn>user\n"
                                                  : "<start_of_turn>model\n");
        if (i == 0 && system) {
            add_content(r, *system);
            add_literal(r, "\n\n");
        }
        add_content(r, trim(turns[i]));
        add_literal(r, "<end_of_turn>\n");
    }
    add_literal(r, "<start_of_turn>model\n");
}

static void render_alternating(struct render *r, enum template_family family,
                               const struct chat_message *messages, size_t n_messages)
{
    const struct chat_message *system = NULL;
    if (n_messages > 0 && messages[0].role == CHAT_SYSTEM) {
        system = messages++;
        n_messages--;
    }
    check_order(r, family, messages, n_messages);
    if (r->code != 0)
        return;
    if (family == TEMPLATE_LLAMA2)
        render_llama2(r, system, messages, n_messages);
    else if (family == TEMPLATE_MISTRAL)
        render_mistral(r, system, messages, n_messages);
    else
        render_gemma(r, system, messages, n_messages);
}

static void render_family(struct render *r, enum template_family family,
                          const struct chat_message *messages, size_t n_messages)
{
    switch (family) {
    case TEMPLATE_CHATML: render_turns(r, &chatml, messages, n_messages); break;
    case TEMPLATE_LLAMA3: render_turns(r, &llama3, messages, n_messages); break;
    case TEMPLATE_PHI3: render_turns(r, &phi3, messages, n_messages); break;
    case TEMPLATE_ZEPHYR: render_turns(r, &zephyr, messages, n_messages); break;
    case TEMPLATE_LLAMA2:
    case TEMPLATE_MISTRAL:
    case TEMPLATE_GEMMA: render_alternating(r, family, messages, n_messages); break;
    default:
        r->code = ERR_SET(r->e, ERR_UNSUPPORTED,
                          "the model's chat template is not known; set chat_template to one of "
                          "chatml, llama-3, llama-2, mistral, gemma, phi-3, zephyr");
    }
}

static int render_with_system(struct render *r, enum template_family family,
                              const struct chat_message *messages, size_t n_messages,
                              const char *system)
{
    struct chat_message *all = calloc(n_messages + 1, sizeof *all);
    if (!all)
        return ERR_SET(r->e, ERR_NOMEM, "no memory for %zu messages", n_messages);
    all[0] = (struct chat_message){CHAT_SYSTEM, system, strlen(system)};
    memcpy(all + 1, messages, n_messages * sizeof *all);
    render_family(r, family, all, n_messages + 1);
    free(all);
    return r->code;
}

int template_render(enum template_family family, const struct chat_message *messages,
                    size_t n_messages, const char *default_system, struct span_list *out,
                    struct err *e)
{
    struct render r = {.out = out, .e = e};
    if (n_messages == 0)
        return ERR_SET_FLAGS(e, ERR_INVALID, ERR_JOB, "a conversation without messages");
    if (default_system && messages[0].role != CHAT_SYSTEM)
        return render_with_system(&r, family, messages, n_messages, default_system);
    render_family(&r, family, messages, n_messages);
    return r.code;
}

static const struct family_name {
    enum template_family family;
    const char *name;
    const char *specials[6]; /* tokens that the vocabulary must have */
} names[] = {
    {TEMPLATE_CHATML, "chatml", {"<|im_start|>", "<|im_end|>"}},
    {TEMPLATE_LLAMA3,
     "llama-3",
     {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}},
    {TEMPLATE_LLAMA2, "llama-2", {"<s>", "</s>"}},
    {TEMPLATE_MISTRAL, "mistral", {"<s>", "</s>"}},
    {TEMPLATE_GEMMA, "gemma", {"<bos>", "<start_of_turn>", "<end_of_turn>"}},
    {TEMPLATE_PHI3, "phi-3", {"<|system|>", "<|user|>", "<|assistant|>", "<|end|>"}},
    {TEMPLATE_ZEPHYR, "zephyr", {"</s>"}},
};

enum template_family template_find(const char *name)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i].name, name) == 0)
            return names[i].family;
    return TEMPLATE_UNKNOWN;
}

const char *template_name(enum template_family family)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].family == family)
            return names[i].name;
    return "unknown";
}

int template_check(enum template_family family, const struct tokenizer *tok, struct err *e)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (names[i].family != family)
            continue;
        for (const char *const *special = names[i].specials; *special; special++) {
            const int32_t id = tokenizer_find(tok, *special, strlen(*special));
            if (id == TOKEN_NONE || !tokenizer_is_control(tok, id))
                return ERR_SET(e, ERR_UNSUPPORTED,
                               "the %s template needs the token %s, which the model lacks",
                               names[i].name, *special);
        }
    }
    return 0;
}
