/* One change to a model file of tests/golden/tiny/, and opening what comes of it. */
#ifndef SHEAF_TEST_MODEL_EDIT_H
#define SHEAF_TEST_MODEL_EDIT_H

#include <stdbool.h>

#include "gguf_edit.h"
#include "model/model.h"

#define TINY  SHEAF_TEST_DATA "/golden/tiny/"
#define LLAMA TINY "tiny-llama-q8_0.gguf"
#define QWEN2 TINY "tiny-qwen2-q8_0.gguf"
#define QWEN3 TINY "tiny-qwen3-q8_0.gguf"

enum edit_kind { EDIT_NONE, EDIT_U32, EDIT_F32, EDIT_BOOL, EDIT_TEXT, EDIT_I32S, EDIT_TENSOR };

/* One change to a tiny model. */
struct model_edit {
    const char *path; /* of the model it starts from */
    const char *key;  /* or tensor: left out, then added again as the rest says */
    enum edit_kind kind;
    double number;     /* U32, F32, BOOL; type of a TENSOR */
    const char *value; /* TEXT; I32S: one digit an item; TENSOR: dims, "64x320" */
};

struct gguf_bytes model_edit_apply(const struct model_edit *x);

/* Opens bytes as a model or a vocabulary, through a file that is gone afterwards. */
int model_edit_open(const struct gguf_bytes *file, bool is_vocab_only, struct model **m,
                    struct err *e);

#endif
