/* The answers of a database, for what reads them again: job by job, with what identifies the
 * input that each belongs to. */
#ifndef SHEAF_ANSWERS_H
#define SHEAF_ANSWERS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "io/store.h"

/* Borrowed while it is told of. */
struct report_answer {
    const char *topic; /* of a file: its path */
    bool is_file;
    const char *payload_sha256;
    const char *text;
    size_t length;
};

/* Every job of every run that was answered, those of a run begun later first. An error of each
 * ends it. */
int report_answers(struct store *store,
                   int (*each)(void *ctx, const struct report_answer *answer, struct err *e),
                   void *ctx, struct err *e);

#endif
