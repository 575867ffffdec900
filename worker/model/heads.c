/* Heads from the tensors that were found and planned for. */
#include "model/heads_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int alloc_floats(size_t n, float **out, struct err *e)
{
    *out = malloc(n * sizeof **out);
    return *out ? 0 : ERR_SET(e, ERR_NOMEM, "out of memory for %zu numbers of heads", n);
}

static int read_whole(const struct heads_tensor *t, size_t n, float **out, struct err *e)
{
    TRY(alloc_floats(n, out, e));
    return heads_read_floats(t, 0, *out, n, e);
}

/* ------------------------------------------------------------------ a map of tokens */

struct mapped {
    int64_t token;
    size_t row; /* where the file has it */
};

static int compare_mapped(const void *a, const void *b)
{
    const struct mapped *x = a, *y = b;
    return (x->token > y->token) - (x->token < y->token);
}

static int check_map(const struct heads_tensor *t, size_t n_vocab, struct err *e)
{
    if (!t->is_integer)
        return ERR_SET(e, ERR_UNSUPPORTED, "tensor %s has type %s; token ids are I32 or I64",
                       t->text, t->type_name);
    if (t->n_dims != 1 || t->n_cols == 0 || t->n_cols >= n_vocab)
        return ERR_SET(
            e, ERR_FORMAT,
            "tensor %s has %zu dimensions, the last of %llu; it must be one of fewer "
            "tokens than the %zu of the model",
            t->text, t->n_dims, (unsigned long long)t->n_cols, n_vocab);
    return 0;
}

static int sort_map(const struct heads_tensor *t, size_t n_vocab, const int64_t *ids,
                    struct mapped *map, size_t n, struct err *e)
{
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || (uint64_t)ids[i] >= n_vocab)
            return ERR_SET(e, ERR_CONFIG,
                           "tensor %s names the token %lld, and the model has %zu; heads fit "
                           "only the model that they were trained for",
                           t->text, (long long)ids[i], n_vocab);
        map[i] = (struct mapped){ids[i], i};
    }
    qsort(map, n, sizeof *map, compare_mapped);
    for (size_t i = 1; i < n; i++) {
        if (map[i].token == map[i - 1].token)
            return ERR_SET(e, ERR_FORMAT, "tensor %s names the token %lld twice", t->text,
                           (long long)map[i].token);
    }
    return 0;
}

/* Sets the draft vocabulary of h; *out, owned by the caller, is in its order. */
static int read_map(const struct heads_tensor *t, size_t n_vocab, struct heads *h,
                    struct mapped **out, struct err *e)
{
    TRY(check_map(t, n_vocab, e));
    const size_t n = (size_t)t->n_cols;
    int64_t *ids = malloc(n * sizeof *ids);
    *out = malloc(n * sizeof **out);
    h->draft_vocab = malloc(n * sizeof *h->draft_vocab);
    int code = 0;
    if (!ids || !*out || !h->draft_vocab)
        code = ERR_SET(e, ERR_NOMEM, "out of memory for a map of %zu tokens", n);
    if (code == 0)
        code = safetensors_read_integers(t->file, t->stored, 0, ids, n, e);
    if (code == 0)
        code = sort_map(t, n_vocab, ids, *out, n, e);
    free(ids);
    TRY(code);
    for (size_t i = 0; i < n; i++)
        h->draft_vocab[i] = (int32_t)(*out)[i].token;
    h->n_draft = n;
    return 0;
}

/* ------------------------------------------------------------------ filling */

/* map NULL: the rows are the draft vocabulary's. */
static int read_output(const struct heads *h, const struct heads_tensor *t,
                       const struct mapped *map, float **out, struct err *e)
{
    if (!map)
        return read_whole(t, h->n_draft * h->dim, out, e);
    TRY(alloc_floats(h->n_draft * h->dim, out, e));
    const bool is_cut = t->n_rows == h->n_draft;
    for (size_t i = 0; i < h->n_draft; i++) {
        const uint64_t row = is_cut ? map[i].row : (uint64_t)map[i].token;
        TRY(heads_read_floats(t, row * h->dim, *out + i * h->dim, h->dim, e));
    }
    return 0;
}

static int read_block(const struct heads *h, const struct heads_tensor *weight,
                      const struct heads_tensor *bias, struct heads_block *out, struct err *e)
{
    TRY(read_whole(weight, h->dim * h->dim, &out->weight, e));
    if (bias)
        return read_whole(bias, h->dim, &out->bias, e);
    out->bias = calloc(h->dim, sizeof *out->bias);
    return out->bias ? 0 : ERR_SET(e, ERR_NOMEM, "out of memory for a bias of heads");
}

static int fill(const struct heads_plan *p, const struct mapped *map, struct heads *h,
                struct err *e)
{
    for (size_t i = 0; i < h->n_heads; i++) {
        struct head *head = &h->heads[i];
        for (size_t l = 0; l < h->n_blocks; l++)
            TRY(read_block(h, p->weights[i][l], p->biases[i][l], &head->blocks[l], e));
        if (p->outputs[i])
            TRY(read_output(h, p->outputs[i], map, &head->output, e));
        else if (p->output_of_all && i == 0)
            TRY(read_output(h, p->output_of_all, map, &head->output, e));
        else if (p->output_of_all)
            head->output = h->heads[0].output;
    }
    return 0;
}

static int build(const struct heads_found *found, const struct model *m, struct heads *h,
                 struct err *e)
{
    struct heads_plan plan;
    TRY(heads_plan(found, &plan, e));
    h->n_heads = plan.n_heads;
    h->n_blocks = plan.n_blocks;
    h->dim = m->config.dim;
    h->n_draft = m->config.n_vocab;
    struct mapped *map = NULL;
    int code = 0;
    if (found->gguf)
        code = heads_read_keys(found->gguf, &plan, m, h, e);
    else if (plan.token_map)
        code = read_map(plan.token_map, m->config.n_vocab, h, &map, e);
    if (code == 0)
        code = heads_check(&plan, &m->config, h->n_draft, e);
    if (code == 0)
        code = fill(&plan, map, h, e);
    free(map);
    return code;
}

int heads_open(const char *path, const struct model *m, struct heads **out, struct err *e)
{
    struct err cause = {0}; /* so that the path goes in front of texts that lack it only */
    struct heads *h = calloc(1, sizeof *h);
    if (!h)
        return ERR_SET(e, ERR_NOMEM, "out of memory for heads");
    struct heads_found found;
    int code = heads_find(path, &found, &cause);
    if (code == 0) {
        code = build(&found, m, h, &cause);
        err_prefix(&cause, "%s", path);
    }
    heads_found_close(&found);
    if (code != 0) {
        heads_close(h);
        return err_set(e, code, cause.flags, cause.file, cause.line, "%s", cause.text);
    }
    *out = h;
    return 0;
}

void heads_close(struct heads *h)
{
    if (!h)
        return;
    for (size_t i = 0; i < HEADS_MAX; i++) {
        struct head *head = &h->heads[i];
        for (size_t l = 0; l < HEADS_BLOCKS_MAX; l++) {
            free(head->blocks[l].weight);
            free(head->blocks[l].bias);
        }
        if (i > 0 && head->output != h->heads[0].output)
            free(head->output);
    }
    free(h->heads[0].output);
    free(h->draft_vocab);
    free(h);
}

void heads_describe(const struct heads *h, char *out, size_t out_bytes)
{
    char draft[64] = "";
    if (h->draft_vocab)
        snprintf(draft, sizeof draft, " over %zu tokens", h->n_draft);
    snprintf(out, out_bytes, "%zu head%s of %zu block%s, D %zu, %s%s", h->n_heads,
             h->n_heads == 1 ? "" : "s", h->n_blocks, h->n_blocks == 1 ? "" : "s", h->dim,
             h->heads[0].output ? "outputs of their own" : "the model's output", draft);
}
