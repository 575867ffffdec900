/*
 * What the tree remembers of every token it ever published, for a while: an entry is found by
 * the hash of all tokens up to and with its own, whatever their salt, and tells what became of
 * it and whether any token was seen behind it. Sets of a few entries; the latest note pushes
 * the oldest out. For reports only, so a hash is identity enough.
 */
#include "engine/prefix_int.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"

enum {
    SET_ENTRIES = 8,
    ENTRIES_MIN = 4096,
    /* Twice what the pool holds, so that a page is remembered for about its life again. */
    ENTRIES_PER_PAGE = 2 * KV_PAGE_TOKENS,
};

struct prefix_seen_entry {
    uint64_t chain;
    uint32_t salt_hash;
    uint8_t fate;      /* enum prefix_fate */
    bool is_continued; /* some token was published behind it */
};

int prefix_seen_open(struct prefix_seen *s, size_t n_pages, uint64_t hash_mask, struct err *e)
{
    s->n_entries = ENTRIES_MIN;
    while (s->n_entries < n_pages * ENTRIES_PER_PAGE)
        s->n_entries *= 2;
    s->hash_mask = hash_mask;
    s->entries = calloc(s->n_entries, sizeof s->entries[0]);
    if (!s->entries)
        return ERR_SET(e, ERR_NOMEM, "no memory to remember %zu tokens", s->n_entries);
    return 0;
}

void prefix_seen_close(struct prefix_seen *s)
{
    free(s->entries);
    s->entries = NULL;
}

uint64_t prefix_seen_chain(uint64_t chain, const int32_t *tokens, size_t n_tokens)
{
    for (size_t i = 0; i < n_tokens; i++) {
        const uint64_t key[2] = {chain, (uint64_t)tokens[i]};
        chain = hash_bytes(key, sizeof key);
    }
    return chain;
}

static struct prefix_seen_entry *set_of(const struct prefix_seen *s, uint64_t chain)
{
    const size_t n_sets = s->n_entries / SET_ENTRIES;
    return &s->entries[(chain & s->hash_mask & (n_sets - 1)) * SET_ENTRIES];
}

static struct prefix_seen_entry *find(const struct prefix_seen *s, uint64_t chain,
                                      uint32_t salt_hash)
{
    struct prefix_seen_entry *set = set_of(s, chain);
    for (size_t i = 0; i < SET_ENTRIES; i++)
        if (set[i].chain == chain && set[i].salt_hash == salt_hash &&
            set[i].fate != PREFIX_FATE_NONE)
            return &set[i];
    return NULL;
}

static bool is_known(const struct prefix_seen *s, uint64_t chain)
{
    const struct prefix_seen_entry *set = set_of(s, chain);
    for (size_t i = 0; i < SET_ENTRIES; i++)
        if (set[i].chain == chain && set[i].fate != PREFIX_FATE_NONE)
            return true;
    return false;
}

static void note(struct prefix_seen *s, uint64_t chain, uint32_t salt_hash,
                 enum prefix_fate fate)
{
    struct prefix_seen_entry *set = set_of(s, chain);
    struct prefix_seen_entry *old = find(s, chain, salt_hash);
    const struct prefix_seen_entry latest = {.chain = chain,
                                             .salt_hash = salt_hash,
                                             .fate = (uint8_t)fate,
                                             .is_continued = old && old->is_continued};
    const size_t n_later = old ? (size_t)(old - set) : SET_ENTRIES - 1;
    memmove(set + 1, set, n_later * sizeof set[0]);
    set[0] = latest;
}

void prefix_seen_note(struct prefix_seen *s, const struct prefix_node *node, size_t from,
                      enum prefix_fate fate)
{
    uint64_t chain = prefix_seen_chain(node->parent->chain, node->tokens, from);
    for (size_t i = from; i < node->n_tokens; i++) {
        struct prefix_seen_entry *before = find(s, chain, node->salt_hash);
        if (before)
            before->is_continued = true;
        chain = prefix_seen_chain(chain, &node->tokens[i], 1);
        note(s, chain, node->salt_hash, fate);
    }
}

enum prefix_miss prefix_seen_explain(const struct prefix_seen *s, uint64_t chain, int32_t token,
                                     uint32_t salt_hash)
{
    const uint64_t through = prefix_seen_chain(chain, &token, 1);
    const struct prefix_seen_entry *own = find(s, through, salt_hash);
    if (own && own->fate == PREFIX_LET_GO_WANTED)
        return PREFIX_MISS_EVICTED;
    if (own && own->fate == PREFIX_LET_GO)
        return PREFIX_MISS_WINDOW;
    if (!own && is_known(s, through))
        return PREFIX_MISS_SALT;
    const struct prefix_seen_entry *before = find(s, chain, salt_hash);
    return before && before->is_continued ? PREFIX_MISS_DIFFERS : PREFIX_MISS_COLD;
}
