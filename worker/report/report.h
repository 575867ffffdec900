/*
 * What `sheaf stats` and `sheaf results` print, from the views of the database.
 *
 * run_id NULL means the run begun last, for every function but report_results. Text goes to a
 * terminal; JSON is one object (stats) or one object a line (results).
 */
#ifndef SHEAF_REPORT_H
#define SHEAF_REPORT_H

#include <stdbool.h>
#include <stdio.h>

#include "base/err.h"
#include "io/store.h"

/* The id of the run begun last (free() it); ERR_NOTFOUND when there is none. */
int report_latest_run(struct store *store, char **run_id, struct err *e);

/* A row per metric of the run: n, mean, p50, p90, p95, p99, max in milliseconds. */
int report_latency(struct store *store, const char *run_id, bool json, FILE *out,
                   struct err *e);
/* The run with its counts, tokens and rates; the failures by code, if there are any. */
int report_run_summary(struct store *store, const char *run_id, bool json, FILE *out,
                       struct err *e);
/* A row per run. */
int report_runs(struct store *store, bool json, FILE *out, struct err *e);
/* The summary, then the latency table; JSON: {"run", "latency", "failures", "slowest"}. */
int report_stats(struct store *store, const char *run_id, bool json, FILE *out, struct err *e);

enum report_form {
    REPORT_TABLE, /* one row a job, the answer cut to the width */
    REPORT_TEXT,  /* question and whole answer under each other */
    REPORT_JSON,  /* one object of v_jobs a line */
    REPORT_LINES, /* the result lines as they were published */
};

struct report_results_options {
    const char *run_id;    /* NULL: all runs */
    const char *status;    /* "succeeded", "failed", ...; NULL: all */
    const char *custom_id; /* NULL: all */
    int64_t limit;         /* 0: all */
    enum report_form form;
    int width; /* of the terminal, for REPORT_TABLE; 0: 100 */
};
/* In the order of the sources: the order of the input file. *n (may be NULL): jobs printed. */
int report_results(struct store *store, const struct report_results_options *options, FILE *out,
                   size_t *n, struct err *e);

#endif
