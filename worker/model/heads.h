/*
 * Medusa heads: small networks beside a model, each of which says what comes a fixed number of
 * tokens further on. All of them read h, the hidden state behind the model's last norm at
 * position t, whose own logits say token t + 1. Head i, counted from 0, says token t + 2 + i:
 *
 *     x = h;  for each of its blocks: x = x + silu(W x + b);  logits = x * output
 *
 * Files, all read as hostile input and told apart by what they hold, never by their config:
 *     GGUF            Sheaf's own, written by heads_write (heads_gguf.c)
 *     safetensors     the layouts of FasterDecoding (tied or not, alone or merged into a
 *                     checkpoint), vLLM and TensorRT-LLM (heads_names.h); a file, or a folder
 *                     of them, which is one checkpoint
 * Every tensor that belongs to heads must have a known name and the one right shape, and none
 * may be missing. A .pt file is refused: to read it is to run it.
 *
 * Immutable once open; shared by all threads.
 */
#ifndef SHEAF_HEADS_H
#define SHEAF_HEADS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "model/model.h"

enum {
    HEADS_MAX = 8,
    HEADS_BLOCKS_MAX = 4, /* of a head */
    HEADS_RANKS = 8,      /* whose accuracies a file may state */
};

struct heads_block {
    float *weight; /* [D, D] rows are outputs */
    float *bias;   /* [D] */
};

struct head {
    struct heads_block blocks[HEADS_BLOCKS_MAX];
    /* [n_draft, D], which all heads of a file may share with the first; NULL: tied, the model's
     * own output rows of those tokens. All heads have one or none has. */
    float *output;
    /* On text kept from training: how often the token of each rank was the model's own; all 0
     * when the file says nothing. */
    double accuracies[HEADS_RANKS];
};

struct heads {
    size_t n_heads;
    size_t n_blocks; /* of each head; 0: the output alone */
    size_t dim;      /* D, the model's */
    /* Tokens that the heads know of, ids rising; NULL: the whole vocabulary, n_draft = V. */
    int32_t *draft_vocab;
    size_t n_draft;
    struct head heads[HEADS_MAX];
};

/* For the model's shapes and vocabulary; ERR_FORMAT, ERR_UNSUPPORTED or ERR_CONFIG with what
 * differs and what to do. */
int heads_open(const char *path, const struct model *m, struct heads **out, struct err *e);
void heads_close(struct heads *h); /* accepts NULL */
/* "3 heads of 1 block, D 576, the model's output over 8192 tokens" */
void heads_describe(const struct heads *h, char *out, size_t out_bytes);

/* Writes a GGUF file, complete or not at all; readable by its owner alone. Tied heads only
 * store blocks, as float32. The same heads and model give the same bytes. Values that are not
 * finite are refused with ERR_INVALID. */
int heads_write(const char *path, const struct heads *h, const struct model *m, struct err *e);

#endif
