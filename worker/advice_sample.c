#include "advice_sample.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

enum { LINES_MAX = 3, WORTH_SAYING = 20 }; /* one token in so many */

void advice_sample_init(struct advice_sample *sample, size_t jobs_max, size_t tokens_max)
{
    *sample = (struct advice_sample){.jobs_max = jobs_max, .tokens_max = tokens_max};
}

void advice_sample_fini(struct advice_sample *sample)
{
    for (size_t i = 0; i < sample->n; i++) {
        free((void *)(uintptr_t)sample->prompts[i].tokens);
        free((void *)(uintptr_t)sample->prompts[i].salt);
        free(sample->jobs[i].custom_id);
    }
    free(sample->prompts);
    free(sample->jobs);
    *sample = (struct advice_sample){0};
}

static bool make_room(struct advice_sample *sample)
{
    if (sample->n < sample->capacity)
        return true;
    const size_t capacity = 2 * sample->capacity + 64;
    struct group_prompt *prompts = realloc(sample->prompts, capacity * sizeof prompts[0]);
    if (prompts)
        sample->prompts = prompts;
    struct advice_sample_job *jobs = realloc(sample->jobs, capacity * sizeof jobs[0]);
    if (jobs)
        sample->jobs = jobs;
    if (prompts && jobs)
        sample->capacity = capacity;
    return prompts && jobs;
}

static bool copy_job(struct advice_sample *sample, const struct job *job)
{
    int32_t *tokens = malloc((job->n_tokens + 1) * sizeof tokens[0]);
    char *id = strdup(job->custom_id);
    char *salt = strdup(job->cache_salt ? job->cache_salt : "");
    if (!tokens || !id || !salt || !make_room(sample)) {
        free(tokens);
        free(id);
        free(salt);
        return false;
    }
    if (job->n_tokens > 0) /* an empty prompt has no array */
        memcpy(tokens, job->tokens, job->n_tokens * sizeof tokens[0]);
    sample->prompts[sample->n] =
        (struct group_prompt){.tokens = tokens, .n_tokens = job->n_tokens, .salt = salt};
    struct advice_sample_job *kept = &sample->jobs[sample->n++];
    *kept = (struct advice_sample_job){.offset = job->source.offset,
                                       .partition = job->source.partition,
                                       .is_file = job->source.is_file,
                                       .custom_id = id};
    if (job->prefix_group)
        snprintf(kept->group, sizeof kept->group, "%s", job->prefix_group);
    sample->n_tokens += job->n_tokens;
    return true;
}

void advice_sample_add(struct advice_sample *sample, const struct job *job)
{
    if (sample->is_full)
        return;
    sample->is_full = sample->n >= sample->jobs_max ||
                      sample->n_tokens + job->n_tokens > sample->tokens_max ||
                      !copy_job(sample, job);
}

static void place_of(const struct advice_sample_job *job, char *out, size_t capacity)
{
    if (job->is_file)
        snprintf(out, capacity, "line %lld", (long long)job->offset);
    else
        snprintf(out, capacity, "partition %d offset %lld", job->partition,
                 (long long)job->offset);
}

static void log_finding(const struct advice_sample *sample, const struct advice_finding *f)
{
    char first[64], second[64];
    place_of(&sample->jobs[f->example[0].prompt], first, sizeof first);
    place_of(&sample->jobs[f->example[1].prompt], second, sizeof second);
    log_info("advice: %zu of the first %zu prompts differ at token %zu and are equal again "
             "soon after (%s and %s, for example); with that piece at the end they would share "
             "%zu tokens each, and %llu of %llu prompt tokens more need no computing; sheaf "
             "check shows the text",
             f->n_jobs, sample->n, f->position, first, second, f->shared_tokens,
             (unsigned long long)f->saved_tokens, (unsigned long long)sample->n_tokens);
}

void advice_sample_log(const struct advice_sample *sample, size_t tokens_min)
{
    const struct advice_options o = {.tokens_min = tokens_min,
                                     .saved_min = sample->n_tokens / WORTH_SAYING + 1};
    struct advice advice;
    struct err e = {0};
    if (advice_find(sample->prompts, sample->n, &o, &advice, &e) != 0) {
        log_warn("no advice: %s", e.text);
        return;
    }
    for (size_t i = 0; i < advice.n_findings && i < LINES_MAX; i++)
        log_finding(sample, &advice.findings[i]);
}
