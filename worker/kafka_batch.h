/*
 * The records of a batch of stored outcomes: results with what their rows tell as headers
 * (result_headers.h), and dead letters of those that are errors.
 *
 * What the result topic refuses for its size is replaced by an error, which readers see; the
 * answer stays in the database. What the dead-letter topic refuses is left out.
 *
 * Thread: delivery.
 */
#ifndef SHEAF_KAFKA_BATCH_H
#define SHEAF_KAFKA_BATCH_H

#include "dead_letter.h"
#include "io/kafka_burst.h"
#include "transport.h"

struct kafka_batch_origin {
    struct shared_store *store;
    const char *results_topic;
    const struct dead_letters *letters;
};

/* What an answer borrows from. */
struct kafka_batch_item;

struct kafka_batch {
    struct kafka_answer *answers;
    enum kafka_answer_state *states;   /* open, to begin with */
    const struct job_source **sources; /* room for one of each */
    struct kafka_batch_item *items;
    size_t n;
};

/* Borrows from the outputs. kafka_batch_fini it also when it fails. ERR_NOMEM with ERR_RETRY,
 * and what the store says. */
int kafka_batch_make(const struct kafka_batch_origin *origin,
                     const struct transport_output *outputs, size_t n, struct kafka_batch *b,
                     struct err *e);
void kafka_batch_fini(struct kafka_batch *b); /* accepts a zeroed one */

/* An error in place of a result that is too large; ERR_LIMIT when it is one already. */
int kafka_batch_replace_result(const struct kafka_batch_origin *origin, struct kafka_batch *b,
                               size_t i, struct err *e);
void kafka_batch_leave_letter_out(struct kafka_batch *b, size_t i);
/* Both, for what a burst found to be too large. */
int kafka_batch_shrink(const struct kafka_batch_origin *origin, struct kafka_batch *b,
                       struct err *e);

#endif
