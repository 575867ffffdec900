/* XXH3 of bytes: for tables and for streams of random numbers, never trusted as identity. */
#ifndef SHEAF_HASH_H
#define SHEAF_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

uint64_t hash_bytes(const void *bytes, size_t length);

/* Of two words, by Fibonacci hashing (Knuth, vol. 3, 6.4): for small tables, by its highest
 * bits. */
static inline uint64_t hash_pair(uint32_t first, uint32_t second)
{
    return ((uint64_t)first << 32 | second) * UINT64_C(0x9E3779B97F4A7C15);
}

/* A set of 64-bit hashes. Zeroed is empty. Thread: one. */
struct hash_set {
    uint64_t *slots; /* 0 = free; a hash of 0 is stored as 1 */
    size_t capacity; /* a power of two, or 0 */
    size_t length;
};
enum hash_set_answer { HASH_SET_NEW, HASH_SET_KNOWN, HASH_SET_NOMEM };
enum hash_set_answer hash_set_add(struct hash_set *set, uint64_t hash);
bool hash_set_has(const struct hash_set *set, uint64_t hash);
void hash_set_fini(struct hash_set *set);

#endif
