/*
 * The least time that a step can take on a machine of which three peaks are known.
 *
 *     computing = byte_ops / int8 + float_ops / f32 + attention_ops / attention
 *     reading   = bytes / read
 *     seconds   = max(computing, reading)
 *
 * byte_ops: 2 for each quantised weight that a row meets, the head's only for rows that want
 * logits. float_ops: the same for float weights. attention_ops: 4 * H * HD * L for each row and
 * key that it sees: a multiplication and an addition for the score, and for the value. bytes:
 * every packed weight once, and the KV of every token once however many sequences see it.
 * Norms, rotation, softmax, sampling and joins count as nothing, computing and reading as
 * perfectly side by side: no step gets there.
 */
#ifndef SHEAF_ROOFLINE_H
#define SHEAF_ROOFLINE_H

#include <stdbool.h>

struct model;

struct roofline_peaks {
    double int8, f32; /* operations a second */
    double read;      /* bytes a second */
    double attention; /* operations a second of the numbers that attention multiplies */
};

/* Weights that a row meets, by what multiplies them, and what a step reads. */
struct roofline_model {
    double layer_byte_weights, layer_float_weights;
    double head_byte_weights, head_float_weights;
    double attention_ops; /* of a row and a key */
    double weights_bytes;
    double kv_token_bytes;
};

struct roofline_step {
    double rows, logits_rows;
    double row_keys;  /* keys that each row sees, added up over the rows */
    double kv_tokens; /* tokens whose keys and values are read */
};

/* quantises: activations are int8 where the weights allow it. weights_bytes and kv_token_bytes
 * are left to the caller. */
struct roofline_model roofline_count(const struct model *m, bool quantises);
double roofline_compute_s(const struct roofline_model *m, const struct roofline_step *step,
                          const struct roofline_peaks *peaks);
double roofline_read_s(const struct roofline_model *m, const struct roofline_step *step,
                       const struct roofline_peaks *peaks);
/* The greater of the two. */
double roofline_s(const struct roofline_model *m, const struct roofline_step *step,
                  const struct roofline_peaks *peaks);

/* A whole prompt of n tokens, of which only the last wants logits. */
struct roofline_step roofline_prefill(double n);
/* n sequences that decode, with so many keys in all, of which the first shared_tokens of each
 * are the same. */
struct roofline_step roofline_decode(double n, double row_keys, double shared_tokens);

#endif
