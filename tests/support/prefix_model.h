/*
 * What a prefix tree over a pool should do, said once more and as plainly as can be: a flat
 * list of token strings, each with one page, all searched from end to end for every question.
 * No tree, no hash, no counts that could be wrong. It knows no pages, only how many there are.
 */
#ifndef SHEAF_TEST_PREFIX_MODEL_H
#define SHEAF_TEST_PREFIX_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"
#include "engine/prefix.h"

enum {
    MODEL_TOKENS_MAX = 192,
    MODEL_BLOCKS_MAX = MODEL_TOKENS_MAX / KV_PAGE_TOKENS,
    MODEL_PAGES_MAX = 40,
    MODEL_JOBS_MAX = 12,
};

/* A page of the tree: it holds the last block of these tokens. */
struct model_entry {
    bool is_there;
    int salt;
    int32_t tokens[MODEL_TOKENS_MAX];
    size_t n;
    uint64_t used;
    int32_t page; /* for the caller: which page the tree has for it */
};

enum model_state { MODEL_GONE, MODEL_WANTED, MODEL_HELD };

struct model_job {
    enum model_state state;
    bool is_next;  /* its turn is before all that are not, */
    size_t number; /* and among its like by this */
    int salt;
    const int32_t *tokens; /* the caller's, MODEL_TOKENS_MAX of them */
    size_t n_prompt;
    size_t n_pages;
    struct model_entry *pages[MODEL_BLOCKS_MAX]; /* held; NULL: a page of its own */
    size_t n_committed;                          /* blocks */
    struct model_entry *leaf;
};

struct model_past {
    int salt;
    int32_t tokens[MODEL_TOKENS_MAX];
    size_t from, to;       /* tokens that this tells of */
    enum prefix_miss fate; /* PREFIX_MISS_NONE: they are there */
};

struct model {
    struct prefix_options options;
    size_t n_pages;
    struct model_entry entries[MODEL_PAGES_MAX];
    struct model_job jobs[MODEL_JOBS_MAX];
    struct model_past *past;
    size_t n_past, past_capacity;
    uint64_t clock;
    struct prefix_counters counters;
};

void model_init(struct model *m, const struct prefix_options *o, size_t n_pages);
void model_fini(struct model *m);

void model_find(const struct model *m, const struct model_job *job, size_t n_tokens,
                struct prefix_hit *hit);
bool model_start(struct model *m, struct model_job *job, size_t n_tokens, size_t n_spare,
                 struct prefix_hit *hit);
bool model_acquire_page(struct model *m, struct model_job *job);
void model_commit(struct model *m, struct model_job *job, size_t n, bool partial);
void model_stop(struct model *m, struct model_job *job, size_t n, bool again);
size_t model_available(const struct model *m);

#endif
