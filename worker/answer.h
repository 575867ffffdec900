/*
 * Between jobs and the engine: a job becomes a prompt of tokens and a request; what the engine
 * made of it becomes a result. Both rooms stay ignorant of each other.
 */
#ifndef SHEAF_ANSWER_H
#define SHEAF_ANSWER_H

#include "base/settings.h"
#include "engine/engine.h"
#include "job.h"
#include "result.h"

/* What stays the same for all jobs of a worker. Borrowed; immutable. */
struct answer_context {
    const struct model *model;
    const struct settings *settings;
    enum template_family template_family;
    const char *default_system; /* or NULL */
    const char *worker_id;
};

/* Chooses the chat template by setting or from the model; ERR_CONFIG names the setting. */
int answer_context_init(struct answer_context *ctx, const struct model *m,
                        const struct settings *settings, const char *worker_id, struct err *e);

/* Fills job->tokens, job->prefix_group and, where it can be of use, job->prediction_tokens.
 * What is wrong with the job itself is set as job->error; a failure is ERR_NOMEM, after which
 * it may be called again. */
int answer_tokenize(const struct answer_context *ctx, struct job *job, struct err *e);

/* The stop strings and biases are borrowed from the job; scratch for the biases is *bias,
 * free() it after engine_submit. */
int answer_request(const struct answer_context *ctx, struct job *job, struct seq_request *req,
                   struct logit_bias **bias, struct err *e);

/* Takes the job. NULL: no memory; the job stays the caller's. */
struct result *answer_result_take(const struct answer_context *ctx, struct job *job,
                                  const struct seq_result *r);
/* A result for a job that never reached the engine: job->error says why. */
struct result *answer_failure_take(const struct answer_context *ctx, struct job *job);

/* The result is given up for the error attempts_exhausted, of which why is the reason. */
void answer_withdraw(struct result *r, const char *why);

/* The error of a job that was tried so often, as job->attempts says. */
void answer_exhaust(struct job *job, const char *why);

/* What engine_check refused, as the job's error. */
void answer_refuse(struct job *job, const struct err *e);

#endif
