/*
 * What people do with a database as a whole: check it, give its lines out, make it small.
 */
#ifndef SHEAF_STORE_UPKEEP_H
#define SHEAF_STORE_UPKEEP_H

#include "io/store.h"

/* The last words about a damaged database. */
#define STORE_ADVICE                                                                           \
    "keep the file and its -wal; sheaf sink --db new.db reads the answers again from the "     \
    "result topic"

/* One thing that is wrong, as a sentence. */
typedef void (*store_complain)(void *ctx, const char *sentence);

struct store_census {
    int64_t jobs, runs, unpublished;
};

/*
 * Reads everything: SQLite's integrity_check and foreign keys; every output, line, document and
 * draft has its job, and every current job its output; prompt = cached + computed; what the
 * views sum up is what the rows say; each stored line says the same as the columns of its
 * job. *n_faults counts what was complained about, at most some of each kind. An error is
 * returned only when the check cannot go on.
 */
int store_check(struct store *s, store_complain complain, void *ctx, size_t *n_faults,
                struct store_census *census, struct err *e);

/* The line of each current job that is not superseded, in the order of the topics; run_id NULL:
 * of all runs. An error of each ends it. */
int store_each_line(struct store *s, const char *run_id,
                    int (*each)(void *ctx, const char *line, size_t length, struct err *e),
                    void *ctx, struct err *e);

/* For the owner: gives room that is free back to the file system. Bytes of the file. */
int store_vacuum(struct store *s, int64_t *bytes_before, int64_t *bytes_after, struct err *e);

#endif
