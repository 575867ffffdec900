/* What the dlq*.c files share. */
#ifndef SHEAF_DLQ_INT_H
#define SHEAF_DLQ_INT_H

#include "dlq.h"
#include "kafka_admin_int.h"

struct dlq {
    const struct kafka_options *kafka;
    const char *topic;
    struct kafka_admin *reader;
    int n_partitions;
    char *notes_group;             /* that notes what was sent again */
    struct offset_bits *committed; /* [n_partitions] */
};

/* What there is of a partition. Notes of a topic that was made anew are forgotten. */
int dlq_range(struct dlq *d, int32_t partition, struct kafka_range *out, struct err *e);
/* committed anew. is_stable: as the last word of all transactions. */
int dlq_read_notes(struct dlq *d, bool is_stable, struct err *e);
/* What `message` is. */
void dlq_read(const struct dlq *d, const rd_kafka_message_t *message, struct dlq_letter *out);
/* Is it of our group, whatever its job topic? */
bool dlq_is_of_group(const struct dlq *d, const struct dlq_letter *letter);
bool dlq_letter_header_is(const struct dlq_letter *letter, const char *name, const char *text);

#endif
