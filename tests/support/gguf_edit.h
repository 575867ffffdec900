/*
 * Takes a well-formed file apart into a builder, so that a test can leave out, replace or add a
 * key or tensor of a real model. Walks the bytes itself; shares no code with the reader. Only
 * for files of tests/: what it does not expect aborts.
 */
#ifndef SHEAF_TEST_GGUF_EDIT_H
#define SHEAF_TEST_GGUF_EDIT_H

#include "gguf_builder.h"

/* Fills b with the file's keys and tensors but those two names (either may be NULL). */
void gguf_edit_begin(const struct gguf_bytes *file, const char *dropped_key,
                     const char *dropped_tensor, struct gguf_builder *b);

/* Where a tensor's data begins, or NULL. */
const uint8_t *gguf_edit_find(const struct gguf_bytes *file, const char *tensor);

#endif
