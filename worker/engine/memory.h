/*
 * Large zeroed memory, 64-byte aligned and on huge pages where the system gives them: weights,
 * KV pages, activations. Taken at start, given back at the end.
 */
#ifndef SHEAF_MEMORY_H
#define SHEAF_MEMORY_H

#include <stddef.h>

#include "base/err.h"

int memory_take(size_t bytes, const char *what, void **out, struct err *e);
void memory_give_back(void *block, size_t bytes); /* accepts NULL */
size_t memory_machine_bytes(void);

#endif
