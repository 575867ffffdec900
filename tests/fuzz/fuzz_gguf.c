/*
 * libFuzzer target: any bytes as a model file; whatever is accepted is read through every
 * look-up. Build with clang and -DSHEAF_FUZZ=ON, then
 *   fuzz_gguf -dict=tests/fuzz/gguf.dict NEW_CORPUS tests/fixtures/gguf
 */
#include <stddef.h>
#include <stdint.h>

#include "gguf_visit.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    uint64_t sum;
    gguf_visit_bytes(bytes, size, &sum);
    return 0;
}
