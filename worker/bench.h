/*
 * The kinds of `sheaf bench` that have files of their own. Most of this is what `sheaf bench
 * levers` is made of: a set of jobs, and a half, which is that set answered once by an engine
 * of its own.
 *
 * Jobs go through parser, template and tokenizer before the clock starts; in a half they go
 * through the read-ahead window and the engine as in a worker, but nothing is stored or
 * written.
 */
#ifndef SHEAF_BENCH_H
#define SHEAF_BENCH_H

#include "answer.h"
#include "cli.h"
#include "io/documents.h"
#include "io/store_experiment.h"
#include "report/experiment.h"

struct bench_job {
    struct job *job;
    struct seq_request req; /* borrows from job and bias */
    struct logit_bias *bias;
};

struct bench_jobs {
    struct bench_job *items; /* owned */
    size_t n, capacity;
    struct documents *documents; /* for references; borrowed, or NULL */
    size_t refused;              /* lines that are no job */
    size_t concurrency;          /* in the engine at most */
    size_t context;              /* tokens of the longest job with its answer */
    char note[160];              /* what is not as its name promises; "" is nothing */
};

/* Parses and tokenizes one job line; a bad one is counted and said. */
int bench_jobs_add(struct bench_jobs *jobs, const struct answer_context *ctx, const char *path,
                   int64_t number, const char *bytes, size_t length, struct err *e);
/* The jobs of a file, as many at a time as the setting batch says. */
int bench_jobs_read(struct bench_jobs *jobs, const struct answer_context *ctx, const char *path,
                    struct err *e);
/* The jobs of a ready experiment: always the same for one tokenizer and context. ERR_USAGE
 * names those that there are. */
int bench_jobs_make(struct bench_jobs *jobs, const struct answer_context *ctx, const char *name,
                    struct err *e);
void bench_jobs_fini(struct bench_jobs *jobs);

/* Kinds of jobs of experiment "spec", which are measured apart; as many at a time as the
 * setting batch says. */
enum spec_kind { SPEC_EXTRACTION, SPEC_FIXED, SPEC_OPEN, SPEC_KINDS };
const char *bench_spec_kind_name(enum spec_kind kind);
int bench_spec_make(struct bench_jobs *jobs, const struct answer_context *ctx,
                    enum spec_kind kind, struct err *e);

struct bench_answer {
    struct experiment_answer out; /* of a refused prompt nothing else counts */
    size_t n_prompt, n_cached;
    bool is_warm;                     /* experiments.def says when */
    int64_t ttft_us, tpot_us, e2e_us; /* tpot_us -1: the answer has one token */
    size_t n_yielding_steps;          /* behind the one that yielded its first token */
    size_t n_drafted, n_accepted;
};

struct bench_half {
    struct bench_answer *answers; /* owned; as many as jobs, in their order */
    size_t n;
    int64_t started_us; /* wall */
    int64_t wall_us, prefill_us, decode_us;
    size_t decode_rows;
    double decode_step_ms; /* NaN: every step had a prompt's row, or some had drafts */
    int64_t memory_peak_bytes;
    size_t step_tokens, chunk_tokens;
    const char *kernels; /* static */
};

/* Opens an engine with these settings, answers all jobs with it and closes it. */
int bench_half_run(struct bench_half *half, const struct model *m, const struct settings *s,
                   const struct bench_jobs *jobs, struct err *e);
void bench_half_fini(struct bench_half *half);
/* The chunk that an engine with these settings computes with: the setting, or what it measured.
 */
int bench_half_chunk(const struct model *m, const struct settings *s,
                     const struct bench_jobs *jobs, int64_t *chunk_tokens, struct err *e);
/* Share of answers that are the same, byte for byte. */
double bench_half_same(const struct bench_half *a, const struct bench_half *b);
/* Fills the figures of the row, but for identical_share. */
int bench_half_figures(const struct bench_half *half, const struct bench_jobs *jobs,
                       struct store_experiment *row, struct err *e);

/* sheaf bench levers, kernels, roofline; exit codes as of a command. */
int bench_levers(struct cli *cli, struct err *e);
int bench_kernels(struct cli *cli, struct err *e);
int bench_roofline(struct cli *cli, struct err *e);

#endif
