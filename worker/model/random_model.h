/*
 * Model files of a real model's shape and random weights: whatever such a model answers, it
 * takes as long as the real one. For measuring speed where no weights are at hand.
 *
 * A weight is uniform with a mean of about 0 and variance 1 / (inputs of its matrix), so that
 * numbers stay about 1 through all layers; norms are 1. The same shape, type and seed give the
 * same bytes. The vocabulary is of made-up texts; there is no chat template.
 */
#ifndef SHEAF_RANDOM_MODEL_H
#define SHEAF_RANDOM_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "quant.h"

enum { RANDOM_SEED = 1 }; /* where any will do */

/* In the letters of struct model_config. */
struct random_shape {
    const char *name;
    size_t n_layers, dim, n_heads, n_kv_heads, head_dim, ffn_dim, n_vocab, context;
    double rope_base;
    bool tied; /* the embedding is the head too */
};

/* "tiny", "135m", "1b", "3b", "8b"; ERR_USAGE names them. */
int random_shape_find(const char *name, const struct random_shape **out, struct err *e);
/* "F32", "BF16", "Q8_0", "Q4_0", in either case; ERR_USAGE names them. */
int random_type_find(const char *name, enum quant_type *out, struct err *e);
/* Of the file, but for a few megabytes of names and vocabulary. */
uint64_t random_model_bytes(const struct random_shape *s, enum quant_type type);
/* Every matrix has the type. The file is there as a whole or not at all. */
int random_model_write(const char *path, const struct random_shape *s, enum quant_type type,
                       uint64_t seed, struct err *e);

#endif
