/*
 * The hidden states of texts: what a model thought behind every token, for training what reads
 * it. Through the same steps as engine_logits, outside the queue.
 *
 * Texts are read one after the other. A text that begins as the one before it keeps the pages
 * of what both have, so that texts in order of their tokens compute what they share once.
 *
 * Thread: the engine's. No sequence of the engine may be active.
 */
#ifndef SHEAF_ENGINE_HIDDEN_H
#define SHEAF_ENGINE_HIDDEN_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/engine.h"

struct engine_hidden;

/* The engine is borrowed and must outlive it. */
int engine_hidden_open(struct engine *eng, struct engine_hidden **out, struct err *e);
void engine_hidden_close(struct engine_hidden *h); /* accepts NULL */

/*
 * Of positions [*first, n), *first being how many tokens the text has in common with the one
 * before (n where it has no other): hidden[k] -> [D] behind the last norm at position
 * *first + k, best[k] the id whose logit there is the greatest. Both have room for n rows.
 * ERR_CONTEXT and the other refusals of engine_check; then the next text shares nothing.
 */
int engine_hidden_run(struct engine_hidden *h, const int32_t *tokens, size_t n, size_t *first,
                      float *hidden, int32_t *best, struct err *e);

#endif
