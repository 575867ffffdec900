#include "engine/automaton_cache.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/limits.h"
#include "base/size.h"

enum {
    ENTRIES_MAX = ENGINE_SEQS_MAX,
    /* Of a prompt, that its automaton need not hold: a fourth, and no more than this. */
    OWN_SHARE = 4,
    OWN_TOKENS_MAX = 512,
};

struct entry {
    struct automaton *automaton;
    char *salt;
    int32_t *tokens;
    size_t n_tokens;
    uint64_t asked; /* for the last time, by the count of such times */
};

struct automaton_cache {
    size_t bytes_max;
    size_t bytes;
    struct entry entries[ENTRIES_MAX];
    size_t n_entries;
    uint64_t n_asked;
};

int automaton_cache_open(size_t bytes_max, struct automaton_cache **out, struct err *e)
{
    *out = NULL;
    struct automaton_cache *c = calloc(1, sizeof *c);
    if (!c)
        return ERR_SET(e, ERR_NOMEM, "no memory for indexes of prompts");
    c->bytes_max = bytes_max;
    *out = c;
    return 0;
}

static void free_entry(struct entry *entry)
{
    automaton_close(entry->automaton);
    free(entry->salt);
    free(entry->tokens);
}

void automaton_cache_close(struct automaton_cache *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->n_entries; i++)
        free_entry(&c->entries[i]);
    free(c);
}

size_t automaton_cache_bytes(const struct automaton_cache *c)
{
    return c->bytes;
}

/* Besides its automaton. */
static size_t key_bytes(const char *salt, size_t n_tokens)
{
    return strlen(salt) + 1 + n_tokens * sizeof(int32_t);
}

/* ---- finding ---------------------------------------------------------------------------- */

static size_t n_alike(const struct entry *entry, const int32_t *prompt, size_t n_prompt)
{
    const size_t n = size_min(entry->n_tokens, n_prompt);
    size_t i = 0;
    while (i < n && entry->tokens[i] == prompt[i])
        i++;
    return i;
}

/* That which has most of the prompt, when it has enough of it, or NULL. */
static struct entry *find(struct automaton_cache *c, const char *salt, const int32_t *prompt,
                          size_t n_prompt, size_t *n_shared)
{
    struct entry *best = NULL;
    *n_shared = 0;
    for (size_t i = 0; i < c->n_entries; i++) {
        struct entry *entry = &c->entries[i];
        const size_t n = n_alike(entry, prompt, n_prompt);
        if (n > *n_shared && strcmp(entry->salt, salt) == 0) {
            best = entry;
            *n_shared = n;
        }
    }
    const size_t n_own = n_prompt - *n_shared;
    return n_own <= size_min(n_prompt / OWN_SHARE, OWN_TOKENS_MAX) ? best : NULL;
}

/* ---- making room and adding ------------------------------------------------------------- */

static void drop(struct automaton_cache *c, struct entry *entry)
{
    c->bytes -= automaton_bytes(entry->automaton) + key_bytes(entry->salt, entry->n_tokens);
    free_entry(entry);
    *entry = c->entries[--c->n_entries];
}

/* False: all that is left is in use. */
static bool drop_one(struct automaton_cache *c)
{
    struct entry *oldest = NULL;
    for (size_t i = 0; i < c->n_entries; i++) {
        struct entry *entry = &c->entries[i];
        if (!automaton_is_shared(entry->automaton) && (!oldest || entry->asked < oldest->asked))
            oldest = entry;
    }
    if (oldest)
        drop(c, oldest);
    return oldest;
}

static bool make_room(struct automaton_cache *c, size_t bytes)
{
    if (bytes > c->bytes_max)
        return false;
    while (c->n_entries == ENTRIES_MAX || bytes > c->bytes_max - c->bytes)
        if (!drop_one(c))
            return false;
    return true;
}

static int add(struct automaton_cache *c, const char *salt, const int32_t *prompt,
               size_t n_prompt, struct entry **out, struct err *e)
{
    struct entry entry = {.salt = strdup(salt),
                          .tokens = malloc(n_prompt * sizeof prompt[0]),
                          .n_tokens = n_prompt};
    if (!entry.salt || !entry.tokens) {
        free_entry(&entry);
        return ERR_SET(e, ERR_NOMEM, "no memory for an index of a prompt");
    }
    const int rc = automaton_open(prompt, n_prompt, SIZE_MAX, &entry.automaton, e);
    if (rc != 0) {
        free_entry(&entry);
        return rc;
    }
    memcpy(entry.tokens, prompt, n_prompt * sizeof prompt[0]);
    c->bytes += automaton_bytes(entry.automaton) + key_bytes(salt, n_prompt);
    c->entries[c->n_entries] = entry;
    *out = &c->entries[c->n_entries++];
    return 0;
}

int automaton_cache_get(struct automaton_cache *c, const char *salt, const int32_t *prompt,
                        size_t n_prompt, struct automaton **out, size_t *n_shared,
                        struct err *e)
{
    ASSERT(n_prompt > 0 && n_prompt <= MODEL_CONTEXT_MAX);
    *out = NULL;
    struct entry *entry = find(c, salt, prompt, n_prompt, n_shared);
    if (!entry) {
        *n_shared = 0;
        if (!make_room(c, automaton_bytes_max(n_prompt) + key_bytes(salt, n_prompt)))
            return 0;
        TRY(add(c, salt, prompt, n_prompt, &entry, e));
        *n_shared = n_prompt;
    }
    entry->asked = ++c->n_asked;
    *out = automaton_share(entry->automaton);
    return 0;
}
