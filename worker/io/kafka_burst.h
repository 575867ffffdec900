/*
 * Exactly once: results, and the offsets of the jobs that they answer, become visible together,
 * in one short transaction. No transaction is open while anything is computed.
 *
 *     snapshot   which of the answers are still ours to give, what is settled with them, and as
 *                which member of which generation we say so, all under one lock
 *     begin, produce, send the offsets, commit
 *
 *     what happens                          what is done
 *     a text beside an offset is refused    aborted, and done again with the answers that need
 *                                           no longer one than half of it
 *     a call may be repeated                repeated, for a while
 *     the transaction must be aborted       aborted; ERR_RETRY, and the next call begins anew.
 *     (also: the group has moved on)        Nobody has seen anything of it
 *     the outcome of a commit is unknown    a new producer, which ends what the old one left;
 *     the producer has failed for good      then the group's offsets tell what was committed
 *     fenced twice within five minutes,     ERR_FATAL: another worker has the same id
 *     and not for a transaction's length
 *     a start, or anything but success      before the next commit, what brokers may have left
 *                                           open of this id is ended (kafka_undecided.c)
 *
 * Gates against a worker that was given up and comes back: the producer's epoch when its
 * successor has the same id, the group's generation when another one has its partitions.
 *
 * Thread: delivery; the source is polled by another.
 */
#ifndef SHEAF_KAFKA_BURST_H
#define SHEAF_KAFKA_BURST_H

#include "io/queue_kafka.h"

struct kafka_burst;

/* One job's result; a message without a value settles its job and says nothing. A dead letter
 * goes with it, unless its topic is NULL. */
struct kafka_answer {
    struct kafka_message message, dead_letter;
    const char *topic; /* of the job */
    int32_t partition;
    int64_t offset;
    uint64_t lease;
};

enum kafka_answer_state {
    ANSWER_OPEN,             /* not given */
    ANSWER_GIVEN,            /* visible, and its job is settled */
    ANSWER_NOT_OURS,         /* its partition went to another worker; not given */
    ANSWER_TOO_LARGE,        /* for the topic; nothing of the burst was given */
    ANSWER_LETTER_TOO_LARGE, /* its dead letter is, likewise */
    ANSWER_DELAYED,          /* the brokers take no text that tells of it; not given. Offer it
                                again after answers to jobs before it */
};

/*
 * Ends what a former producer of this transactional_id left, so open it before the source: what
 * the group has committed is known only then. ERR_BROKER with ERR_RETRY when no broker answers.
 */
int kafka_burst_open(const struct kafka_options *o, struct kafka_burst **out, struct err *e);
void kafka_burst_close(struct kafka_burst *b); /* accepts NULL */
/* Nobody has heard whether the last burst came true; the next call finds out. */
bool kafka_burst_is_unsure(const struct kafka_burst *b);

/*
 * 0: each answer is given, delayed or not ours. ERR_LIMIT: some are too large; call again with
 * others in their places. ERR_RETRY in e->flags: the same call may succeed later.
 */
int kafka_burst_send(struct kafka_burst *b, struct kafka_source *source,
                     const struct kafka_answer *answers, size_t n,
                     enum kafka_answer_state *states, struct err *e);

#endif
