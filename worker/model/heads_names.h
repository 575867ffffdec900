/*
 * What tensors of heads are called in the layouts of files. i counts heads and l their blocks,
 * both from 0; L is the number of blocks.
 *
 *     plain    {i}.{l}.linear.weight  {i}.{l}.linear.bias  {i}.{L}.weight
 *              FasterDecoding/Medusa and text-generation-inference; the last one is absent when
 *              the model's own output is meant
 *     merged   the same behind medusa_head., among the tensors of the base model
 *     vLLM     blocks.{i}.layers.{l}.weight  blocks.{i}.layers.{l}.bias  lm_heads.{i}.weight
 *              token_map; any of them also behind medusa_heads. Without biases they are 0; if
 *              lm_heads.0.weight (or lm_head.weight) stands alone it is the output of all heads
 *     TensorRT medusa_heads.{i}.medusa_layers.{l}.linear.weight  (and .bias)
 *              medusa_heads.{i}.lm_head.weight, among the tensors of the base model
 *     GGUF     medusa.{i}.blk.{l}.weight  medusa.{i}.blk.{l}.bias  medusa.{i}.output.weight
 *              Sheaf's own (heads_gguf.c); the last one is absent when tied
 *
 * A layout is added as rows of the table in heads_names.c. Pure. Thread: any.
 */
#ifndef SHEAF_HEADS_NAMES_H
#define SHEAF_HEADS_NAMES_H

#include <stdbool.h>
#include <stddef.h>

enum heads_layout {
    HEADS_PLAIN,
    HEADS_MERGED,
    HEADS_VLLM,
    HEADS_TENSORRT,
    HEADS_GGUF,
    HEADS_LAYOUTS
};

enum heads_part {
    HEADS_WEIGHT,
    HEADS_BIAS,
    HEADS_OUTPUT,
    HEADS_OUTPUT_OF_ALL,
    HEADS_TOKEN_MAP
};

struct heads_name {
    enum heads_layout layout;
    enum heads_part part;
    size_t head;  /* 0 for parts that belong to all */
    size_t block; /* of WEIGHT and BIAS; of a plain or merged OUTPUT: L */
};

enum { HEADS_NAME_BYTES = 96, HEADS_INDEX_MAX = 99999 };

/* false: no name of heads. */
bool heads_name_parse(const char *name, struct heads_name *out);
/* The name that a tensor has in its layout; for sentences about what is missing. */
void heads_name_print(const struct heads_name *name, char out[HEADS_NAME_BYTES]);

/* Files of the layout hold the base model too; its tensors are none of ours. */
bool heads_layout_has_base(enum heads_layout layout);
/* In such a file: is this ours, by its prefix, whether its name is known or not? */
bool heads_layout_owns(enum heads_layout layout, const char *name);
/* Without an output of their own the heads use the model's. */
bool heads_layout_may_be_tied(enum heads_layout layout);
/* Blocks may have no biases at all. */
bool heads_layout_may_lack_bias(enum heads_layout layout);
const char *heads_layout_name(enum heads_layout layout);

#endif
