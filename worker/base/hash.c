#include "base/hash.h"

#include <stdbool.h>
#include <stdlib.h>
#include <xxhash.h>

uint64_t hash_bytes(const void *bytes, size_t length)
{
    return XXH3_64bits(bytes, length);
}

/* The slot that holds the hash, or the free one where it belongs. */
static size_t find_slot(const uint64_t *slots, size_t capacity, uint64_t hash)
{
    size_t at = (size_t)hash & (capacity - 1);
    while (slots[at] != 0 && slots[at] != hash)
        at = (at + 1) & (capacity - 1);
    return at;
}

static bool grow(struct hash_set *set)
{
    const size_t capacity = set->capacity ? 2 * set->capacity : 1024;
    uint64_t *slots = calloc(capacity, sizeof slots[0]);
    if (!slots)
        return false;
    for (size_t i = 0; i < set->capacity; i++)
        if (set->slots[i] != 0)
            slots[find_slot(slots, capacity, set->slots[i])] = set->slots[i];
    free(set->slots);
    set->slots = slots;
    set->capacity = capacity;
    return true;
}

enum hash_set_answer hash_set_add(struct hash_set *set, uint64_t hash)
{
    if (hash == 0)
        hash = 1;
    if (2 * (set->length + 1) > set->capacity && !grow(set))
        return HASH_SET_NOMEM;
    const size_t at = find_slot(set->slots, set->capacity, hash);
    if (set->slots[at] == hash)
        return HASH_SET_KNOWN;
    set->slots[at] = hash;
    set->length++;
    return HASH_SET_NEW;
}

bool hash_set_has(const struct hash_set *set, uint64_t hash)
{
    if (hash == 0)
        hash = 1;
    return set->length > 0 && set->slots[find_slot(set->slots, set->capacity, hash)] == hash;
}

void hash_set_fini(struct hash_set *set)
{
    free(set->slots);
    *set = (struct hash_set){0};
}
