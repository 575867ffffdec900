/*
 * Results that come out of a result topic, stored as a worker stores its own, together with how
 * far the topic was read: one transaction for both, so that each record counts once whenever
 * the reader dies.
 *
 * A job has one row. The same source with the same payload: the later answer takes the place of
 * the earlier one; with another payload, the rules of store.c. A line that does not say where
 * its job came from is known by its custom_id and id; its source is then its own place in the
 * result topic. A run that only results tell of is made with what they know.
 *
 * Thread: store.
 */
#ifndef SHEAF_STORE_RECEIVE_H
#define SHEAF_STORE_RECEIVE_H

#include "io/store.h"
#include "result_read.h"

/* Where a partition of a result topic is read on. */
struct result_position {
    int32_t partition;
    int64_t next;         /* offset; 0: from the beginning */
    int64_t last;         /* the record read last; -1: none */
    char last_sha256[65]; /* of its value: another one there is another topic */
};

/* One record of the topic. Borrowed. */
struct result_receipt {
    const struct result_record *record;
    const char *line; /* NUL-terminated */
    int32_t partition;
    int64_t offset;
    int64_t timestamp_us; /* 0: it has none */
};

struct receive_counts {
    uint64_t stored;   /* jobs that had no row */
    uint64_t replaced; /* an answer took the place of another */
    uint64_t repeated; /* was there already */
};

/* Stores all and the positions, or nothing; counts grows only with it. */
int store_receive(struct store *s, const char *topic, const struct result_receipt *receipts,
                  size_t n, const struct result_position *positions, size_t n_positions,
                  struct receive_counts *counts, struct err *e);
/* partition is given; the rest becomes what is stored, or the beginning. */
int store_result_position(struct store *s, const char *topic, struct result_position *position,
                          struct err *e);

#endif
