/*
 * Logits -> token.
 *
 * Order of operations: logit bias; repetition penalty (over prompt and output: positive logits
 * divided, negative multiplied), frequency and presence penalty (over output); then greedy
 * arg-max when temperature is 0; else temperature, top-k, top-p, min-p on the sorted
 * distribution, and one draw. Ties go to the lower id. The random number is a pure function
 * of (seed, stream, position), so a job draws the same numbers whatever runs beside it.
 *
 * A device finds the best candidates of a row and the weight of all of them (device.h). Where
 * nothing but temperature and cuts is wanted, most draws need no more than that; the others
 * need the row. Which of the two it is does not show: weights and their total are the same.
 */
#ifndef SHEAF_SAMPLE_H
#define SHEAF_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "device.h"

struct logit_bias {
    int32_t id;
    float bias;
};

struct sample_params {
    float temperature;        /* 0 = greedy */
    int32_t top_k;            /* 0 = off */
    float top_p;              /* 1 = off */
    float min_p;              /* 0 = off */
    float repetition_penalty; /* 1 = off */
    float presence_penalty;   /* 0 = off */
    float frequency_penalty;  /* 0 = off */
    uint64_t seed;
    uint64_t stream;               /* tells jobs of one seed apart */
    const struct logit_bias *bias; /* borrowed by sample_token, copied by engine_submit */
    size_t n_bias;
};

/* Temperature 0 and everything off. */
struct sample_params sample_params_greedy(void);

/* Scratch of one sampler: [V] candidates. Thread: one. */
struct sampler;
int sampler_open(size_t n_vocab, struct sampler **out, struct err *e);
void sampler_close(struct sampler *s);

/*
 * history = prompt then output tokens; position = index of the token to be drawn. logits are
 * [V] and changed in place. Returns the token.
 */
int32_t sample_token(struct sampler *s, const struct sample_params *p, float *logits,
                     const int32_t *history, size_t n_prompt, size_t n_history);

/* No bias, no penalties: tokens depend on the logits alone. */
bool sample_is_plain(const struct sample_params *p);
/* What sample_candidate takes: plain, not greedy, and top-k is off or within the candidates. */
bool sample_takes_candidates(const struct sample_params *p);

/*
 * From what a device found of a row at p's temperature. logits are the row, [V], or NULL: it is
 * not at hand. False: it is needed.
 */
bool sample_candidate(struct sampler *s, const struct sample_params *p,
                      const struct device_candidates *found, const float *logits,
                      size_t position, int32_t *token);

#endif
