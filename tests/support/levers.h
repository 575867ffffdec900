/*
 * A set of jobs and the levers under which their answers must be the same: batch, chunk, step
 * and pool size, threads, order of submission, preemption, prefix cache, eviction, shared
 * attention and speculation.
 */
#ifndef SHEAF_TEST_LEVERS_H
#define SHEAF_TEST_LEVERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device.h"
#include "engine/engine.h"

enum { N_JOBS = 24, N_OUT = 24, TEXT_MAX = 4096 };

struct answer {
    enum finish_reason reason;
    size_t n_tokens, n_preempted, text_bytes;
    int32_t tokens[N_OUT];
    char text[TEXT_MAX];
};

struct answers {
    struct answer job[N_JOBS];
    size_t n_preempted;
    struct engine_counters counters;
    struct device_counters device; /* zero on the CPU */
};

enum sign { CACHES = 1, EVICTS = 2, PREEMPTS = 4, DRAFTS = 8 };

struct lever {
    const char *name;
    struct engine_options options;
    bool shuffled;
    size_t pool_tokens; /* 0: the pool is large enough for all */
    int signs;          /* what must be seen to have happened; in a large pool nothing else */
};

extern const struct lever lever_plain; /* one sequence at a time, no cache, one thread */
extern const struct lever levers[];
extern const size_t n_levers;

/* A model of golden/tiny that drafts for that one: nearly the same, or quite. */
const char *levers_draft_model(const char *model);

/* The answers of all jobs; free() them. isa: the kernel set; device NULL: the CPU, and whether
 * it launches graphs is the lever's options'. drafting: the draft model, or NULL where no lever
 * of the call wants one. */
struct answers *levers_answer(const struct model *m, const struct model *drafting,
                              const char *isa, const char *device, enum kv_type kv,
                              const struct lever *lever, uint64_t seed);
/* The first job whose answers differ, or -1. */
int levers_first_difference(const struct answers *a, const struct answers *b);
/* Whether everything that must have happened has. */
bool levers_shows_signs(const struct lever *lever, const struct answers *a);
/* Fails the test when what must have happened has not, or something else has. */
void levers_check_signs(const struct lever *lever, const struct answers *a);

#endif
