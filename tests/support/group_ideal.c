#include "group_ideal.h"

#include <stdlib.h>
#include <string.h>

static const char *salt_of(const struct group_prompt *prompt)
{
    return prompt->salt ? prompt->salt : "";
}

static size_t shorter(const struct group_prompt *a, const struct group_prompt *b)
{
    return a->n_tokens < b->n_tokens ? a->n_tokens : b->n_tokens;
}

/* By salt, then as in a dictionary. Which token comes before which is of no account as long as
 * it is always the same one, so the tokens are compared as bytes. */
static int compare_prompts(const void *left, const void *right)
{
    const struct group_prompt *a = *(const struct group_prompt *const *)left;
    const struct group_prompt *b = *(const struct group_prompt *const *)right;
    int order = strcmp(salt_of(a), salt_of(b));
    const size_t n = shorter(a, b);
    if (order == 0 && n > 0)
        order = memcmp(a->tokens, b->tokens, n * sizeof a->tokens[0]);
    if (order == 0)
        order = (a->n_tokens > b->n_tokens) - (a->n_tokens < b->n_tokens);
    return order;
}

static size_t common_tokens(const struct group_prompt *a, const struct group_prompt *b)
{
    if (strcmp(salt_of(a), salt_of(b)) != 0)
        return 0;
    const size_t n = shorter(a, b);
    size_t i = 0;
    while (i < n && a->tokens[i] == b->tokens[i])
        i++;
    return i;
}

/* What the prompt finds when everything before it in the dictionary is there. */
static size_t found_tokens(const struct group_prompt *before, const struct group_prompt *prompt,
                           size_t tokens_min)
{
    size_t n = common_tokens(before, prompt);
    if (n > 0 && n == prompt->n_tokens)
        n--; /* the last token is computed in any case */
    return n < tokens_min ? 0 : n;
}

int group_ideal_cached(const struct group_prompt *prompts, size_t n, size_t tokens_min,
                       uint64_t *cached, struct err *e)
{
    *cached = 0;
    if (n < 2)
        return 0;
    const struct group_prompt **sorted = calloc(n, sizeof sorted[0]);
    if (!sorted)
        return ERR_SET(e, ERR_NOMEM, "no memory to sort %zu prompts", n);
    for (size_t i = 0; i < n; i++)
        sorted[i] = &prompts[i];
    qsort(sorted, n, sizeof sorted[0], compare_prompts);
    for (size_t i = 1; i < n; i++)
        *cached += found_tokens(sorted[i - 1], sorted[i], tokens_min);
    free(sorted);
    return 0;
}
