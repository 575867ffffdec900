/*
 * From names to places: which layout it is, that every place of it is taken once, and that what
 * stands there has the right shape. Counts come from the names alone.
 */
#include "model/heads_int.h"

#include <string.h>

/* ------------------------------------------------------------------ the layout */

/* Parts that every file of heads has some of; lm_head.weight is in most checkpoints. */
static bool decides(const struct heads_tensor *t)
{
    return t->name.part != HEADS_OUTPUT_OF_ALL && t->name.part != HEADS_TOKEN_MAP;
}

static bool has_layout(const struct heads_found *found, enum heads_layout layout)
{
    for (size_t i = 0; i < found->n_tensors; i++) {
        if (found->tensors[i].name.layout == layout && decides(&found->tensors[i]))
            return true;
    }
    return false;
}

/* Layouts within a base model first: the base's tensors may be called anything. */
static int choose_layout(const struct heads_found *found, enum heads_layout *out, struct err *e)
{
    static const enum heads_layout order[] = {HEADS_MERGED, HEADS_TENSORRT, HEADS_PLAIN,
                                              HEADS_VLLM, HEADS_GGUF};
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        if (has_layout(found, order[i])) {
            *out = order[i];
            return 0;
        }
    }
    const char *foreign = found->foreign[found->gguf ? HEADS_GGUF : HEADS_PLAIN];
    return ERR_SET(e, ERR_FORMAT, "holds no Medusa heads in any layout that Sheaf knows%s%s",
                   foreign[0] ? "; it has the tensor " : "", foreign);
}

/* ------------------------------------------------------------------ places */

static const struct heads_tensor **place_of(struct heads_plan *p, const struct heads_name *name)
{
    switch (name->part) {
    case HEADS_WEIGHT: return &p->weights[name->head][name->block];
    case HEADS_BIAS: return &p->biases[name->head][name->block];
    case HEADS_OUTPUT: return &p->outputs[name->head];
    case HEADS_OUTPUT_OF_ALL: return &p->output_of_all;
    case HEADS_TOKEN_MAP: break;
    }
    return &p->token_map;
}

static bool names_its_block(const struct heads_name *name)
{
    return name->part == HEADS_WEIGHT || name->part == HEADS_BIAS;
}

static int place(struct heads_plan *p, const struct heads_tensor *t, struct err *e)
{
    if (t->name.head >= HEADS_MAX)
        return ERR_SET(e, ERR_LIMIT,
                       "tensor %s is of head %zu, counted from 0; at most %d are "
                       "used",
                       t->text, t->name.head, HEADS_MAX);
    if (t->name.block >= HEADS_BLOCKS_MAX + (names_its_block(&t->name) ? 0 : 1))
        return ERR_SET(e, ERR_LIMIT,
                       "tensor %s is of block %zu, counted from 0; at most %d blocks are used",
                       t->text, t->name.block, HEADS_BLOCKS_MAX);
    const struct heads_tensor **slot = place_of(p, &t->name);
    if (*slot && strcmp((*slot)->text, t->text) == 0)
        return ERR_SET(e, ERR_FORMAT, "tensor %s is there twice", t->text);
    if (*slot)
        return ERR_SET(e, ERR_FORMAT, "tensors %s and %s stand for the same", (*slot)->text,
                       t->text);
    *slot = t;
    if (!decides(t))
        return 0;
    if (p->n_heads <= t->name.head)
        p->n_heads = t->name.head + 1;
    /* A plain output tells by its number how many blocks stand before it. */
    const size_t n_blocks = t->name.block + (names_its_block(&t->name) ? 1 : 0);
    if (p->n_blocks < n_blocks)
        p->n_blocks = n_blocks;
    return 0;
}

static int refuse_unknown(const struct heads_plan *p, const char *name, struct err *e)
{
    return ERR_SET(e, ERR_UNSUPPORTED,
                   "tensor %.200s is unknown among heads in %s layout; nothing is left out in "
                   "silence",
                   name, heads_layout_name(p->layout));
}

static int place_all(const struct heads_found *found, struct heads_plan *p, struct err *e)
{
    for (size_t i = 0; i < found->n_tensors; i++) {
        const struct heads_tensor *t = &found->tensors[i];
        if (t->name.layout == p->layout)
            TRY(place(p, t, e));
        else if (heads_layout_owns(p->layout, t->text))
            return refuse_unknown(p, t->text, e);
    }
    if (found->foreign[p->layout][0])
        return refuse_unknown(p, found->foreign[p->layout], e);
    return 0;
}

/* ------------------------------------------------------------------ nothing is missing */

static int refuse_missing(const struct heads_plan *p, enum heads_part part, size_t head,
                          size_t block, struct err *e)
{
    char text[HEADS_NAME_BYTES];
    const struct heads_name name = {p->layout, part, head, block};
    heads_name_print(&name, text);
    return ERR_SET(e, ERR_FORMAT,
                   "tensor %s is missing: the file's other tensors tell of %zu heads of %zu "
                   "blocks each",
                   text, p->n_heads, p->n_blocks);
}

static int require_blocks(struct heads_plan *p, struct err *e)
{
    for (size_t i = 0; i < p->n_heads; i++) {
        for (size_t l = 0; l < p->n_blocks; l++)
            p->has_bias = p->has_bias || p->biases[i][l];
    }
    const bool wants_bias = p->has_bias || !heads_layout_may_lack_bias(p->layout);
    for (size_t i = 0; i < p->n_heads; i++) {
        for (size_t l = 0; l < p->n_blocks; l++) {
            if (!p->weights[i][l])
                return refuse_missing(p, HEADS_WEIGHT, i, l, e);
            if (wants_bias && !p->biases[i][l])
                return refuse_missing(p, HEADS_BIAS, i, l, e);
        }
    }
    return 0;
}

/* One output that stands alone among several heads is that of all, where a layout has it so. */
static void share_output(struct heads_plan *p)
{
    bool stands_alone = p->layout == HEADS_VLLM && p->n_heads > 1 && p->outputs[0];
    for (size_t i = 1; i < p->n_heads; i++)
        stands_alone = stands_alone && !p->outputs[i];
    if (!stands_alone || p->output_of_all)
        return;
    p->output_of_all = p->outputs[0];
    p->outputs[0] = NULL;
}

static int require_outputs(struct heads_plan *p, struct err *e)
{
    share_output(p);
    bool has_own = false;
    for (size_t i = 0; i < p->n_heads; i++) {
        const struct heads_tensor *t = p->outputs[i];
        has_own = has_own || t;
        if (t && p->output_of_all)
            return ERR_SET(e, ERR_FORMAT,
                           "tensors %s and %s: there is one output for all heads "
                           "or one for each",
                           p->output_of_all->text, t->text);
        if (t && (p->layout == HEADS_PLAIN || p->layout == HEADS_MERGED) &&
            t->name.block != p->n_blocks)
            return ERR_SET(e, ERR_FORMAT, "tensor %s is not the output behind %zu blocks",
                           t->text, p->n_blocks);
    }
    const bool is_tied = !has_own && heads_layout_may_be_tied(p->layout);
    for (size_t i = 0; i < p->n_heads && !is_tied && !p->output_of_all; i++) {
        if (!p->outputs[i])
            return refuse_missing(p, HEADS_OUTPUT, i, p->n_blocks, e);
    }
    return 0;
}

int heads_plan(const struct heads_found *found, struct heads_plan *plan, struct err *e)
{
    *plan = (struct heads_plan){0};
    TRY(choose_layout(found, &plan->layout, e));
    TRY(place_all(found, plan, e));
    TRY(require_blocks(plan, e));
    return require_outputs(plan, e);
}

/* ------------------------------------------------------------------ shapes */

static int check_shape(const struct heads_tensor *t, size_t n_dims, uint64_t n_rows,
                       uint64_t n_cols, struct err *e)
{
    if (!t->is_float)
        return ERR_SET(e, ERR_UNSUPPORTED,
                       "tensor %s has type %s; heads are read as F32, F16 or BF16", t->text,
                       t->type_name);
    if (t->n_dims == n_dims && t->n_rows == n_rows && t->n_cols == n_cols)
        return 0;
    if (n_dims == 1)
        return ERR_SET(e, ERR_FORMAT,
                       "tensor %s has %zu dimensions, the last of %llu; it must be one of %llu",
                       t->text, t->n_dims, (unsigned long long)t->n_cols,
                       (unsigned long long)n_cols);
    return ERR_SET(e, ERR_FORMAT,
                   "tensor %s has the shape [%llu, %llu] (%zu dimensions), not [%llu, %llu]",
                   t->text, (unsigned long long)t->n_rows, (unsigned long long)t->n_cols,
                   t->n_dims, (unsigned long long)n_rows, (unsigned long long)n_cols);
}

static const struct heads_tensor *first_output(const struct heads_plan *p)
{
    return p->output_of_all ? p->output_of_all : p->outputs[0];
}

/* Heads of another model are told by their width and their vocabulary. */
static int check_model(const struct heads_plan *p, const struct model_config *model,
                       struct err *e)
{
    const struct heads_tensor *output = first_output(p);
    const struct heads_tensor *any = p->n_blocks > 0 ? p->weights[0][0] : output;
    if (any->n_dims == 2 && any->n_cols != model->dim)
        return ERR_SET(e, ERR_CONFIG,
                       "tensor %s belongs to a model of %llu dimensions, and this model has "
                       "%zu; heads fit only the model that they were trained for",
                       any->text, (unsigned long long)any->n_cols, model->dim);
    const bool is_whole = p->layout != HEADS_GGUF && !p->token_map;
    if (output && is_whole && output->n_dims == 2 && output->n_rows != model->n_vocab)
        return ERR_SET(e, ERR_CONFIG,
                       "tensor %s belongs to a model of %llu tokens, and this model has %zu; "
                       "heads fit only the model that they were trained for",
                       output->text, (unsigned long long)output->n_rows, model->n_vocab);
    return 0;
}

static int check_output(const struct heads_plan *p, const struct heads_tensor *t,
                        const struct model_config *model, size_t n_draft, struct err *e)
{
    if (!t)
        return 0;
    const bool is_whole = p->token_map && t->n_rows == model->n_vocab;
    return check_shape(t, 2, is_whole ? model->n_vocab : n_draft, model->dim, e);
}

int heads_check(const struct heads_plan *plan, const struct model_config *model, size_t n_draft,
                struct err *e)
{
    TRY(check_model(plan, model, e));
    for (size_t i = 0; i < plan->n_heads; i++) {
        for (size_t l = 0; l < plan->n_blocks; l++) {
            TRY(check_shape(plan->weights[i][l], 2, model->dim, model->dim, e));
            if (plan->biases[i][l])
                TRY(check_shape(plan->biases[i][l], 1, 1, model->dim, e));
        }
        TRY(check_output(plan, plan->outputs[i], model, n_draft, e));
    }
    return check_output(plan, plan->output_of_all, model, n_draft, e);
}
