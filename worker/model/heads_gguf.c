/*
 * Sheaf's own files of heads: GGUF version 3, little-endian, tensors float32 when written
 * (float16 and bfloat16 are read too) and aligned to 32 bytes.
 *
 *     general.architecture      string  "medusa"
 *     medusa.head_count         u32
 *     medusa.block_count        u32     of each head
 *     medusa.embedding_length   u32     D
 *     medusa.vocab_size         u32     V, of the model
 *     medusa.vocab_sha256       string  of the model's token texts in the order of their ids,
 *                                       each behind its length as u32: the same whatever
 *                                       quantisation
 *     medusa.draft_vocab        i32[]   ids, rising; absent: the whole vocabulary
 *     medusa.accuracy           f32[]   [heads, HEADS_RANKS]; absent: not known
 *     medusa.{i}.blk.{l}.weight         [D, D]
 *     medusa.{i}.blk.{l}.bias           [D]
 *     medusa.{i}.output.weight          [n_draft, D]; absent: tied
 *
 * The same heads and model give the same bytes.
 */
#include "model/heads_int.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/file.h"
#include "base/sha256.h"
#include "model/gguf_write.h"
#include "quant.h"

#define ARCHITECTURE "medusa"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are hashed as they lie");

static int hash_vocab(const struct model *m, char hex[SHA256_HEX_BYTES], struct err *e)
{
    struct buf all = {0};
    for (size_t i = 0; i < m->config.n_vocab; i++) {
        const struct gguf_str text = tokenizer_token_text(m->tokenizer, (int32_t)i);
        const uint32_t length = (uint32_t)text.length;
        buf_append(&all, &length, sizeof length);
        buf_append(&all, text.data, text.length);
    }
    const int code = buf_ok(&all) ? sha256_hex(all.data, all.length, hex, e)
                                  : ERR_SET(e, ERR_NOMEM, "out of memory for the token texts");
    buf_fini(&all);
    return code;
}

/* ------------------------------------------------------------------ reading the keys */

static int check_architecture(const struct gguf *g, struct err *e)
{
    struct gguf_str name;
    TRY(gguf_string(g, "general.architecture", &name, e));
    if (name.length == strlen(ARCHITECTURE) &&
        memcmp(name.data, ARCHITECTURE, name.length) == 0)
        return 0;
    char text[64];
    gguf_str_print(name, text, sizeof text);
    return ERR_SET(e, ERR_FORMAT, "general.architecture is %s, not " ARCHITECTURE, text);
}

static int check_count(const struct gguf *g, const char *key, size_t wanted, int code,
                       const char *whose, struct err *e)
{
    uint64_t count;
    TRY(gguf_u64(g, key, &count, e));
    if (count != wanted)
        return ERR_SET(e, code, "%s is %llu, but %s %zu", key, (unsigned long long)count, whose,
                       wanted);
    return 0;
}

static int check_vocab(const struct gguf *g, const struct model *m, struct err *e)
{
    struct gguf_str told;
    char hex[SHA256_HEX_BYTES];
    TRY(gguf_string(g, "medusa.vocab_sha256", &told, e));
    TRY(hash_vocab(m, hex, e));
    if (told.length == strlen(hex) && memcmp(told.data, hex, told.length) == 0)
        return 0;
    return ERR_SET(e, ERR_CONFIG,
                   "medusa.vocab_sha256: the heads were trained for a model with other tokens "
                   "than %s; train heads for this one",
                   m->name);
}

/* *out, owned by the caller, is NULL when the key is not there. */
static int read_array(const struct gguf *g, const char *key, enum gguf_kind wanted,
                      size_t n_max, double **out, size_t *n, struct err *e)
{
    *out = NULL;
    if (!gguf_has(g, key))
        return 0;
    enum gguf_kind kind;
    TRY(gguf_array(g, key, &kind, n, e));
    if (kind != wanted || *n == 0 || *n > n_max)
        return ERR_SET(e, ERR_FORMAT,
                       "%s holds %zu items, or not of the right type; at most %zu "
                       "are possible",
                       key, *n, n_max);
    *out = malloc(*n * sizeof **out);
    if (!*out)
        return ERR_SET(e, ERR_NOMEM, "out of memory for %s", key);
    return gguf_array_numbers(g, key, *out, *n, e);
}

static int take_draft_vocab(const double *ids, size_t n, size_t n_vocab, struct heads *h,
                            struct err *e)
{
    h->draft_vocab = malloc(n * sizeof *h->draft_vocab);
    if (!h->draft_vocab)
        return ERR_SET(e, ERR_NOMEM, "out of memory for the draft vocabulary");
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= (double)n_vocab || (i > 0 && ids[i] <= ids[i - 1]))
            return ERR_SET(
                e, ERR_FORMAT,
                "medusa.draft_vocab: item %zu is %.0f; ids must rise and be tokens of "
                "the model, which has %zu",
                i, ids[i], n_vocab);
        h->draft_vocab[i] = (int32_t)ids[i];
    }
    h->n_draft = n;
    return 0;
}

static int take_accuracies(const double *values, size_t n, struct heads *h, struct err *e)
{
    if (n != h->n_heads * HEADS_RANKS)
        return ERR_SET(e, ERR_FORMAT,
                       "medusa.accuracy has %zu items, not %d for each of %zu "
                       "heads",
                       n, HEADS_RANKS, h->n_heads);
    for (size_t i = 0; i < n; i++) {
        if (!(values[i] >= 0 && values[i] <= 1))
            return ERR_SET(e, ERR_FORMAT, "medusa.accuracy: item %zu is not between 0 and 1",
                           i);
        h->heads[i / HEADS_RANKS].accuracies[i % HEADS_RANKS] = values[i];
    }
    return 0;
}

int heads_read_keys(const struct gguf *g, const struct heads_plan *plan, const struct model *m,
                    struct heads *h, struct err *e)
{
    const size_t n_vocab = m->config.n_vocab;
    TRY(check_architecture(g, e));
    TRY(check_count(g, "medusa.embedding_length", m->config.dim, ERR_CONFIG, "the model has",
                    e));
    TRY(check_count(g, "medusa.vocab_size", n_vocab, ERR_CONFIG, "the model has", e));
    TRY(check_vocab(g, m, e));
    TRY(check_count(g, "medusa.head_count", plan->n_heads, ERR_FORMAT, "its tensors are of",
                    e));
    TRY(check_count(g, "medusa.block_count", plan->n_blocks, ERR_FORMAT, "its tensors are of",
                    e));
    double *items;
    size_t n = 0;
    int code = read_array(g, "medusa.draft_vocab", GGUF_I32, n_vocab, &items, &n, e);
    if (code == 0 && items)
        code = take_draft_vocab(items, n, n_vocab, h, e);
    free(items);
    TRY(code);
    code = read_array(g, "medusa.accuracy", GGUF_F32, HEADS_MAX * HEADS_RANKS, &items, &n, e);
    if (code == 0 && items)
        code = take_accuracies(items, n, h, e);
    free(items);
    return code;
}

/* ------------------------------------------------------------------ writing */

struct out_tensor {
    char name[HEADS_NAME_BYTES];
    size_t n_rows, n_cols; /* n_rows 0: a vector */
    const float *data;
};

struct out_list {
    struct out_tensor items[HEADS_MAX * (2 * HEADS_BLOCKS_MAX + 1)];
    size_t n;
};

static size_t out_bytes(const struct out_tensor *t)
{
    return (t->n_rows ? t->n_rows : 1) * t->n_cols * sizeof(float);
}

static int list_tensor(struct out_list *list, struct heads_name name, size_t n_rows,
                       size_t n_cols, const float *data, struct err *e)
{
    struct out_tensor *t = &list->items[list->n++];
    *t = (struct out_tensor){.n_rows = n_rows, .n_cols = n_cols, .data = data};
    heads_name_print(&name, t->name);
    for (size_t i = 0; i < out_bytes(t) / sizeof *data; i++) {
        if (!isfinite(data[i]))
            return ERR_SET(
                e, ERR_INVALID,
                "element %zu of tensor %s is not a finite number; such heads are not "
                "written",
                i, t->name);
    }
    return 0;
}

static int list_tensors(const struct heads *h, struct out_list *list, struct err *e)
{
    for (size_t i = 0; i < h->n_heads; i++) {
        const struct head *head = &h->heads[i];
        ASSERT(!head->output == !h->heads[0].output);
        struct heads_name name = {.layout = HEADS_GGUF, .head = i};
        for (name.block = 0; name.block < h->n_blocks; name.block++) {
            const struct heads_block *block = &head->blocks[name.block];
            name.part = HEADS_WEIGHT;
            TRY(list_tensor(list, name, h->dim, h->dim, block->weight, e));
            name.part = HEADS_BIAS;
            TRY(list_tensor(list, name, 0, h->dim, block->bias, e));
        }
        name.part = HEADS_OUTPUT;
        if (head->output)
            TRY(list_tensor(list, name, h->n_draft, h->dim, head->output, e));
    }
    return 0;
}

static void add_accuracies(struct gguf_head *out, const struct heads *h)
{
    bool is_known = false;
    for (size_t i = 0; i < h->n_heads * HEADS_RANKS; i++)
        is_known = is_known || h->heads[i / HEADS_RANKS].accuracies[i % HEADS_RANKS] != 0;
    if (!is_known)
        return;
    gguf_begin_array(out, "medusa.accuracy", GGUF_F32, h->n_heads * HEADS_RANKS);
    for (size_t i = 0; i < h->n_heads * HEADS_RANKS; i++)
        gguf_append_f32(&out->keys,
                        (float)h->heads[i / HEADS_RANKS].accuracies[i % HEADS_RANKS]);
}

static void add_keys(struct gguf_head *out, const struct heads *h, size_t n_vocab,
                     const char *hex)
{
    gguf_add_text(out, "general.architecture", ARCHITECTURE);
    gguf_add_count(out, "medusa.head_count", h->n_heads);
    gguf_add_count(out, "medusa.block_count", h->n_blocks);
    gguf_add_count(out, "medusa.embedding_length", h->dim);
    gguf_add_count(out, "medusa.vocab_size", n_vocab);
    gguf_add_text(out, "medusa.vocab_sha256", hex);
    if (h->draft_vocab) {
        gguf_begin_array(out, "medusa.draft_vocab", GGUF_I32, h->n_draft);
        buf_append(&out->keys, h->draft_vocab, h->n_draft * sizeof *h->draft_vocab);
    }
    add_accuracies(out, h);
}

/* Everything before the data. */
static int make_head(const struct heads *h, const struct model *m, const struct out_list *list,
                     struct buf *out, struct err *e)
{
    char hex[SHA256_HEX_BYTES];
    TRY(hash_vocab(m, hex, e));
    struct gguf_head head = {0};
    add_keys(&head, h, m->config.n_vocab, hex);
    for (size_t i = 0; i < list->n; i++) {
        const struct out_tensor *t = &list->items[i];
        gguf_add_tensor(&head, t->name, QUANT_F32, t->n_rows, t->n_cols, out_bytes(t));
    }
    return gguf_head_finish(&head, out)
               ? 0
               : ERR_SET(e, ERR_NOMEM, "out of memory for a file of heads");
}

static int write_parts(struct file_replacement *file, const struct buf *head,
                       const struct out_list *list, struct err *e)
{
    static const char zeros[GGUF_WRITE_ALIGNMENT];
    TRY(file_replace_write(file, head->data, head->length, e));
    for (size_t i = 0; i < list->n; i++) {
        const size_t bytes = out_bytes(&list->items[i]);
        TRY(file_replace_write(file, list->items[i].data, bytes, e));
        TRY(file_replace_write(file, zeros, gguf_padding(bytes), e));
    }
    return 0;
}

static int write_file(const char *path, const struct buf *head, const struct out_list *list,
                      struct err *e)
{
    struct file_replacement file;
    TRY(file_replace_begin(path, &file, e));
    const int code = write_parts(&file, head, list, e);
    if (code == 0)
        return file_replace_commit(&file, e);
    file_replace_abandon(&file);
    return code;
}

int heads_write(const char *path, const struct heads *h, const struct model *m, struct err *e)
{
    ASSERT(h->n_heads > 0 && h->n_heads <= HEADS_MAX && h->n_blocks <= HEADS_BLOCKS_MAX);
    ASSERT(h->dim == m->config.dim && (h->n_blocks > 0 || h->heads[0].output));
    struct out_list list = {.n = 0};
    struct buf head = {0};
    int code = list_tensors(h, &list, e);
    if (code == 0)
        code = make_head(h, m, &list, &head, e);
    if (code == 0)
        code = write_file(path, &head, &list, e);
    buf_fini(&head);
    return code;
}
