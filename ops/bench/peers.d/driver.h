/*
 * What the two files of the driver share: driver.c has the library's hands and the speeds,
 * driver_job.c the batch job. Functions return 0, or -1 after a message.
 */
#ifndef SHEAF_BENCH_DRIVER_H
#define SHEAF_BENCH_DRIVER_H

#include <llama.h>
#include <stdbool.h>
#include <stddef.h>

enum {
    BATCH_TOKENS = 2048,
    SEQUENCES_MAX = 64,
    DOCUMENTS_MAX = 64,
    ASKS_MAX = 256,
};

struct ids {
    llama_token *ids;
    size_t n;
};

struct document {
    struct ids text, asks[ASKS_MAX];
    size_t n_asks;
};

struct options {
    int threads, ubatch, flash, repack, documents, width, answer, steps, prefill;
    const char *kv, *sizes;
};

struct driver {
    struct options o;
    struct llama_model *model;
    struct llama_context *ctx;
    struct llama_batch batch;
    int n_vocab;
    struct document docs[DOCUMENTS_MAX];
    size_t n_docs, n_answers;
    llama_token *out[SEQUENCES_MAX]; /* the answers of one group */
    double prefill_s, asks_s, decode_s;
    size_t prefill_tokens, ask_tokens, decode_tokens;
};

/* Always -1. */
int fails(const char *what, const char *which);
double now_s(void);
const char *peer_name(void);

/* A context of so many cells for that many sequences beside sequence 0. */
int open_context(struct driver *d, size_t cells, size_t sequences);
/* n tokens on sequence 0, from an empty cache. */
int prefill(struct driver *d, const llama_token *ids, size_t n);
/* Sequence seq becomes a copy of sequence 0 that shares its cells. */
void share(struct driver *d, int seq);
/* Adds a token to the batch. */
void add(struct driver *d, llama_token id, size_t position, size_t seq, bool wants);
int decode(struct driver *d);
/* The greedy choice at a row of the batch that was decoded last. */
llama_token next_token(struct driver *d, int row);
/* One token more of each of n sequences at out[s][step - 1]; positions[s] is where it goes. */
int decode_step(struct driver *d, size_t n, size_t *positions, size_t step);

int run_job(struct driver *d, const char *path);

#endif
