/* The parts of opening a model: configuration, then tensors. Only for model*.c. */
#ifndef SHEAF_MODEL_INT_H
#define SHEAF_MODEL_INT_H

#include "model/gguf.h"
#include "model/model.h"

enum bias_rule { BIAS_NONE, BIAS_OPTIONAL, BIAS_REQUIRED };

/* In what the architectures differ. */
struct arch_traits {
    enum model_arch arch;
    const char *name; /* in general.architecture; the prefix of the keys */
    enum rope_pairing rope_pairing;
    enum bias_rule qkv_bias;
    enum bias_rule out_bias; /* of attn_output */
    bool has_qk_norm;
    bool has_rope_freqs; /* may have: a rope_freqs tensor is understood */
    bool rotates_whole_head;
};

const struct arch_traits *model_arch_traits(enum model_arch arch);
/* NULL in *out, and no error, for an architecture that is not supported. */
int model_find_arch(const struct gguf *g, const struct arch_traits **out, struct err *e);
int model_refuse_arch(const struct gguf *g, struct err *e);

/* Everything but n_vocab, which the tokenizer knows. */
int model_read_config(const struct gguf *g, const struct arch_traits *traits,
                      struct model_config *config, struct err *e);

/* Fills the tensors, layers, tied, rope_freqs and quant of m from m->gguf and m->config. */
int model_bind_tensors(struct model *m, struct err *e);

#endif
