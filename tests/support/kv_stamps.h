/*
 * In place of keys and values: a number of a token, of all tokens before it and of the salt,
 * written to its slot in every layer and head of a page. What a sequence finds in a slot it
 * did not compute is then right or wrong beyond doubt.
 */
#ifndef SHEAF_TEST_KV_STAMPS_H
#define SHEAF_TEST_KV_STAMPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/kvpool.h"

enum { STAMP_LAYERS = 2, STAMP_HEADS = 2 };

/* A pool whose pages have room for the stamps. Stops the program when there is no memory. */
struct kvpool *stamps_open_pool(size_t n_pages);

void stamps_write(struct kvpool *pool, const int32_t *pages, const char *salt,
                  const int32_t *tokens, size_t from, size_t to);
/* The first of positions [0, n) whose slot does not hold its stamp; n when all do. */
size_t stamps_first_wrong(const struct kvpool *pool, const int32_t *pages, const char *salt,
                          const int32_t *tokens, size_t n);

#endif
