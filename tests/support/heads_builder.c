#include "heads_builder.h"

#include <stdio.h>
#include <stdlib.h>

unsigned small_seed(enum small_part part, size_t head, size_t block)
{
    return (unsigned)(1000 * head + 100 * (part == SMALL_OUTPUT ? 0 : block) + 1 +
                      (unsigned)part);
}

void small_name(enum small_layout layout, enum small_part part, size_t i, size_t l,
                char out[96])
{
    const char *suffix = part == SMALL_BIAS ? "bias" : "weight";
    const bool is_output = part == SMALL_OUTPUT;
    const char *prefix = layout == SMALL_MERGED          ? "medusa_head."
                         : layout == SMALL_VLLM_PREFIXED ? "medusa_heads."
                                                         : "";
    if ((layout == SMALL_PLAIN || layout == SMALL_MERGED) && is_output)
        snprintf(out, 96, "%s%zu.%zu.weight", prefix, i, l);
    else if (layout == SMALL_PLAIN || layout == SMALL_MERGED)
        snprintf(out, 96, "%s%zu.%zu.linear.%s", prefix, i, l, suffix);
    else if (layout == SMALL_TENSORRT && is_output)
        snprintf(out, 96, "medusa_heads.%zu.lm_head.weight", i);
    else if (layout == SMALL_TENSORRT)
        snprintf(out, 96, "medusa_heads.%zu.medusa_layers.%zu.linear.%s", i, l, suffix);
    else if (is_output)
        snprintf(out, 96, "%slm_heads.%zu.weight", prefix, i);
    else
        snprintf(out, 96, "%sblocks.%zu.layers.%zu.%s", prefix, i, l, suffix);
}

static void add(struct st_builder *b, const struct small_heads *h, enum small_part part,
                size_t i, size_t l)
{
    char name[96];
    small_name(h->layout, part, i, l, name);
    const size_t n_rows = part == SMALL_BIAS ? 0 : part == SMALL_OUTPUT ? SMALL_V : SMALL_D;
    st_tensor(b, name, h->dtype, n_rows, SMALL_D, small_seed(part, i, l));
}

void small_head(struct st_builder *b, const struct small_heads *h, size_t i)
{
    for (size_t l = 0; l < h->n_blocks; l++) {
        add(b, h, SMALL_WEIGHT, i, l);
        if (!h->without_bias)
            add(b, h, SMALL_BIAS, i, l);
    }
    if (!h->is_tied)
        add(b, h, SMALL_OUTPUT, i, h->n_blocks);
}

void small_base(struct st_builder *b, int part)
{
    if (part == 0) {
        st_tensor(b, "model.embed_tokens.weight", "BF16", 5, 3, 77);
        st_tensor_bytes(b, "model.layers.0.mlp.gate_proj.weight", "F8_E4M3", 2, 2, "abcd", 4);
    } else {
        st_tensor(b, "lm_head.weight", "BF16", 5, 3, 78);
        st_tensor(b, "transformer.ln_f.weight", "F32", 0, 3, 79);
    }
}

struct gguf_bytes small_heads_file(const struct small_heads *h)
{
    const bool has_base = h->layout == SMALL_MERGED || h->layout == SMALL_TENSORRT;
    struct st_builder b;
    st_init(&b);
    if (has_base)
        small_base(&b, 0);
    for (size_t i = h->n_heads; i > 0; i--) /* no order is promised */
        small_head(&b, h, i - 1);
    if (has_base)
        small_base(&b, 1);
    return st_take(&b);
}

void small_write(const char *folder, const char *name, const struct gguf_bytes *file)
{
    char *path;
    if (asprintf(&path, "%s/%s", folder, name) < 0)
        abort();
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(file->data, 1, file->size, f) != file->size || fclose(f) != 0)
        abort();
    free(path);
}
