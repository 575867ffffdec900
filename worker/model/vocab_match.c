#include "model/vocab_match.h"

#include <string.h>

#include "base/size.h"
#include "model/tokenizer_int.h"

enum { SHOWN_BYTES = 48 }; /* of a text */

static bool is_same_text(struct gguf_str a, struct gguf_str b)
{
    return a.length == b.length && memcmp(a.data, b.data, a.length) == 0;
}

static const char *kind_of(const struct tokenizer *tok, int32_t id)
{
    if (tokenizer_is_end(tok, id))
        return "ends a turn";
    return tokenizer_is_control(tok, id) ? "is a control token" : "is text";
}

static int match_token(const struct tokenizer *target, const struct tokenizer *drafting,
                       int32_t id, struct err *e)
{
    const struct gguf_str a = tokenizer_token_text(target, id);
    const struct gguf_str b = tokenizer_token_text(drafting, id);
    char shown_a[SHOWN_BYTES], shown_b[SHOWN_BYTES];
    gguf_str_print(a, shown_a, sizeof shown_a);
    gguf_str_print(b, shown_b, sizeof shown_b);
    if (!is_same_text(a, b))
        return ERR_SET(e, ERR_CONFIG,
                       "the draft model has another vocabulary: token %d is \"%s\" there and "
                       "\"%s\" in the model",
                       id, shown_b, shown_a);
    if (strcmp(kind_of(target, id), kind_of(drafting, id)) != 0)
        return ERR_SET(e, ERR_CONFIG,
                       "the draft model has another vocabulary: token %d, \"%s\", %s there and "
                       "%s in the model",
                       id, shown_a, kind_of(drafting, id), kind_of(target, id));
    return 0;
}

/* Tokens that only the longer vocabulary has. */
static int match_padding(const struct tokenizer *longer, size_t n_common, const char *whose,
                         struct err *e)
{
    for (size_t id = n_common; id < longer->n_vocab; id++) {
        char shown[SHOWN_BYTES];
        if (longer->types[id] == TOKEN_UNUSED)
            continue;
        gguf_str_print(tokenizer_token_text(longer, (int32_t)id), shown, sizeof shown);
        return ERR_SET(e, ERR_CONFIG,
                       "the draft model has another vocabulary: token %zu, \"%s\", is in that "
                       "of %s only",
                       id, shown, whose);
    }
    return 0;
}

int vocab_match(const struct tokenizer *target, const struct tokenizer *drafting, struct err *e)
{
    const size_t n_common = size_min(target->n_vocab, drafting->n_vocab);
    for (size_t id = 0; id < n_common; id++)
        TRY(match_token(target, drafting, (int32_t)id, e));
    TRY(match_padding(target, n_common, "the model", e));
    return match_padding(drafting, n_common, "the draft model", e);
}
