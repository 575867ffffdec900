#include "engine/engine_hidden.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/size.h"
#include "engine/engine_int.h"

struct engine_hidden {
    struct engine *eng;
    struct seq *seq; /* the text before, all of it computed; or NULL */
};

int engine_hidden_open(struct engine *eng, struct engine_hidden **out, struct err *e)
{
    struct engine_hidden *h = calloc(1, sizeof *h);
    if (!h)
        return ERR_SET(e, ERR_NOMEM, "no memory for hidden states");
    h->eng = eng;
    *out = h;
    return 0;
}

static void release_pages(struct engine_hidden *h, struct seq *seq, size_t n_kept)
{
    while (seq->n_pages > n_kept)
        kvpool_release_page(h->eng->kvpool, seq->pages[--seq->n_pages]);
}

static void forget_text(struct engine_hidden *h)
{
    if (h->seq)
        release_pages(h, h->seq, 0);
    seq_close(h->seq);
    h->seq = NULL;
}

void engine_hidden_close(struct engine_hidden *h)
{
    if (!h)
        return;
    forget_text(h);
    free(h);
}

/* The new text takes over the pages that hold what both have in common. Slots behind that in
 * the last of them are written again before anything reads them. */
static size_t take_over(struct engine_hidden *h, struct seq *seq)
{
    struct seq *before = h->seq;
    if (!before)
        return 0;
    const size_t n_max = size_min(seq->n_tokens, before->n_tokens);
    size_t n = 0;
    while (n < n_max && seq->tokens[n] == before->tokens[n])
        n++;
    release_pages(h, before, seq_pages_for(n));
    memcpy(seq->pages, before->pages, before->n_pages * sizeof seq->pages[0]);
    seq->n_pages = before->n_pages;
    before->n_pages = 0;
    seq_close(before);
    h->seq = NULL;
    return n;
}

/* A chunk's rows all want the place of their greatest logit. */
static int run_chunk(struct engine_hidden *h, struct seq *seq, float *hidden, int32_t *best,
                     size_t *n_rows, struct err *e)
{
    const struct engine *eng = h->eng;
    const size_t dim = eng->model->config.dim;
    TRY(engine_run_chunk(h->eng, seq, true, n_rows, e));
    for (size_t i = 0; i < *n_rows; i++) {
        memcpy(hidden + i * dim, forward_hidden(eng->forward, i), dim * sizeof hidden[0]);
        best[i] = forward_best(eng->forward, i);
    }
    return forward_check(eng->forward, e);
}

int engine_hidden_run(struct engine_hidden *h, const int32_t *tokens, size_t n, size_t *first,
                      float *hidden, int32_t *best, struct err *e)
{
    struct engine *eng = h->eng;
    ASSERT(engine_active(eng) == 0);
    const struct seq_request req = {
        .prompt = tokens, .n_prompt = n, .max_tokens = 1, .sample = sample_params_greedy()};
    struct seq *seq = NULL;
    int rc = engine_check(eng, &req, e);
    if (rc == 0)
        rc = seq_open(&req, eng->options.context, &seq, e);
    if (rc != 0) {
        forget_text(h);
        return rc;
    }
    *first = seq->n_computed = take_over(h, seq);
    const bool reserved = seq_reserve(seq, eng->prefixes, n);
    ASSERT(reserved); /* engine_check saw to it: nobody else holds pages */
    h->seq = seq;
    size_t done = 0;
    while (rc == 0 && seq->n_computed < n) {
        size_t n_rows = 0;
        rc = run_chunk(h, seq, hidden + done * eng->model->config.dim, best + done, &n_rows, e);
        done += n_rows;
    }
    if (rc != 0)
        forget_text(h);
    return rc;
}
