/*
 * Lifting: long documents leave their job lines, each text goes once to the documents topic
 * under the hash of its bytes, and the lines refer to it. A worker puts the texts back before
 * it builds the prompt, so that answers, groups and keys stay what they were.
 *
 * Documents are acknowledged before the jobs that refer to them are sent: lift_flush first.
 */
#ifndef SHEAF_LIFT_H
#define SHEAF_LIFT_H

#include "io/queue_kafka.h"
#include "job.h"

enum { LIFT_BATCH = 64, LIFT_BYTES = 16 << 20 };

struct lift {
    struct kafka_sink *sink; /* borrowed, as is topic */
    const char *topic;
    size_t bytes_min; /* shorter texts stay, unless they were a reference in the line */

    void *known; /* references that were sent; a tree of tsearch */
    struct kafka_message messages[LIFT_BATCH];
    size_t n, bytes; /* of the messages */
    int failure;     /* of a flush: no job that came after may be sent */
    uint64_t n_documents, n_references;
    int64_t bytes_saved;
};

/* *out: the new line, free() it; NULL when nothing of the job is lifted. bytes are the line
 * that the job, which has no error, was parsed from. */
int lift_line(struct lift *l, const struct job *job, const char *bytes, size_t length,
              char **out, struct err *e);
/* Sends what is waiting and waits until it is acknowledged. */
int lift_flush(struct lift *l, struct err *e);
void lift_fini(struct lift *l);

#endif
