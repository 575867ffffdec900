/*
 * Files of heads in the layouts of this world, for tests: names written out here once more,
 * values from a formula. The models of tests/golden/tiny have D 64 and 320 tokens.
 */
#ifndef SHEAF_TEST_HEADS_BUILDER_H
#define SHEAF_TEST_HEADS_BUILDER_H

#include "safetensors_builder.h"

enum { SMALL_D = 64, SMALL_V = 320 };

enum small_layout {
    SMALL_PLAIN,
    SMALL_MERGED,
    SMALL_VLLM,
    SMALL_VLLM_PREFIXED,
    SMALL_TENSORRT
};
enum small_part { SMALL_WEIGHT, SMALL_BIAS, SMALL_OUTPUT };

struct small_heads {
    enum small_layout layout;
    const char *dtype;
    size_t n_heads, n_blocks;
    bool without_bias, is_tied;
};

/* Of what small_value is asked for a tensor. */
unsigned small_seed(enum small_part part, size_t head, size_t block);
/* block of an output: how many blocks there are. */
void small_name(enum small_layout layout, enum small_part part, size_t head, size_t block,
                char out[96]);
/* Appends the tensors of head i. */
void small_head(struct st_builder *b, const struct small_heads *h, size_t i);
/* All heads, with the tensors of a base model between them where the layout has it so. */
struct gguf_bytes small_heads_file(const struct small_heads *h);
/* What a base model has beside heads; which differs by part (0 or 1). */
void small_base(struct st_builder *b, int part);

/* Writes bytes to a new file in a folder. */
void small_write(const char *folder, const char *name, const struct gguf_bytes *file);

#endif
