/* What the dead_letters*.c files share. */
#ifndef SHEAF_DEAD_LETTERS_INT_H
#define SHEAF_DEAD_LETTERS_INT_H

#include "dead_letters.h"
#include "kafka_reader_int.h"

struct dead_letters {
    const struct kafka_options *kafka;
    const char *topic;
    struct kafka_reader *reader;
    int n_partitions;
    char *notes_group;             /* that notes what was sent again */
    struct offset_bits *committed; /* [n_partitions] */
};

/* What there is of a partition. Notes of a topic that was made anew are forgotten. */
int dead_letters_range(struct dead_letters *d, int32_t partition, struct kafka_range *out,
                       struct err *e);
/* committed anew. is_stable: as the last word of all transactions. */
int dead_letters_read_notes(struct dead_letters *d, bool is_stable, struct err *e);
/* What `message` is. */
void dead_letters_read(const struct dead_letters *d, const rd_kafka_message_t *message,
                       struct dead_letter *out);
/* Is it of our group, whatever its job topic? */
bool dead_letters_is_of_group(const struct dead_letters *d, const struct dead_letter *letter);
bool dead_letter_header_is(const struct dead_letter *letter, const char *name,
                           const char *text);

#endif
