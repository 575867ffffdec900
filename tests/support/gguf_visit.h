/* Reads everything of a parsed file that its look-ups give out, for fuzzing and mutation tests:
 * under ASan a wrong bound anywhere shows. */
#ifndef SHEAF_TEST_GGUF_VISIT_H
#define SHEAF_TEST_GGUF_VISIT_H

#include <stddef.h>
#include <stdint.h>

/* Parses the bytes and visits what came out. Returns the parser's code. *sum depends on all
 * bytes that were given out, so that no read can be optimised away; it may be NULL. */
int gguf_visit_bytes(const void *bytes, size_t size, uint64_t *sum);

#endif
