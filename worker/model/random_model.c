/*
 * The bytes of a matrix are cut from a ring of random blocks, from a place of its own: a file
 * of 16 GB takes as long as copying it. The ring's length has no factor in common with any
 * row's, so that rows that are near each other differ.
 */
#include "model/random_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/size.h"
#include "model/gguf_write.h"

enum {
    QUANTIZATION_VERSION = 2,
    RING_BLOCKS = 131101,          /* a prime */
    FLOAT_RING_ELEMENTS = 4194319, /* likewise */
    LAYER_TENSORS = 9,
    END_TENSORS = 3,
    NAME_BYTES = 64,
};

static const struct random_shape shapes[] = {
    {"tiny", 2, 64, 4, 2, 16, 128, 512, 4096, 1e4, false},
    {"135m", 30, 576, 9, 3, 64, 1536, 49152, 8192, 1e5, true},
    {"1b", 16, 2048, 32, 8, 64, 8192, 128256, 131072, 5e5, true},
    {"3b", 28, 3072, 24, 8, 128, 8192, 128256, 131072, 5e5, true},
    {"8b", 32, 4096, 32, 8, 128, 14336, 128256, 131072, 5e5, false},
};

int random_shape_find(const char *name, const struct random_shape **out, struct err *e)
{
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        if (strcmp(shapes[i].name, name) == 0) {
            *out = &shapes[i];
            return 0;
        }
    return ERR_SET(e, ERR_USAGE, "'%.20s' is no shape; tiny, 135m, 1b, 3b and 8b are", name);
}

int random_type_find(const char *name, enum quant_type *out, struct err *e)
{
    static const enum quant_type types[] = {QUANT_F32, QUANT_BF16, QUANT_Q8_0, QUANT_Q4_0};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcasecmp(quant_find(types[i])->name, name) == 0) {
            *out = types[i];
            return 0;
        }
    return ERR_SET(e, ERR_USAGE, "'%.20s' is no type here; F32, BF16, Q8_0 and Q4_0 are", name);
}

/* ------------------------------------------------------------------ tensors */

struct out_tensor {
    char name[NAME_BYTES];
    size_t n_rows, n_cols; /* n_rows 0: a vector of ones in float32 */
};

struct out_list {
    struct out_tensor *items; /* owned */
    size_t n;
    enum quant_type type;
};

static uint64_t tensor_bytes(const struct out_list *list, const struct out_tensor *t)
{
    if (t->n_rows == 0)
        return t->n_cols * sizeof(float);
    return (uint64_t)t->n_rows * quant_row_bytes(list->type, t->n_cols);
}

static uint64_t padded(uint64_t bytes)
{
    return bytes + gguf_padding(bytes);
}

static struct out_tensor *add(struct out_list *list, const char *name, size_t n_rows,
                              size_t n_cols)
{
    struct out_tensor *t = &list->items[list->n++];
    *t = (struct out_tensor){.n_rows = n_rows, .n_cols = n_cols};
    snprintf(t->name, sizeof t->name, "%s.weight", name);
    return t;
}

static void add_of_layer(struct out_list *list, size_t layer, const char *name, size_t n_rows,
                         size_t n_cols)
{
    struct out_tensor *t = add(list, name, n_rows, n_cols);
    snprintf(t->name, sizeof t->name, "blk.%zu.%s.weight", layer, name);
}

static void add_layer(struct out_list *list, const struct random_shape *s, size_t i)
{
    const size_t q = s->n_heads * s->head_dim, kv = s->n_kv_heads * s->head_dim;
    add_of_layer(list, i, "attn_norm", 0, s->dim);
    add_of_layer(list, i, "attn_q", q, s->dim);
    add_of_layer(list, i, "attn_k", kv, s->dim);
    add_of_layer(list, i, "attn_v", kv, s->dim);
    add_of_layer(list, i, "attn_output", s->dim, q);
    add_of_layer(list, i, "ffn_norm", 0, s->dim);
    add_of_layer(list, i, "ffn_gate", s->ffn_dim, s->dim);
    add_of_layer(list, i, "ffn_up", s->ffn_dim, s->dim);
}

static int list_tensors(const struct random_shape *s, enum quant_type type,
                        struct out_list *list, struct err *e)
{
    *list = (struct out_list){.type = type};
    list->items = calloc(END_TENSORS + s->n_layers * LAYER_TENSORS, sizeof list->items[0]);
    if (!list->items)
        return ERR_SET(e, ERR_NOMEM, "no memory for a list of tensors");
    add(list, "token_embd", s->n_vocab, s->dim);
    add(list, "output_norm", 0, s->dim);
    if (!s->tied)
        add(list, "output", s->n_vocab, s->dim);
    for (size_t i = 0; i < s->n_layers; i++)
        add_layer(list, s, i);
    /* Behind all others, for one ring does for all of them. */
    for (size_t i = 0; i < s->n_layers; i++)
        add_of_layer(list, i, "ffn_down", s->dim, s->ffn_dim);
    return 0;
}

uint64_t random_model_bytes(const struct random_shape *s, enum quant_type type)
{
    struct out_list list;
    uint64_t bytes = 0;
    if (list_tensors(s, type, &list, NULL) == 0)
        for (size_t i = 0; i < list.n; i++)
            bytes += padded(tensor_bytes(&list, &list.items[i]));
    free(list.items);
    return bytes;
}

/* ------------------------------------------------------------------ before the data */

/* SentencePiece's: unknown, start, end, the 256 bytes, then words that are no words. */
enum {
    TYPE_NORMAL = 1,
    TYPE_UNKNOWN,
    TYPE_CONTROL,
    TYPE_BYTE = 6,
    FIRST_BYTE = 3,
    FIRST_WORD = 259
};

static void name_token(size_t id, char *out, size_t size)
{
    static const char *const first[FIRST_BYTE] = {"<unk>", "<s>", "</s>"};
    if (id < FIRST_BYTE)
        snprintf(out, size, "%s", first[id]);
    else if (id < FIRST_WORD)
        snprintf(out, size, "<0x%02zX>", id - FIRST_BYTE);
    else
        snprintf(out, size, "w%zu", id);
}

static uint32_t type_token(size_t id)
{
    if (id >= FIRST_WORD)
        return TYPE_NORMAL;
    if (id >= FIRST_BYTE)
        return TYPE_BYTE;
    return id == 0 ? TYPE_UNKNOWN : TYPE_CONTROL;
}

static void add_vocabulary(struct gguf_head *h, size_t n_vocab)
{
    char text[32];
    ASSERT(n_vocab > FIRST_WORD);
    gguf_add_text(h, "tokenizer.ggml.model", "llama");
    gguf_begin_array(h, "tokenizer.ggml.tokens", GGUF_STRING, n_vocab);
    for (size_t id = 0; id < n_vocab; id++) {
        name_token(id, text, sizeof text);
        gguf_append_text(&h->keys, text);
    }
    gguf_begin_array(h, "tokenizer.ggml.token_type", GGUF_I32, n_vocab);
    for (size_t id = 0; id < n_vocab; id++)
        gguf_append_u32(&h->keys, type_token(id));
    gguf_begin_array(h, "tokenizer.ggml.scores", GGUF_F32, n_vocab);
    for (size_t id = 0; id < n_vocab; id++)
        gguf_append_f32(&h->keys, -(float)id);
}

static void add_keys(struct gguf_head *h, const struct random_shape *s)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "random-%s", s->name);
    gguf_add_text(h, "general.architecture", "llama");
    gguf_add_text(h, "general.name", name);
    gguf_add_count(h, "general.quantization_version", QUANTIZATION_VERSION);
    gguf_add_count(h, "llama.block_count", s->n_layers);
    gguf_add_count(h, "llama.context_length", s->context);
    gguf_add_count(h, "llama.embedding_length", s->dim);
    gguf_add_count(h, "llama.feed_forward_length", s->ffn_dim);
    gguf_add_count(h, "llama.attention.head_count", s->n_heads);
    gguf_add_count(h, "llama.attention.head_count_kv", s->n_kv_heads);
    gguf_add_count(h, "llama.attention.key_length", s->head_dim);
    gguf_add_count(h, "llama.attention.value_length", s->head_dim);
    gguf_add_float(h, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_add_float(h, "llama.rope.freq_base", (float)s->rope_base);
    add_vocabulary(h, s->n_vocab);
}

static int make_head(const struct random_shape *s, const struct out_list *list, struct buf *out,
                     struct err *e)
{
    struct gguf_head head = {0};
    add_keys(&head, s);
    for (size_t i = 0; i < list->n; i++) {
        const struct out_tensor *t = &list->items[i];
        gguf_add_tensor(&head, t->name, t->n_rows ? list->type : QUANT_F32, t->n_rows,
                        t->n_cols, tensor_bytes(list, t));
    }
    return gguf_head_finish(&head, out)
               ? 0
               : ERR_SET(e, ERR_NOMEM, "no memory for the head of a model file");
}

/* ------------------------------------------------------------------ random blocks */

struct ring {
    uint8_t *bytes; /* owned */
    size_t n_bytes;
    size_t block_bytes;
    size_t n_cols; /* of the matrices that it is for */
};

/* One block whose values are uniform in [-limit, limit]. */
static void fill_block(enum quant_type type, uint64_t seed, uint64_t index, float limit,
                       uint8_t *out)
{
    const uint64_t bits = rng_bits(seed, 0, index);
    const float value = (float)((double)(bits >> 11) * 0x1p-52 - 1) * limit;
    const uint16_t bf16 = quant_f32_to_bf16(value);
    const uint16_t scale = quant_f32_to_f16(limit / (type == QUANT_Q8_0 ? 127 : 8));
    switch (type) {
    case QUANT_F32: memcpy(out, &value, sizeof value); return;
    case QUANT_BF16: memcpy(out, &bf16, sizeof bf16); return;
    default: memcpy(out, &scale, sizeof scale);
    }
    const size_t n_codes = quant_find((uint32_t)type)->block_bytes - sizeof scale;
    for (size_t i = 0; i < n_codes; i += sizeof bits) {
        const uint64_t codes = rng_bits(seed, 1 + i, index);
        memcpy(out + sizeof scale + i, &codes, size_min(sizeof codes, n_codes - i));
    }
}

static int make_ring(enum quant_type type, size_t n_cols, uint64_t seed, struct ring *ring,
                     struct err *e)
{
    const struct quant_info *info = quant_find((uint32_t)type);
    const size_t n = info->block_elems == 1 ? FLOAT_RING_ELEMENTS : RING_BLOCKS;
    *ring = (struct ring){.block_bytes = info->block_bytes, .n_cols = n_cols};
    ring->n_bytes = n * info->block_bytes;
    ring->bytes = malloc(ring->n_bytes);
    if (!ring->bytes)
        return ERR_SET(e, ERR_NOMEM, "no memory for random weights");
    const float limit = sqrtf(3.0f / (float)n_cols);
    for (size_t i = 0; i < n; i++)
        fill_block(type, seed, i, limit, ring->bytes + i * info->block_bytes);
    return 0;
}

/* ------------------------------------------------------------------ the file */

struct writer {
    struct file_replacement file;
    const struct out_list *list;
    uint64_t seed;
    struct ring ring; /* of the last matrix; the next one often has as many inputs */
};

static int write_zeros(struct writer *w, uint64_t bytes, struct err *e)
{
    static const char zeros[GGUF_WRITE_ALIGNMENT];
    return file_replace_write(&w->file, zeros, gguf_padding(bytes), e);
}

static int write_vector(struct writer *w, const struct out_tensor *t, struct err *e)
{
    float ones[256];
    for (size_t i = 0; i < sizeof ones / sizeof ones[0]; i++)
        ones[i] = 1;
    for (size_t left = t->n_cols; left > 0;) {
        const size_t n = size_min(left, sizeof ones / sizeof ones[0]);
        TRY(file_replace_write(&w->file, ones, n * sizeof ones[0], e));
        left -= n;
    }
    return 0;
}

static int write_matrix(struct writer *w, const struct out_tensor *t, size_t index,
                        struct err *e)
{
    if (w->ring.n_cols != t->n_cols) {
        free(w->ring.bytes);
        TRY(make_ring(w->list->type, t->n_cols, w->seed, &w->ring, e));
    }
    const struct ring *r = &w->ring;
    size_t at = rng_bits(w->seed, 99, index) % (r->n_bytes / r->block_bytes) * r->block_bytes;
    for (uint64_t left = tensor_bytes(w->list, t); left > 0; at = 0) {
        const size_t n = (size_t)(left < r->n_bytes - at ? left : r->n_bytes - at);
        TRY(file_replace_write(&w->file, r->bytes + at, n, e));
        left -= n;
    }
    return 0;
}

static int write_all(struct writer *w, const struct buf *head, struct err *e)
{
    TRY(file_replace_write(&w->file, head->data, head->length, e));
    for (size_t i = 0; i < w->list->n; i++) {
        const struct out_tensor *t = &w->list->items[i];
        TRY(t->n_rows ? write_matrix(w, t, i, e) : write_vector(w, t, e));
        TRY(write_zeros(w, tensor_bytes(w->list, t), e));
    }
    return 0;
}

static int write_file(const char *path, const struct buf *head, const struct out_list *list,
                      uint64_t seed, struct err *e)
{
    struct writer w = {.list = list, .seed = seed};
    TRY(file_replace_begin(path, &w.file, e));
    const int code = write_all(&w, head, e);
    free(w.ring.bytes);
    if (code == 0)
        return file_replace_commit(&w.file, e);
    file_replace_abandon(&w.file);
    return code;
}

int random_model_write(const char *path, const struct random_shape *s, enum quant_type type,
                       uint64_t seed, struct err *e)
{
    struct out_list list = {0};
    struct buf head = {0};
    int code = list_tensors(s, type, &list, e);
    if (code == 0)
        code = make_head(s, &list, &head, e);
    if (code == 0)
        code = write_file(path, &head, &list, seed, e);
    buf_fini(&head);
    free(list.items);
    return code;
}
