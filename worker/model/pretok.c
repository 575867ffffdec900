/*
 * Pre-tokenizers: the regular expressions that cut a text before byte-level BPE, run by PCRE2.
 *
 * Patterns are applied in turn, each to the pieces that the one before left; text between two
 * matches is a piece too. A piece is a subject of its own: what stands beyond its ends is not
 * seen by a look-ahead, as in llama.cpp and in the Hugging Face library.
 *
 * White space is written out (Unicode's property White_Space, which has not changed since 2014)
 * instead of \s: under PCRE2_UCP that also takes U+180E. Contractions that ignore case are
 * written as pairs of letters: a caseless match would take U+017F for s. \p{L}, \p{N} and \p{P}
 * mean the tables of the PCRE2 at run time (Unicode 14 in 10.42); a code point assigned after
 * that counts as neither letter nor number here, and may in another engine.
 */
#include "model/tokenizer_int.h"

#include <string.h>

#include "base/buf.h"
#include "base/check.h"

#define WS                                                                                     \
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"    \
    "\\x{205f}\\x{3000}"
#define SPACES_BEFORE_LAST "[" WS "]+(?![^" WS "])"

#define GPT2                                                                                   \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" WS "\\p{L}\\p{N}]+|" SPACES_BEFORE_LAST

#define LLAMA3(numbers)                                                                        \
    "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"      \
    "|" numbers "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*|[" WS "]*[\\r\\n]+|" SPACES_BEFORE_LAST    \
    "|[" WS "]+"

struct family {
    const char *names[16]; /* values of tokenizer.ggml.pre, NULL at the end */
    const char *patterns[PRETOK_PATTERNS_MAX];
    struct pretok_traits traits;
};

static const struct family families[] = {
    {{"gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4"},
     {GPT2},
     {false, false}},
    {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b",
      "mellum2"},
     {"\\p{N}", GPT2},
     {false, false}},
    {{"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2"},
     {LLAMA3("\\p{N}{1,3}")},
     {true, true}},
    {{"dbrx", "smaug-bpe", "chatglm-bpe", "glm4"}, {LLAMA3("\\p{N}{1,3}")}, {false, false}},
    {{"qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"},
     {LLAMA3("\\p{N}")},
     {false, false}},
    {{"default"},
     {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"},
     {false, false}},
};

static const struct family *find_family(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        for (const char *const *known = families[i].names; *known; known++)
            if (strlen(*known) == length && memcmp(*known, name, length) == 0)
                return &families[i];
    return NULL;
}

static int refuse(const char *name, size_t length, struct err *e)
{
    struct buf list = {0};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        for (const char *const *known = families[i].names; *known; known++)
            buf_printf(&list, "%s%s", list.length ? ", " : "", *known);
    const int code =
        ERR_SET(e, ERR_UNSUPPORTED, "pre-tokenizer \"%.*s\" is not supported; these are: %s",
                (int)(length < 64 ? length : 64), name, buf_str(&list));
    buf_fini(&list);
    return code;
}

static int compile(struct pretok *p, const char *pattern, struct err *e)
{
    int error;
    PCRE2_SIZE offset;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF,
                                     &error, &offset, NULL);
    if (!code)
        return ERR_SET(e, ERR_UNSUPPORTED, "this PCRE2 refuses a pattern: error %d at %zu",
                       error, (size_t)offset);
    p->patterns[p->n_patterns++] = code;
    /* speed only: where no code can be generated, matching interprets the pattern */
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    return 0;
}

int pretok_open(struct pretok *p, const char *name, size_t length, struct pretok_traits *traits,
                struct err *e)
{
    const struct family *family = find_family(name, length);
    if (!family)
        return refuse(name, length, e);
    *traits = family->traits;
    for (size_t i = 0; i < PRETOK_PATTERNS_MAX && family->patterns[i]; i++)
        TRY(compile(p, family->patterns[i], e));
    p->context = pcre2_match_context_create(NULL);
    if (!p->context)
        return ERR_SET(e, ERR_NOMEM, "no memory for the pre-tokenizer");
    /* Giving back a long run of spaces is one step of the limit each. */
    pcre2_set_match_limit(p->context, UINT32_MAX);
    return 0;
}

void pretok_close(struct pretok *p)
{
    for (size_t i = 0; i < p->n_patterns; i++)
        pcre2_code_free(p->patterns[i]);
    pcre2_match_context_free(p->context);
    *p = (struct pretok){0};
}

struct split {
    const struct pretok *pretok;
    pcre2_match_data *match;
    pretok_piece *piece;
    void *context;
};

/* 0 with *found false when there is no further match; an error is never taken for that. */
static int next_match(const struct split *s, size_t level, const char *text, size_t length,
                      size_t from, bool *found, struct err *e)
{
    /* The caller has checked the text, and a check here would read to its end each time. */
    const int rc =
        pcre2_match(s->pretok->patterns[level], (PCRE2_SPTR)text, length, from,
                    PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, s->match, s->pretok->context);
    *found = rc > 0;
    if (rc > 0 || rc == PCRE2_ERROR_NOMATCH)
        return 0;
    return ERR_SET_FLAGS(e, ERR_LIMIT, ERR_JOB,
                         "the pre-tokenizer gave up on a text of %zu bytes (PCRE2 error %d)",
                         length, rc);
}

static int split_level(const struct split *s, size_t level, const char *text, size_t length,
                       struct err *e)
{
    if (length == 0)
        return 0;
    if (level == s->pretok->n_patterns)
        return s->piece(s->context, text, length, e);
    size_t at = 0;
    while (at < length) {
        bool found;
        TRY(next_match(s, level, text, length, at, &found, e));
        if (!found)
            break;
        /* Deeper levels overwrite the match. */
        const size_t start = pcre2_get_ovector_pointer(s->match)[0];
        const size_t end = pcre2_get_ovector_pointer(s->match)[1];
        ASSERT(at <= start && start < end && end <= length);
        TRY(split_level(s, level + 1, text + at, start - at, e));
        TRY(split_level(s, level + 1, text + start, end - start, e));
        at = end;
    }
    return split_level(s, level + 1, text + at, length - at, e);
}

int pretok_split(const struct pretok *p, const char *text, size_t length, pretok_piece *piece,
                 void *context, struct err *e)
{
    const struct split s = {p, pcre2_match_data_create(1, NULL), piece, context};
    if (!s.match)
        return ERR_SET(e, ERR_NOMEM, "no memory for the pre-tokenizer");
    const int code = split_level(&s, 0, text, length, e);
    pcre2_match_data_free(s.match);
    return code;
}
