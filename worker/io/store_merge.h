/*
 * Rows of several workers' databases in one.
 *
 * A job is in the result once: a record by (topic, partition, offset, payload), a line of a
 * file by these and its run. Of two answers the one that was published stays, then one that is
 * not superseded, then the one that was there first. Two payloads of one source: the one stored
 * last is the current one, the other is history, as when a worker finds them (store.c). Runs
 * of one name become one run, so that v_runs sums up all their jobs; runs of different models
 * under one name are refused. Merging the same database again changes nothing.
 *
 * Counts of crashes and positions in result topics and output files stay behind: they are a
 * worker's own.
 */
#ifndef SHEAF_STORE_MERGE_H
#define SHEAF_STORE_MERGE_H

#include "io/store.h"

struct merge_counts {
    int64_t added, replaced, kept; /* jobs: new; in place of another; left for what is there */
};

/* into is an owner; the database at path is read only, in one transaction. A damaged one is
 * refused (ERR_FORMAT), and nothing of it comes in. counts grows. */
int store_merge(struct store *into, const char *path, struct merge_counts *counts,
                struct err *e);

#endif
