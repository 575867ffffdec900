/*
 * What the prompts of a file share: the best hit ratio that a prefix cache can reach, the
 * groups, and advice on pieces that break a shared prefix. For sheaf check.
 *
 * As JSON:
 *
 *   sharing    {jobs, prompt_tokens, cached_tokens, hit_ratio, whole_file}
 *   groups     [{group, jobs, shared_tokens, saved_tokens, line, custom_id}]  best first
 *   more_groups {groups, jobs, saved_tokens}  those that are not listed
 *   lone_jobs  jobs that no other one has the system text and documents of
 *   advice     [{position, jobs, shared_tokens, saved_tokens,
 *                examples: [{line, custom_id, before, piece, after}, ...]}]
 */
#ifndef SHEAF_CHECK_SHARING_H
#define SHEAF_CHECK_SHARING_H

#include <jansson.h>

#include "advice_sample.h"
#include "model/tokenizer.h"

enum { SHARING_GROUPS_MAX = 10 };

struct sharing_group {
    size_t first; /* job of the sample */
    size_t n_jobs;
    size_t shared_tokens; /* that all of them begin with */
    uint64_t saved_tokens;
};

struct sharing {
    const struct advice_sample *sample; /* borrowed */
    struct sharing_group groups[SHARING_GROUPS_MAX];
    size_t n_groups;
    size_t more_groups, more_jobs;
    uint64_t more_saved_tokens;
    size_t lone_jobs;
    struct advice advice;
};

/* tokens_min: prefixes of fewer tokens are not kept. */
int sharing_find(const struct advice_sample *sample, size_t tokens_min, struct sharing *out,
                 struct err *e);
int sharing_print(const struct sharing *s, const struct tokenizer *tok, struct err *e);
/* Adds the keys above to an object. */
int sharing_add_json(const struct sharing *s, const struct tokenizer *tok, json_t *root,
                     struct err *e);

#endif
