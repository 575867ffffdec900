/*
 * The first prompts of a run, kept to see afterwards what they share and where a piece that
 * differs breaks it (jobs/advice.h). Bounded: once a job does not fit, none is kept any more,
 * so that what is kept is always the beginning.
 *
 * Thread: one at a time; a run's intake adds, and who began it prints after its end.
 */
#ifndef SHEAF_ADVICE_SAMPLE_H
#define SHEAF_ADVICE_SAMPLE_H

#include <stdbool.h>

#include "advice.h"
#include "job.h"

struct advice_sample_job {
    int64_t offset; /* of a Kafka record, or the line of a file */
    int32_t partition;
    bool is_file;
    char group[33]; /* of struct prompt; "" none */
    char *custom_id;
};

struct advice_sample {
    struct group_prompt *prompts;   /* [n] copies */
    struct advice_sample_job *jobs; /* [n] */
    size_t n, capacity;
    size_t jobs_max, tokens_max;
    uint64_t n_tokens;
    bool is_full;
};

enum {
    SAMPLE_JOBS_MAX = 4096, /* of a run: 32 MiB of tokens at most */
    SAMPLE_TOKENS_MAX = 8 << 20,
};

void advice_sample_init(struct advice_sample *sample, size_t jobs_max, size_t tokens_max);
void advice_sample_fini(struct advice_sample *sample);

/* Copies what it needs of a job that was tokenised. A lack of memory makes the sample full: it
 * is not worth a job. */
void advice_sample_add(struct advice_sample *sample, const struct job *job);

/* Logs up to three places where more than a twentieth of the prompt tokens could be saved;
 * nothing when there is none. It names positions and jobs and shows no text. */
void advice_sample_log(const struct advice_sample *sample, size_t tokens_min);

#endif
