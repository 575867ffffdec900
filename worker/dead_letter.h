/*
 * Dead letters: the record of a job that got no answer but an error, as it came, for whoever
 * looks into it or sends it again (`sheaf dlq`).
 *
 * Key, value and headers are those of the job's record, byte for byte and in their order. Added
 * behind them, as text:
 *
 *     sheaf.error.code       as in the error result      sheaf.error.topic      where the job
 *     sheaf.error.message    1 KiB at most               sheaf.error.partition  came from
 *     sheaf.error.attempts   times it was begun          sheaf.error.offset
 *     sheaf.error.worker                                 sheaf.error.group      consumer group
 *     sheaf.error.timestamp  RFC 3339, UTC               sheaf.error.job_id     its custom_id
 *     sheaf.error.stage      intake or engine
 *
 * and, when dlq.headers asks for them, those that the tools of Kafka Connect (text) and of
 * Spring (numbers are big-endian bytes) read.
 */
#ifndef SHEAF_DEAD_LETTER_H
#define SHEAF_DEAD_LETTER_H

#include "io/queue_kafka.h"
#include "job.h"
#include "transport.h"

enum dead_letter_headers {
    DEAD_LETTER_OWN = 0,
    DEAD_LETTER_CONNECT = 1,
    DEAD_LETTER_SPRING = 2
};

struct dead_letters {
    const char *topic; /* NULL: none are written */
    const char *group, *worker;
    unsigned headers; /* bits of enum dead_letter_headers */
};

/* own, connect, spring or all. ERR_CONFIG. */
int dead_letter_parse_headers(const char *text, unsigned *out, struct err *e);

/* What a message of one borrows from. */
struct dead_letter {
    struct kafka_header *headers; /* owned */
    char *text;                   /* owned; the values of the added ones */
};
void dead_letter_fini(struct dead_letter *letter); /* accepts a zeroed one */

/* Borrows from the output and from letter. The output has a record and an error. ERR_NOMEM. */
int dead_letter_make(const struct dead_letters *d, const struct transport_output *output,
                     struct dead_letter *letter, struct kafka_message *out, struct err *e);

#endif
