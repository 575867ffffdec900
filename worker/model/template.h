/*
 * Chat templates as fixed families in C; no template code from a model file or a job is ever
 * run. A family is chosen by setting or by recognising the model's own template text; an
 * unknown template is an error that names the setting.
 *
 * Rendering yields spans: template text (special tokens allowed) and content (never special)
 * in turn, for tokenizer_encode.
 */
#ifndef SHEAF_TEMPLATE_H
#define SHEAF_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "model/tokenizer.h"

enum template_family {
    TEMPLATE_UNKNOWN,
    TEMPLATE_CHATML,
    TEMPLATE_LLAMA3,
    TEMPLATE_LLAMA2, /* [INST] with <<SYS>>; Mistral without */
    TEMPLATE_MISTRAL,
    TEMPLATE_GEMMA,
    TEMPLATE_PHI3,
    TEMPLATE_ZEPHYR,
};

enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT };

struct chat_message {
    enum chat_role role;
    const char *content; /* bytes, borrowed */
    size_t length;
};

/* Spans that borrow their text: literals are static, content is the messages'. */
struct span_list {
    struct token_span *items; /* owned; free with span_list_fini */
    size_t length;
    size_t capacity;
};
void span_list_fini(struct span_list *spans);

/* Recognises a template text; TEMPLATE_UNKNOWN when none of the families matches. */
enum template_family template_detect(const char *text, size_t length);
/* "chatml", "llama-3", ...; TEMPLATE_UNKNOWN for another name. */
enum template_family template_find(const char *name);
const char *template_name(enum template_family family);

/* ERR_UNSUPPORTED when the vocabulary lacks a special token that the family's turns need, which
 * would then be read as text. TEMPLATE_UNKNOWN needs none. */
int template_check(enum template_family family, const struct tokenizer *tok, struct err *e);

/*
 * default_system: put in front when the first message is no system message; NULL for none.
 * SmolLM2's own template has one, which template_default_system() knows. Ends with the prologue
 * of the assistant's turn, ready for generation. ERR_INVALID for message orders that the family
 * cannot express (with the sentence why). Where a family has no system turn (Mistral, Gemma),
 * the system text goes in front of the first user message, two newlines between, as in those
 * families' newer templates. BOS is written where the family's own template writes it.
 */
int template_render(enum template_family family, const struct chat_message *messages,
                    size_t n_messages, const char *default_system, struct span_list *out,
                    struct err *e);

/* The system message that a model's own template injects when there is none, or NULL. */
const char *template_default_system(const char *template_text, size_t length);

#endif
