/*
 * A model: configuration, tensors bound by name with their shapes checked, tokenizer, chat
 * template family. Immutable once open; shared by all threads.
 *
 * This is the only place that knows tensor names. Architectures: llama (tied or untied head,
 * GQA, rope scaling, rope_freqs), qwen2 (q/k/v biases), qwen3 (RMS norm of each q and k head).
 * Any other is refused by name with the list of those that are supported, and so are metadata
 * and tensors that would change the arithmetic in a way the engine does not know: nothing is
 * guessed or left out in silence.
 */
#ifndef SHEAF_MODEL_H
#define SHEAF_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels.h"
#include "model/template.h"
#include "model/tokenizer.h"

enum model_arch { MODEL_LLAMA, MODEL_QWEN2, MODEL_QWEN3 };

/* Stored rows in the file's type; data NULL: the model has no such tensor. Vectors (norms,
 * biases) are F32, F16 or BF16. */
struct tensor {
    enum quant_type type;
    size_t n_rows; /* 1 for vectors */
    size_t n_cols;
    const void *data; /* borrowed from the model's file; NULL after model_drop_weights */
};

struct model_config {
    enum model_arch arch;
    size_t n_layers;   /* L */
    size_t dim;        /* D */
    size_t n_heads;    /* H */
    size_t n_kv_heads; /* KVH, divides H */
    size_t head_dim;   /* HD: 16, or a multiple of 32 */
    size_t ffn_dim;    /* F */
    size_t n_vocab;    /* V */
    size_t context;    /* positions the model was trained for */
    size_t n_rot;      /* rotated dims of a head, even */
    enum rope_pairing rope_pairing;
    double rope_base;
    double rope_scale; /* positions are multiplied by this; 1 = no scaling */
    float rms_eps;
};

struct model_layer {
    struct tensor attn_norm, wq, wk, wv, wo, bq, bk, bv, bo, q_norm, k_norm;
    struct tensor ffn_norm, gate, up, down;
};

struct model {
    struct model_config config;
    char name[128];  /* general.name or the file's name, printable */
    char quant[16];  /* the type most weight bytes have: "Q4_1" */
    char sha256[65]; /* of the file, lower-case hex */
    size_t file_bytes;
    struct tensor token_embd;  /* [V, D]; stays after model_drop_weights */
    struct tensor output_norm; /* [D] */
    struct tensor output;      /* [V, D]; the same as token_embd when tied */
    bool tied;
    float *rope_freqs; /* [n_rot / 2] divisors of the angles, or NULL */
    struct model_layer *layers;
    struct tokenizer *tokenizer;
    enum template_family template_family; /* TEMPLATE_UNKNOWN when not recognised */
    const char
        *default_system; /* what its template says when no system text is given, or NULL */
    struct gguf *gguf;   /* owned */
};

int model_open(const char *path, struct model **out, struct err *e);
/*
 * Opens only configuration and tokenizer of a file, which may have no tensors at all, and binds
 * none. The architecture need not be a supported one: then config is all zero but for n_vocab.
 */
int model_open_vocab(const char *path, struct model **out, struct err *e);
/* Gives the memory of all tensors but token_embd back, once their values have been packed
 * elsewhere: their data becomes NULL. No other thread may be using the model. */
void model_drop_weights(struct model *m);
void model_close(struct model *m);

const char *model_arch_name(enum model_arch arch);

#endif
