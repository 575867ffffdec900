/*
 * The way from files to heads. Only for heads*.c.
 *
 *     path --heads_find--> tensors with names of heads --heads_plan--> each in its place,
 * none missing --heads_check--> of the right shapes --heads.c--> floats
 */
#ifndef SHEAF_HEADS_INT_H
#define SHEAF_HEADS_INT_H

#include "base/limits.h"
#include "model/gguf.h"
#include "model/heads.h"
#include "model/heads_names.h"
#include "model/safetensors.h"

enum {
    HEADS_TENSORS_MAX = 1024, /* with names of heads, in all files */
    HEADS_FOREIGN_BYTES = 256,
};

/* A tensor of a file whose name is one of heads. */
struct heads_tensor {
    struct heads_name name;
    char text[HEADS_NAME_BYTES]; /* as the file spells it */
    size_t n_dims;
    uint64_t n_rows, n_cols; /* n_cols is the length of a vector, whose n_rows is 1 */
    bool is_float, is_integer;
    char type_name[16];
    const struct safetensors *file; /* where it is: this and the next, */
    const struct safetensors_tensor *stored;
    const struct gguf_tensor *in_gguf; /* or this */
};

struct heads_found {
    struct heads_tensor *tensors; /* owned */
    size_t n_tensors, capacity;
    /* Of the tensors with other names the first that each layout would call its own. */
    char foreign[HEADS_LAYOUTS][HEADS_FOREIGN_BYTES];
    struct safetensors *files[SAFETENSORS_FILES_MAX]; /* owned */
    size_t n_files;
    struct gguf *gguf; /* owned, or NULL */
};

/* heads_find.c. Errors begin with the path; found is to be closed either way. */
int heads_find(const char *path, struct heads_found *found, struct err *e);
void heads_found_close(struct heads_found *found);
/* n elements from the first-th on, in the order of the file; ERR_FORMAT names the tensor when
 * one is not finite. */
int heads_read_floats(const struct heads_tensor *t, uint64_t first, float *out, size_t n,
                      struct err *e);

/* heads_plan.c. The tensors are borrowed from found. */
struct heads_plan {
    enum heads_layout layout;
    size_t n_heads, n_blocks;
    bool has_bias;
    const struct heads_tensor *weights[HEADS_MAX][HEADS_BLOCKS_MAX];
    const struct heads_tensor *biases[HEADS_MAX][HEADS_BLOCKS_MAX];
    const struct heads_tensor *outputs[HEADS_MAX];
    const struct heads_tensor *output_of_all; /* one for all heads; or NULL */
    const struct heads_tensor *token_map;     /* or NULL */
};
int heads_plan(const struct heads_found *found, struct heads_plan *plan, struct err *e);
/* Shapes and types; outputs have n_draft rows or, where a token map says which of them are
 * wanted, those of the whole vocabulary. */
int heads_check(const struct heads_plan *plan, const struct model_config *model, size_t n_draft,
                struct err *e);

/* heads_gguf.c: what the keys say, held against plan and model; sets the draft vocabulary and
 * the accuracies of h. */
int heads_read_keys(const struct gguf *g, const struct heads_plan *plan, const struct model *m,
                    struct heads *h, struct err *e);

#endif
