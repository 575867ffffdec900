/* What the golden and equality tests share: reading expectations, opening engines. */
#ifndef SHEAF_TEST_GOLDEN_H
#define SHEAF_TEST_GOLDEN_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"

/* These stop the program with a sentence when a file is missing or malformed: a test without
 * its data must not pass. */
json_t *golden_json(const char *path_under_tests);
/* The JSON values of a .jsonl file as an array. */
json_t *golden_jsonl(const char *path_under_tests);
/* All floats of a little-endian float32 file; free() them. */
float *golden_floats(const char *path_under_tests, size_t *n);
/* The integers of a JSON array; free() them. */
int32_t *golden_ids(const json_t *array, size_t *n);
/* The first of the greatest. */
size_t golden_argmax(const float *x, size_t n);
double golden_number(const json_t *array, size_t index);
char *golden_path(const char *path_under_tests);

/* The demo model's path: SHEAF_MODEL, or where ops/setup puts it. */
const char *golden_demo_model(void);

struct model *golden_open_model(const char *path);
/* name: of a file in golden/tiny. */
struct model *golden_open_tiny(const char *name);
/* isa: "ref", "avx2", "avx512". options NULL: batch 16, chunk 64, step 128, two threads. What
 * names no device gets that of SHEAF_TEST_DEVICE, computing exactly, unless its KV type is
 * int8. */
struct engine *golden_open_engine(const struct model *m, const char *isa, enum act_kind act,
                                  enum kv_type kv, const struct engine_options *options);
/* The kernel sets of this CPU and build, worst first. */
size_t golden_isas(const char *out[3]);

#endif
