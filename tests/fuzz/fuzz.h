/* The entry that libFuzzer calls and replay.c too. */
#ifndef SHEAF_FUZZ_H
#define SHEAF_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
