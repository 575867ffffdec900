/*
 * What heads are trained on, from what a user has:
 *
 *     a database of past runs   its jobs with the answers they got. The database keeps answers
 *                               but no prompts: those are read again from the input files it
 *                               names, or from one that the caller names, and belong together
 *                               by the hash of the job's line.
 *     a file of job lines       prompts alone
 *     a text file               its paragraphs, with blank lines between them
 *
 * Job lines become prompts as a worker makes them.
 */
#ifndef SHEAF_HEADS_CORPUS_H
#define SHEAF_HEADS_CORPUS_H

#include <stdint.h>

#include "base/settings.h"
#include "model/model.h"
#include "train/corpus.h"

struct heads_corpus_options {
    const struct settings *settings;
    const struct model *model;
    const char *path;
    const char *input; /* job lines of the database's answers; NULL: the files that it names */
};

struct heads_corpus_counts {
    uint64_t texts;
    uint64_t answers;   /* of them have one */
    uint64_t unmatched; /* job lines that the database has no answer for */
    uint64_t bad;       /* job lines that cannot be used */
};

/* Not yet prepared. */
int heads_corpus_read(const struct heads_corpus_options *o, struct corpus *out,
                      struct heads_corpus_counts *counts, struct err *e);

#endif
