#include "engine/seq.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/limits.h"
#include "engine/drafter.h"

size_t seq_pages_for(size_t n_positions)
{
    return (n_positions + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
}

static void *copy(const void *items, size_t bytes)
{
    void *out = malloc(bytes ? bytes : 1);
    if (out && bytes)
        memcpy(out, items, bytes);
    return out;
}

static bool copy_stops(struct seq *seq, const struct seq_request *req)
{
    seq->stops = calloc(req->n_stops ? req->n_stops : 1, sizeof seq->stops[0]);
    if (!seq->stops)
        return false;
    for (size_t i = 0; i < req->n_stops; i++) {
        seq->stops[i] = strdup(req->stops[i]);
        if (!seq->stops[i])
            return false;
    }
    return true;
}

int seq_open(const struct seq_request *req, size_t context, struct seq **out, struct err *e)
{
    ASSERT(req->n_prompt >= 1 && req->n_prompt < context);
    ASSERT(req->max_tokens >= 1);
    struct seq *seq = calloc(1, sizeof *seq);
    if (!seq)
        return ERR_SET(e, ERR_NOMEM, "no memory for a sequence");
    const size_t room = context - req->n_prompt;
    seq->capacity = req->n_prompt + (req->max_tokens < room ? req->max_tokens : room);
    seq->req = *req;
    seq->n_prompt = seq->n_tokens = req->n_prompt;
    seq->text_start = true;
    seq->stop_index = -1;
    seq->stop_token = TOKEN_NONE;
    seq->submitted_us = clock_mono_us();
    seq->tokens = malloc(seq->capacity * sizeof seq->tokens[0]);
    seq->pages = malloc(seq_pages_for(seq->capacity) * sizeof seq->pages[0]);
    seq->bias = copy(req->sample.bias, req->sample.n_bias * sizeof seq->bias[0]);
    seq->stop_tokens = copy(req->stop_tokens, req->n_stop_tokens * sizeof seq->stop_tokens[0]);
    seq->salt = strdup(req->salt ? req->salt : "");
    if (!seq->tokens || !seq->pages || !seq->bias || !seq->stop_tokens || !seq->salt ||
        !copy_stops(seq, req)) {
        seq_close(seq);
        return ERR_SET(e, ERR_NOMEM, "no memory for a sequence of %zu tokens", req->n_prompt);
    }
    memcpy(seq->tokens, req->prompt, req->n_prompt * sizeof seq->tokens[0]);
    seq->req.prompt = NULL;
    seq->req.sample.bias = seq->bias;
    seq->req.stops = NULL;
    seq->req.stop_tokens = NULL;
    seq->req.salt = NULL;
    *out = seq;
    return 0;
}

void seq_close(struct seq *seq)
{
    if (!seq)
        return;
    ASSERT(seq->n_pages == 0);
    ASSERT(!seq->path);
    if (seq->stops)
        for (size_t i = 0; i < seq->req.n_stops; i++)
            free(seq->stops[i]);
    free(seq->stops);
    free(seq->salt);
    free(seq->stop_tokens);
    free(seq->bias);
    free(seq->tokens);
    free(seq->pages);
    buf_fini(&seq->text);
    drafter_close(seq->drafter);
    free(seq->heads);
    free(seq);
}

bool seq_reserve(struct seq *seq, struct prefix_tree *prefixes, size_t n_positions)
{
    ASSERT(n_positions <= seq->capacity);
    const size_t needed = seq_pages_for(n_positions);
    while (seq->n_pages < needed) {
        const int32_t page = prefix_acquire_page(prefixes);
        if (page == KVPOOL_NO_PAGE)
            return false;
        seq->pages[seq->n_pages++] = page;
    }
    if (seq->n_pages > seq->kv_pages_peak)
        seq->kv_pages_peak = seq->n_pages;
    return true;
}
