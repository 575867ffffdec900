/*
 * Heads from files: every layout gives the same numbers, what is missing, unknown, misshapen or
 * of another model is refused by name, and what is written is read back. The GGUF files and
 * tied.safetensors of fixtures/heads come from a program that shares no code with Sheaf; the
 * other files are built here (support/heads_builder.c).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "heads_builder.h"
#include "model/heads.h"
#include "model_edit.h"

#define FIXTURES SHEAF_TEST_DATA "/fixtures/heads/"

static struct model *model;
static char folder[] = "/tmp/sheaf-heads-XXXXXX";
static char path[256];

static struct model *open_model(const char *model_path)
{
    struct model *m = NULL;
    struct err e = {0};
    if (model_open(model_path, &m, &e) != 0)
        fail_msg("%s", e.text);
    return m;
}

static int set_up(void **state)
{
    (void)state;
    model = open_model(LLAMA);
    assert_int_equal(model->config.dim, SMALL_D);
    assert_int_equal(model->config.n_vocab, SMALL_V);
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/heads", folder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    model_close(model);
    unlink(path);
    return rmdir(folder);
}

static void put(struct gguf_bytes file)
{
    small_write(folder, "heads", &file);
    free(file.data);
}

static struct heads *open_heads(const char *heads_path, const struct model *m)
{
    struct heads *h = NULL;
    struct err e = {0};
    if (heads_open(heads_path, m, &h, &e) != 0)
        fail_msg("%s", e.text);
    return h;
}

/* Fails the test unless the sentence has this text and names the file. */
static void check_refused_for(const struct model *m, const char *heads_path, int code,
                              const char *text)
{
    struct heads *h = NULL;
    struct err e = {0};
    const int got = heads_open(heads_path, m, &h, &e);
    if (got == 0)
        fail_msg("read, where this was expected: %s", text);
    assert_null(h);
    if (got != code || !strstr(e.text, text) || !strstr(e.text, heads_path))
        fail_msg("%s (%d), where this was expected: %s (%d)", e.text, got, text, code);
}

static void check_refused(int code, const char *text)
{
    check_refused_for(model, path, code, text);
}

static void check_floats(const float *got, unsigned seed, size_t first, size_t n)
{
    assert_non_null(got);
    for (size_t i = 0; i < n; i++) {
        if (!(got[i] == small_value(seed, first + i)))
            fail_msg("element %zu of seed %u is %g, not %g", first + i, seed, (double)got[i],
                     (double)small_value(seed, first + i));
    }
}

static void check_blocks(const struct heads *h, size_t n_heads, size_t n_blocks, bool has_bias)
{
    assert_int_equal(h->n_heads, n_heads);
    assert_int_equal(h->n_blocks, n_blocks);
    assert_int_equal(h->dim, SMALL_D);
    for (size_t i = 0; i < n_heads; i++) {
        for (size_t l = 0; l < n_blocks; l++) {
            const struct heads_block *block = &h->heads[i].blocks[l];
            check_floats(block->weight, small_seed(SMALL_WEIGHT, i, l), 0, SMALL_D * SMALL_D);
            if (has_bias)
                check_floats(block->bias, small_seed(SMALL_BIAS, i, l), 0, SMALL_D);
            for (size_t d = 0; !has_bias && d < SMALL_D; d++)
                assert_true(block->bias[d] == 0);
        }
    }
}

static void check_outputs(const struct heads *h, bool is_tied)
{
    assert_null(h->draft_vocab);
    assert_int_equal(h->n_draft, SMALL_V);
    for (size_t i = 0; i < h->n_heads; i++) {
        if (is_tied)
            assert_null(h->heads[i].output);
        else
            check_floats(h->heads[i].output, small_seed(SMALL_OUTPUT, i, 0), 0,
                         SMALL_V * SMALL_D);
    }
}

/* ------------------------------------------------------------------ the same numbers */

static void check_file_of(const struct small_heads *x)
{
    put(small_heads_file(x));
    struct heads *h = open_heads(path, model);
    check_blocks(h, x->n_heads, x->n_blocks, !x->without_bias);
    check_outputs(h, x->is_tied);
    heads_close(h);
}

static void every_layout_gives_the_same_heads(void **state)
{
    (void)state;
    static const char *const dtypes[] = {"F32", "F16", "BF16"};
    size_t n = 0;
    for (int layout = SMALL_PLAIN; layout <= SMALL_TENSORRT; layout++) {
        for (size_t t = 0; t < 3; t++) {
            for (size_t blocks = 0; blocks <= 2; blocks++, n++) {
                struct small_heads x = {
                    (enum small_layout)layout, dtypes[t], 3, blocks, false, false};
                check_file_of(&x);
                x.is_tied = blocks > 0 && layout <= SMALL_MERGED;
                if (x.is_tied)
                    check_file_of(&x);
                n += x.is_tied;
            }
        }
    }
    printf("figure: %zu files of 5 public layouts gave the numbers they were made from\n", n);
}

static void as_many_heads_and_blocks_as_allowed_are_read(void **state)
{
    (void)state;
    check_file_of(
        &(struct small_heads){SMALL_PLAIN, "BF16", HEADS_MAX, HEADS_BLOCKS_MAX, false, true});
}

static void vllm_blocks_without_bias_have_zeros(void **state)
{
    (void)state;
    check_file_of(&(struct small_heads){SMALL_VLLM, "F16", 2, 1, true, false});
}

static struct st_builder begin(const struct small_heads *x)
{
    struct st_builder b;
    st_init(&b);
    for (size_t i = 0; i < x->n_heads; i++)
        small_head(&b, x, i);
    return b;
}

static const struct small_heads vllm = {SMALL_VLLM, "F32", 3, 1, false, true};

/* original_lm_head of vLLM: under the name of the first or of the model's own. */
static void one_output_may_serve_all_heads(void **state)
{
    (void)state;
    static const char *const names[] = {"lm_heads.0.weight", "lm_head.weight"};
    for (size_t k = 0; k < 2; k++) {
        struct st_builder b = begin(&vllm);
        st_tensor(&b, names[k], "F32", SMALL_V, SMALL_D, 5);
        put(st_take(&b));
        struct heads *h = open_heads(path, model);
        check_blocks(h, 3, 1, true);
        for (size_t i = 0; i < 3; i++)
            check_floats(h->heads[i].output, 5, 0, SMALL_V * SMALL_D);
        assert_ptr_equal(h->heads[0].output, h->heads[2].output);
        heads_close(h);
    }
}

/* The outputs of a cut vocabulary may have its rows, in the order of the map, or all rows. */
static void a_token_map_says_which_rows_are_which_tokens(void **state)
{
    (void)state;
    static const int64_t ids[4] = {300, 2, 319, 17};
    static const int32_t short_ids[4] = {300, 2, 319, 17};
    static const int32_t sorted[4] = {2, 17, 300, 319};
    static const size_t rows[4] = {1, 3, 0, 2}; /* of the sorted ones in the map */
    for (int k = 0; k < 4; k++) {
        const bool is_cut = k / 2 == 0;
        struct st_builder b = begin(&vllm);
        for (size_t i = 0; i < 3; i++) {
            char name[96];
            small_name(SMALL_VLLM, SMALL_OUTPUT, i, 1, name);
            st_tensor(&b, name, "F16", is_cut ? 4 : SMALL_V, SMALL_D, (unsigned)(7 + i));
        }
        if (k % 2 == 0)
            st_tensor_bytes(&b, "token_map", "I64", 0, 4, ids, sizeof ids);
        else
            st_tensor_bytes(&b, "medusa_heads.token_map", "I32", 0, 4, short_ids,
                            sizeof short_ids);
        put(st_take(&b));
        struct heads *h = open_heads(path, model);
        assert_int_equal(h->n_draft, 4);
        assert_memory_equal(h->draft_vocab, sorted, sizeof sorted);
        for (size_t i = 0; i < 3; i++) {
            for (size_t j = 0; j < 4; j++)
                check_floats(h->heads[i].output + j * SMALL_D, (unsigned)(7 + i),
                             (is_cut ? rows[j] : (size_t)sorted[j]) * SMALL_D, SMALL_D);
        }
        heads_close(h);
    }
}

static void in_folder(const char *name, const struct st_builder *b)
{
    struct st_builder copy = *b;
    struct gguf_bytes file = st_take(&copy);
    small_write(folder, name, &file);
    free(file.data);
}

static void remove_from_folder(const char *name)
{
    char *joined;
    if (asprintf(&joined, "%s/%s", folder, name) < 0)
        abort();
    unlink(joined);
    free(joined);
}

static void a_folder_of_shards_is_one_checkpoint(void **state)
{
    (void)state;
    static const char *const names[] = {"model-1-of-3.safetensors", "model-2-of-3.safetensors",
                                        "model-3-of-3.safetensors"};
    const struct small_heads x = {SMALL_MERGED, "BF16", 2, 1, false, true};
    unlink(path);
    for (int part = 0; part < 3; part++) {
        struct st_builder b;
        st_init(&b);
        if (part < 2)
            small_base(&b, part);
        /* A head lies in two files. */
        if (part == 1) {
            small_head(&b, &x, 0);
            st_tensor(&b, "medusa_head.1.0.linear.bias", "BF16", 0, SMALL_D,
                      small_seed(SMALL_BIAS, 1, 0));
        }
        if (part == 2)
            st_tensor(&b, "medusa_head.1.0.linear.weight", "BF16", SMALL_D, SMALL_D,
                      small_seed(SMALL_WEIGHT, 1, 0));
        in_folder(names[part], &b);
    }
    const struct gguf_bytes other = {(uint8_t *)"{}", 2};
    small_write(folder, "config.json", &other);
    struct heads *h = open_heads(folder, model);
    check_blocks(h, 2, 1, true);
    check_outputs(h, true);
    heads_close(h);

    struct st_builder again;
    st_init(&again);
    st_tensor(&again, "medusa_head.1.0.linear.bias", "BF16", 0, SMALL_D, 1);
    in_folder("model-4.safetensors", &again);
    check_refused_for(model, folder, ERR_FORMAT,
                      "tensor medusa_head.1.0.linear.bias is there twice");
    remove_from_folder("model-4.safetensors");
    remove_from_folder(names[2]);
    check_refused_for(model, folder, ERR_FORMAT,
                      "tensor medusa_head.1.0.linear.weight is missing");
    remove_from_folder(names[0]);
    remove_from_folder(names[1]);
    check_refused_for(model, folder, ERR_NOTFOUND, "no .safetensors file in this folder");
    small_write(folder, "medusa_lm_head.pt", &other);
    check_refused_for(model, folder, ERR_UNSUPPORTED, "torch.load(\"medusa_lm_head.pt\"");
    remove_from_folder("medusa_lm_head.pt");
    remove_from_folder("config.json");
}

/* ------------------------------------------------------------------ what is refused */

struct added {
    const char *name;
    const char *dtype;
    size_t n_rows, n_cols;
};

/* Heads of two blocks and outputs, with one tensor dropped and one added. */
static const struct {
    enum small_layout layout;
    const char *dropped;
    struct added added;
    int code;
    const char *text;
} refusals[] = {
    {SMALL_PLAIN, "0.0.linear.weight", {0}, ERR_FORMAT, "tensor 0.0.linear.weight is missing"},
    {SMALL_PLAIN, "1.1.linear.bias", {0}, ERR_FORMAT, "tensor 1.1.linear.bias is missing"},
    {SMALL_PLAIN, "1.1.linear.weight", {0}, ERR_FORMAT, "tensor 1.1.linear.weight is missing"},
    {SMALL_PLAIN, "1.2.weight", {0}, ERR_FORMAT, "tensor 1.2.weight is missing"},
    {SMALL_PLAIN,
     NULL,
     {"3.0.linear.bias", "F32", 0, 64},
     ERR_FORMAT,
     "tensor 2.0.linear.weight is missing: the file's other tensors tell of 4 heads of 2"},
    {SMALL_PLAIN,
     NULL,
     {"0.2.linear.bias", "F32", 0, 64},
     ERR_FORMAT,
     "tensor 0.2.linear.weight is missing"},
    {SMALL_PLAIN,
     "0.2.weight",
     {"0.1.weight", "F32", 320, 64},
     ERR_FORMAT,
     "tensor 0.1.weight is not the output behind 2 blocks"},
    {SMALL_PLAIN,
     NULL,
     {"0.1.weight", "F32", 320, 64},
     ERR_FORMAT,
     "tensors 0.2.weight and 0.1.weight stand for the same"},
    {SMALL_PLAIN,
     NULL,
     {"0.0.linear.scale", "F32", 0, 64},
     ERR_UNSUPPORTED,
     "tensor 0.0.linear.scale is unknown"},
    {SMALL_PLAIN,
     NULL,
     {"00.0.linear.weight", "F32", 64, 64},
     ERR_UNSUPPORTED,
     "tensor 00.0.linear.weight is unknown"},
    {SMALL_PLAIN,
     NULL,
     {"lm_head.weight", "F32", 320, 64},
     ERR_UNSUPPORTED,
     "tensor lm_head.weight is unknown"},
    {SMALL_PLAIN,
     NULL,
     {"blocks.0.layers.0.weight", "F32", 64, 64},
     ERR_UNSUPPORTED,
     "tensor blocks.0.layers.0.weight is unknown among heads in FasterDecoding's layout"},
    {SMALL_PLAIN,
     NULL,
     {"medusa.0.blk.0.weight", "F32", 64, 64},
     ERR_UNSUPPORTED,
     "tensor medusa.0.blk.0.weight is unknown"},
    {SMALL_PLAIN,
     NULL,
     {"8.0.linear.weight", "F32", 64, 64},
     ERR_LIMIT,
     "tensor 8.0.linear.weight is of head 8"},
    {SMALL_PLAIN,
     NULL,
     {"0.4.linear.weight", "F32", 64, 64},
     ERR_LIMIT,
     "tensor 0.4.linear.weight is of block 4"},
    {SMALL_PLAIN,
     NULL,
     {"99999999999999999999.0.linear.weight", "F32", 64, 64},
     ERR_UNSUPPORTED,
     "tensor 99999999999999999999.0.linear.weight is unknown"},
    {SMALL_PLAIN,
     "1.0.linear.weight",
     {"1.0.linear.weight", "F32", 64, 63},
     ERR_FORMAT,
     "tensor 1.0.linear.weight has the shape [64, 63] (2 dimensions), not [64, 64]"},
    {SMALL_PLAIN,
     "1.0.linear.weight",
     {"1.0.linear.weight", "F32", 0, 4096},
     ERR_FORMAT,
     "tensor 1.0.linear.weight has the shape [1, 4096] (1 dimensions)"},
    {SMALL_PLAIN,
     "1.0.linear.bias",
     {"1.0.linear.bias", "F32", 0, 63},
     ERR_FORMAT,
     "tensor 1.0.linear.bias has 1 dimensions, the last of 63; it must be one of 64"},
    {SMALL_PLAIN,
     "1.0.linear.bias",
     {"1.0.linear.bias", "F32", 1, 64},
     ERR_FORMAT,
     "tensor 1.0.linear.bias has 2 dimensions"},
    {SMALL_PLAIN,
     "1.2.weight",
     {"1.2.weight", "F32", 319, 64},
     ERR_FORMAT,
     "tensor 1.2.weight has the shape [319, 64]"},
    {SMALL_PLAIN,
     "0.2.weight",
     {"0.2.weight", "F32", 321, 64},
     ERR_CONFIG,
     "of 321 tokens, and this model has 320"},
    {SMALL_PLAIN,
     "0.0.linear.weight",
     {"0.0.linear.weight", "F32", 128, 128},
     ERR_CONFIG,
     "tensor 0.0.linear.weight belongs to a model of 128 dimensions, and this model has 64"},
    {SMALL_PLAIN,
     "0.0.linear.bias",
     {"0.0.linear.bias", "I32", 0, 64},
     ERR_UNSUPPORTED,
     "tensor 0.0.linear.bias has type I32"},
    {SMALL_PLAIN,
     "0.0.linear.bias",
     {"0.0.linear.bias", "F64", 0, 64},
     ERR_UNSUPPORTED,
     "tensor 0.0.linear.bias has type F64"},
    {SMALL_MERGED,
     "medusa_head.0.2.weight",
     {0},
     ERR_FORMAT,
     "tensor medusa_head.0.2.weight is missing"},
    {SMALL_MERGED,
     NULL,
     {"medusa_head.0.norm.weight", "F32", 0, 64},
     ERR_UNSUPPORTED,
     "tensor medusa_head.0.norm.weight is unknown"},
    {SMALL_TENSORRT,
     NULL,
     {"medusa_heads.0.lm_head.weights_scaling_factor", "F32", 0, 1},
     ERR_UNSUPPORTED,
     "weights_scaling_factor is unknown among heads in TensorRT-LLM's"},
    {SMALL_TENSORRT,
     "medusa_heads.1.lm_head.weight",
     {0},
     ERR_FORMAT,
     "tensor medusa_heads.1.lm_head.weight is missing"},
    {SMALL_TENSORRT,
     "medusa_heads.1.medusa_layers.0.linear.bias",
     {0},
     ERR_FORMAT,
     "tensor medusa_heads.1.medusa_layers.0.linear.bias is missing"},
    {SMALL_TENSORRT,
     NULL,
     {"medusa_heads.blocks.0.layers.0.weight", "F32", 64, 64},
     ERR_UNSUPPORTED,
     "tensor medusa_heads.blocks.0.layers.0.weight is unknown"},
    {SMALL_VLLM,
     "blocks.1.layers.0.bias",
     {0},
     ERR_FORMAT,
     "tensor blocks.1.layers.0.bias is missing"},
    {SMALL_VLLM, "lm_heads.0.weight", {0}, ERR_FORMAT, "tensor lm_heads.0.weight is missing"},
    {SMALL_VLLM,
     NULL,
     {"lm_head.weight", "F32", 320, 64},
     ERR_FORMAT,
     "tensors lm_head.weight and lm_heads.0.weight: there is one output for all"},
    {SMALL_VLLM,
     NULL,
     {"medusa_heads.lm_heads.0.weight", "F32", 320, 64},
     ERR_FORMAT,
     "stand for the same"},
    {SMALL_VLLM,
     NULL,
     {"norm.weight", "F32", 0, 64},
     ERR_UNSUPPORTED,
     "tensor norm.weight is unknown among heads in vLLM's layout"},
    {SMALL_VLLM,
     NULL,
     {"token_map", "F32", 0, 4},
     ERR_UNSUPPORTED,
     "tensor token_map has type"},
    {SMALL_VLLM,
     NULL,
     {"token_map", "I32", 2, 2},
     ERR_FORMAT,
     "tensor token_map has 2 dimensions"},
    {SMALL_VLLM,
     NULL,
     {"token_map", "I32", 0, 320},
     ERR_FORMAT,
     "of fewer tokens than the 320"},
    {SMALL_VLLM_PREFIXED,
     "medusa_heads.blocks.0.layers.0.weight",
     {0},
     ERR_FORMAT,
     "tensor blocks.0.layers.0.weight is missing"},
};

static void add_all_but(struct st_builder *b, enum small_layout layout, const char *dropped)
{
    size_t n_dropped = 0;
    for (size_t i = 0; i < 2; i++) {
        for (size_t l = 0; l <= 2; l++) {
            for (int part = l < 2 ? SMALL_WEIGHT : SMALL_OUTPUT;
                 part <= (l < 2 ? SMALL_BIAS : SMALL_OUTPUT); part++) {
                char name[96];
                small_name(layout, (enum small_part)part, i, l, name);
                if (dropped && strcmp(name, dropped) == 0)
                    n_dropped++;
                else
                    st_tensor(b, name, "F32",
                              part == SMALL_BIAS     ? 0
                              : part == SMALL_OUTPUT ? SMALL_V
                                                     : SMALL_D,
                              SMALL_D, 1);
            }
        }
    }
    assert_int_equal(n_dropped, dropped ? 1 : 0);
}

static void what_does_not_fit_is_refused_by_name(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof refusals / sizeof *refusals; k++) {
        const struct added *added = &refusals[k].added;
        struct st_builder b;
        st_init(&b);
        if (refusals[k].layout == SMALL_MERGED || refusals[k].layout == SMALL_TENSORRT)
            small_base(&b, 1);
        add_all_but(&b, refusals[k].layout, refusals[k].dropped);
        if (added->name)
            st_tensor(&b, added->name, added->dtype, added->n_rows, added->n_cols, 1);
        put(st_take(&b));
        check_refused(refusals[k].code, refusals[k].text);
    }
}

static void a_token_map_holds_tokens_of_the_model_once(void **state)
{
    (void)state;
    static const struct {
        int64_t ids[3];
        int code;
        const char *text;
    } maps[] = {
        {{1, 2, 320}, ERR_CONFIG, "token_map names the token 320, and the model has 320"},
        {{1, -2, 3}, ERR_CONFIG, "token_map names the token -2"},
        {{1, INT64_MAX, 3}, ERR_CONFIG, "token_map names the token 9223372036854775807"},
        {{7, 2, 7}, ERR_FORMAT, "token_map names the token 7 twice"},
    };
    for (size_t k = 0; k < sizeof maps / sizeof *maps; k++) {
        struct st_builder b = begin(&vllm);
        st_tensor(&b, "lm_heads.0.weight", "F32", 3, SMALL_D, 1);
        st_tensor_bytes(&b, "token_map", "I64", 0, 3, maps[k].ids, sizeof maps[k].ids);
        put(st_take(&b));
        check_refused(maps[k].code, maps[k].text);
    }
}

static void values_that_are_not_finite_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *dtype;
        uint32_t bits;
    } bad[] = {{"F32", 0x7fc00000}, {"F32", 0xff800000}, {"F16", 0x7c00},
               {"F16", 0x7e01},     {"BF16", 0x7f80},    {"BF16", 0xffc0}};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        const size_t n = strcmp(bad[k].dtype, "F32") == 0 ? 4 : 2;
        uint8_t bias[4 * SMALL_D] = {0};
        memcpy(bias + 63 * n, &bad[k].bits, n);
        struct st_builder b;
        st_init(&b);
        st_tensor(&b, "0.0.linear.weight", "F32", SMALL_D, SMALL_D, 1);
        st_tensor_bytes(&b, "0.0.linear.bias", bad[k].dtype, 0, SMALL_D, bias, n * SMALL_D);
        put(st_take(&b));
        check_refused(ERR_FORMAT,
                      "element 63 of tensor 0.0.linear.bias is not a finite number");
    }
}

static void files_of_something_else_are_refused(void **state)
{
    (void)state;
    struct st_builder b;
    st_init(&b);
    small_base(&b, 0);
    put(st_take(&b));
    check_refused(ERR_FORMAT, "holds no Medusa heads in any layout that Sheaf knows; it has "
                              "the tensor model.embed_tokens.weight");
    st_init(&b);
    put(st_take(&b));
    check_refused(ERR_FORMAT, "holds no Medusa heads");
    check_refused_for(model, LLAMA, ERR_FORMAT, "holds no Medusa heads");
    put((struct gguf_bytes){(uint8_t *)strdup("hello world, this is text"), 25});
    check_refused(ERR_FORMAT, "not a safetensors file");
    put((struct gguf_bytes){(uint8_t *)strdup("x"), 1});
    check_refused(ERR_FORMAT, "not a safetensors file");
    put((struct gguf_bytes){(uint8_t *)strdup(""), 0});
    check_refused(ERR_FORMAT, "is empty");
    unlink(path);
    check_refused(ERR_NOTFOUND, "cannot be opened");
    check_refused_for(model, "/dev/null", ERR_IO, "is not an ordinary file");
}

static void files_of_torch_are_refused_with_what_converts_them(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        const char *start; /* 12 bytes */
        const char *text;
    } files[] = {
        {"medusa_lm_head.pt", "PK\3\4\0\0\10\10\0\0\0\0", "torch.load(\"medusa_lm_head.pt\""},
        {"heads", "PK\3\4\0\0\10\10\0\0\0\0", "torch.load(\"heads\""},
        {"heads", "\200\2}q\0(X\3\0\0\0a", "weights_only=True"},
        {"pytorch_model.bin", "hello, torch", "torch.load(\"pytorch_model.bin\""},
        {"it's $(rm).pt", "PK\3\4\0\0\10\10\0\0\0\0", "torch.load(\"IN.pt\""},
    };
    for (size_t k = 0; k < sizeof files / sizeof *files; k++) {
        char at[512];
        snprintf(at, sizeof at, "%s/%s", folder, files[k].name);
        const struct gguf_bytes file = {(uint8_t *)(uintptr_t)files[k].start, 12};
        small_write(folder, files[k].name, &file);
        check_refused_for(model, at, ERR_UNSUPPORTED, files[k].text);
        check_refused_for(model, at, ERR_UNSUPPORTED, "\"heads.safetensors\")'");
        unlink(at);
    }
    /* A header of 640 bytes begins like a pickle. */
    struct st_builder b;
    st_init(&b);
    char filler[640];
    const struct small_heads x = {SMALL_PLAIN, "F32", 1, 1, false, true};
    small_head(&b, &x, 0);
    const int n = (int)(640 - 2 - strlen(b.header) - strlen(",\"__metadata__\":{\"a\":\"\"}"));
    snprintf(filler, sizeof filler, "\"__metadata__\":{\"a\":\"%*s\"}", n, "");
    st_entry(&b, filler);
    struct gguf_bytes file = st_take(&b);
    assert_memory_equal(file.data, "\200\2\0\0", 4);
    put(file);
    struct heads *h = open_heads(path, model);
    check_blocks(h, 1, 1, true);
    heads_close(h);
}

/* ------------------------------------------------------------------ Sheaf's own files */

static void check_same_bytes(const char *a, const char *b)
{
    struct gguf_bytes x = gguf_bytes_read(a), y = gguf_bytes_read(b);
    assert_int_equal(x.size, y.size);
    assert_memory_equal(x.data, y.data, x.size);
    free(x.data);
    free(y.data);
}

static void write_heads(const struct heads *h)
{
    struct err e = {0};
    if (heads_write(path, h, model, &e) != 0)
        fail_msg("%s", e.text);
}

static const int32_t fixture_draft[] = {3, 5, 17, 64, 65, 100, 200, 300, 318, 319};

static void another_programs_files_are_read_and_written_byte_for_byte(void **state)
{
    (void)state;
    struct heads *h = open_heads(FIXTURES "tied.gguf", model);
    check_blocks(h, 2, 1, true);
    check_outputs(h, true);
    for (size_t i = 0; i < 2 * HEADS_RANKS; i++)
        assert_true(h->heads[i / HEADS_RANKS].accuracies[i % HEADS_RANKS] ==
                    (double)(i + 1) / 64);
    write_heads(h);
    check_same_bytes(path, FIXTURES "tied.gguf");
    heads_close(h);

    h = open_heads(FIXTURES "outputs.gguf", model);
    check_blocks(h, 2, 0, true);
    assert_int_equal(h->n_draft, 10);
    assert_memory_equal(h->draft_vocab, fixture_draft, sizeof fixture_draft);
    for (size_t i = 0; i < 2; i++) {
        check_floats(h->heads[i].output, small_seed(SMALL_OUTPUT, i, 0), 0, 10 * SMALL_D);
        for (size_t r = 0; r < HEADS_RANKS; r++)
            assert_true(h->heads[i].accuracies[r] == 0);
    }
    write_heads(h);
    check_same_bytes(path, FIXTURES "outputs.gguf");
    heads_close(h);

    h = open_heads(FIXTURES "tied.safetensors", model);
    check_blocks(h, 2, 1, true);
    check_outputs(h, true);
    for (size_t i = 0; i < 2 * HEADS_RANKS; i++)
        h->heads[i / HEADS_RANKS].accuracies[i % HEADS_RANKS] = (double)(i + 1) / 64;
    write_heads(h);
    check_same_bytes(path, FIXTURES "tied.gguf");
    heads_close(h);
}

static void what_is_written_is_read_back(void **state)
{
    (void)state;
    for (int k = 0; k < 4; k++) {
        const struct small_heads x = {SMALL_PLAIN,           "BF16", 3,
                                      k > 0 ? (size_t)k : 1, false,  k % 2 == 0};
        put(small_heads_file(&x));
        struct heads *h = open_heads(path, model);
        write_heads(h);
        heads_close(h);
        struct stat info;
        assert_int_equal(stat(path, &info), 0);
        assert_int_equal(info.st_mode & 0777, 0600);
        h = open_heads(path, model);
        check_blocks(h, x.n_heads, x.n_blocks, true);
        check_outputs(h, x.is_tied);
        heads_close(h);
    }
}

/* Halves of other programs. */
static void gguf_files_may_hold_halves(void **state)
{
    (void)state;
    struct gguf_bytes file = gguf_bytes_read(FIXTURES "tied.gguf");
    struct gguf_builder b;
    gguf_edit_begin(&file, NULL, "medusa.1.blk.0.bias", &b);
    uint16_t halves[SMALL_D];
    for (size_t i = 0; i < SMALL_D; i++) {
        const float value = small_value(small_seed(SMALL_BIAS, 1, 0), i);
        memcpy(&halves[i], (const char *)&value + 2, 2);
    }
    builder_tensor_data(&b, "medusa.1.blk.0.bias", 30, 1, (const uint64_t[]){SMALL_D}, halves,
                        sizeof halves);
    free(file.data);
    put(builder_take(&b));
    struct heads *h = open_heads(path, model);
    check_blocks(h, 2, 1, true);
    heads_close(h);
}

static void heads_fit_any_quantisation_of_their_model(void **state)
{
    (void)state;
    struct model *other = open_model(TINY "tiny-llama-f32.gguf");
    heads_close(open_heads(FIXTURES "tied.gguf", other));
    model_close(other);
}

/* The same shapes, and one token of another text. */
static void heads_of_another_vocabulary_are_refused(void **state)
{
    (void)state;
    struct gguf_bytes file = gguf_bytes_read(LLAMA);
    size_t n_changed = 0;
    for (size_t i = 0; i + 7 <= file.size; i++) {
        if (memcmp(file.data + i, "<|pad|>", 7) == 0) {
            file.data[i + 4] = 'n';
            n_changed++;
        }
    }
    assert_int_equal(n_changed, 1);
    struct model *other = NULL;
    assert_int_equal(model_edit_open(&file, false, &other, NULL), 0);
    free(file.data);
    check_refused_for(other, FIXTURES "tied.gguf", ERR_CONFIG,
                      "a model with other tokens than");
    model_close(other);
}

static void heads_of_another_model_are_refused(void **state)
{
    (void)state;
    struct model *wide = open_model(TINY "tiny-llama-mix.gguf");
    check_refused_for(wide, FIXTURES "tied.gguf", ERR_CONFIG,
                      "medusa.embedding_length is 64, but the model has 256");
    check_refused_for(wide, FIXTURES "tied.safetensors", ERR_CONFIG,
                      "a model of 64 dimensions, and this model has 256");
    model_close(wide);
}

/* One change to a fixture: a key or tensor left out and, unless NONE, added again. */
static const struct {
    struct model_edit edit;
    int code;
    const char *text;
} edits[] = {
#define TIED    FIXTURES "tied.gguf"
#define OUTPUTS FIXTURES "outputs.gguf"
    {{TIED, "general.architecture", EDIT_TEXT, 0, "llama"}, ERR_FORMAT, "is llama, not medusa"},
    {{TIED, "general.architecture", EDIT_NONE, 0, NULL}, ERR_NOTFOUND, "general.architecture"},
    {{TIED, "medusa.head_count", EDIT_U32, 3, NULL},
     ERR_FORMAT,
     "medusa.head_count is 3, but its tensors are of 2"},
    {{TIED, "medusa.block_count", EDIT_U32, 2, NULL}, ERR_FORMAT, "medusa.block_count is 2"},
    {{TIED, "medusa.block_count", EDIT_NONE, 0, NULL}, ERR_NOTFOUND, "medusa.block_count"},
    {{TIED, "medusa.embedding_length", EDIT_U32, 128, NULL},
     ERR_CONFIG,
     "is 128, but the model has 64"},
    {{TIED, "medusa.vocab_size", EDIT_U32, 321, NULL},
     ERR_CONFIG,
     "is 321, but the model has 320"},
    {{TIED, "medusa.vocab_sha256", EDIT_TEXT, 0, "00"}, ERR_CONFIG, "other tokens than"},
    {{TIED, "medusa.vocab_sha256", EDIT_NONE, 0, NULL}, ERR_NOTFOUND, "medusa.vocab_sha256"},
    {{TIED, "medusa.vocab_sha256", EDIT_U32, 0, NULL}, ERR_FORMAT, "medusa.vocab_sha256"},
    {{TIED, "medusa.accuracy", EDIT_I32S, 0, "01"},
     ERR_FORMAT,
     "medusa.accuracy holds 2 items"},
    {{TIED, "medusa.accuracy", EDIT_U32, 1, NULL}, ERR_FORMAT, "medusa.accuracy"},
    {{TIED, "medusa.draft_vocab", EDIT_I32S, 0, "1232"},
     ERR_FORMAT,
     "medusa.draft_vocab: item 3 is 2; ids must rise"},
    {{TIED, "medusa.draft_vocab", EDIT_I32S, 0, "122"}, ERR_FORMAT, "item 2 is 2"},
    {{TIED, "medusa.draft_vocab", EDIT_I32S, 0, "/1"}, ERR_FORMAT, "item 0 is -1"},
    {{TIED, "medusa.draft_vocab", EDIT_I32S, 0, ""}, ERR_FORMAT, "medusa.draft_vocab holds 0"},
    {{OUTPUTS, "medusa.draft_vocab", EDIT_NONE, 0, NULL},
     ERR_FORMAT,
     "medusa.0.output.weight has the shape [10, 64] (2 dimensions), not [320, 64]"},
    {{OUTPUTS, "medusa.1.output.weight", EDIT_NONE, 0, NULL},
     ERR_FORMAT,
     "medusa.head_count is 2, but its tensors are of 1"},
    {{OUTPUTS, "medusa.0.output.weight", EDIT_NONE, 0, NULL},
     ERR_FORMAT,
     "tensor medusa.0.output.weight is missing"},
    {{TIED, "medusa.0.blk.0.weight", EDIT_NONE, 0, NULL},
     ERR_FORMAT,
     "tensor medusa.0.blk.0.weight is missing"},
    {{TIED, "medusa.1.blk.0.bias", EDIT_NONE, 0, NULL},
     ERR_FORMAT,
     "tensor medusa.1.blk.0.bias is missing"},
    {{TIED, "medusa.1.blk.0.bias", EDIT_TENSOR, 0, "64x1"},
     ERR_FORMAT,
     "tensor medusa.1.blk.0.bias has 2 dimensions"},
    {{TIED, "medusa.1.blk.0.weight", EDIT_TENSOR, 0, "64x32"},
     ERR_FORMAT,
     "tensor medusa.1.blk.0.weight has the shape [32, 64]"},
    {{TIED, "medusa.1.blk.0.scale", EDIT_TENSOR, 0, "64"},
     ERR_UNSUPPORTED,
     "tensor medusa.1.blk.0.scale is unknown among heads in Sheaf's layout"},
    {{TIED, "0.0.linear.weight", EDIT_TENSOR, 0, "64x64"},
     ERR_UNSUPPORTED,
     "tensor 0.0.linear.weight is unknown"},
};

static void gguf_files_that_contradict_themselves_are_refused(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof edits / sizeof *edits; k++) {
        put(model_edit_apply(&edits[k].edit));
        check_refused(edits[k].code, edits[k].text);
    }
}

static void refuse_edited(struct gguf_builder *b, const char *text)
{
    put(builder_take(b));
    check_refused(ERR_FORMAT, text);
}

static void accuracies_are_shares(void **state)
{
    (void)state;
    static const float bad[] = {1.5f, -0.5f, 0.0f / 0.0f, 1.0f / 0.0f};
    for (size_t k = 0; k < 4; k++) {
        float values[2 * HEADS_RANKS] = {0};
        values[9] = bad[k];
        struct gguf_bytes file = gguf_bytes_read(TIED);
        struct gguf_builder b;
        gguf_edit_begin(&file, "medusa.accuracy", NULL, &b);
        builder_f32s(&b, "medusa.accuracy", values, 2 * HEADS_RANKS);
        refuse_edited(&b, "medusa.accuracy: item 9 is not between 0 and 1");
        gguf_edit_begin(&file, "medusa.accuracy", NULL, &b);
        builder_f32s(&b, "medusa.accuracy", values, HEADS_RANKS);
        refuse_edited(&b, "medusa.accuracy has 8 items");
        free(file.data);
    }
}

static void a_quantised_tensor_is_refused(void **state)
{
    (void)state;
    struct gguf_bytes file = gguf_bytes_read(TIED);
    struct gguf_builder b;
    gguf_edit_begin(&file, NULL, "medusa.0.blk.0.weight", &b);
    builder_tensor(&b, "medusa.0.blk.0.weight", 8, 2, (const uint64_t[]){64, 64}, 64 * 68);
    free(file.data);
    put(builder_take(&b));
    check_refused(ERR_UNSUPPORTED, "tensor medusa.0.blk.0.weight has type Q8_0");
}

static void a_file_cut_anywhere_is_refused(void **state)
{
    (void)state;
    static const char *const names[] = {TIED, FIXTURES "tied.safetensors"};
    for (size_t k = 0; k < 2; k++) {
        struct gguf_bytes file = gguf_bytes_read(names[k]);
        for (size_t n = 0; n < file.size; n += n < 900 ? 1 : 509) {
            const struct gguf_bytes cut = {file.data, n};
            small_write(folder, "heads", &cut);
            struct heads *h = NULL;
            assert_int_not_equal(heads_open(path, model, &h, NULL), 0);
            assert_null(h);
        }
        free(file.data);
    }
}

static void heads_that_are_not_finite_are_not_written(void **state)
{
    (void)state;
    struct heads *h = open_heads(TIED, model);
    write_heads(h);
    h->heads[1].blocks[0].bias[7] = 0.0f / 0.0f;
    struct err e = {0};
    assert_int_equal(heads_write(path, h, model, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "element 7 of tensor medusa.1.blk.0.bias"));
    check_same_bytes(path, TIED); /* what was there stays */
    heads_close(h);
}

static void a_file_that_cannot_be_written_leaves_nothing(void **state)
{
    (void)state;
    unlink(path);
    struct heads *h = open_heads(TIED, model);
    struct err e = {0};
    char at[512];
    snprintf(at, sizeof at, "%s/none/heads", folder);
    assert_int_equal(heads_write(at, h, model, &e), ERR_IO);
    assert_non_null(strstr(e.text, at));
    err_clear(&e);
    snprintf(at, sizeof at, "%s/sub", folder);
    assert_int_equal(mkdir(at, 0700), 0);
    assert_int_equal(heads_write(at, h, model, &e), ERR_IO); /* a folder has the name */
    assert_int_equal(rmdir(at), 0);
    assert_int_equal(rmdir(folder), 0); /* nothing lies in it */
    assert_int_equal(mkdir(folder, 0700), 0);
    heads_close(h);
}

static void heads_are_told_in_one_line(void **state)
{
    (void)state;
    char text[128];
    struct heads *h = open_heads(TIED, model);
    heads_describe(h, text, sizeof text);
    assert_string_equal(text, "2 heads of 1 block, D 64, the model's output");
    heads_close(h);
    h = open_heads(OUTPUTS, model);
    heads_describe(h, text, sizeof text);
    assert_string_equal(text, "2 heads of 0 blocks, D 64, outputs of their own over 10 tokens");
    heads_close(h);
    heads_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_gives_the_same_heads),
        cmocka_unit_test(as_many_heads_and_blocks_as_allowed_are_read),
        cmocka_unit_test(vllm_blocks_without_bias_have_zeros),
        cmocka_unit_test(one_output_may_serve_all_heads),
        cmocka_unit_test(a_token_map_says_which_rows_are_which_tokens),
        cmocka_unit_test(a_folder_of_shards_is_one_checkpoint),
        cmocka_unit_test(what_does_not_fit_is_refused_by_name),
        cmocka_unit_test(a_token_map_holds_tokens_of_the_model_once),
        cmocka_unit_test(values_that_are_not_finite_are_refused),
        cmocka_unit_test(files_of_something_else_are_refused),
        cmocka_unit_test(files_of_torch_are_refused_with_what_converts_them),
        cmocka_unit_test(another_programs_files_are_read_and_written_byte_for_byte),
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(gguf_files_may_hold_halves),
        cmocka_unit_test(heads_fit_any_quantisation_of_their_model),
        cmocka_unit_test(heads_of_another_vocabulary_are_refused),
        cmocka_unit_test(heads_of_another_model_are_refused),
        cmocka_unit_test(gguf_files_that_contradict_themselves_are_refused),
        cmocka_unit_test(accuracies_are_shares),
        cmocka_unit_test(a_quantised_tensor_is_refused),
        cmocka_unit_test(a_file_cut_anywhere_is_refused),
        cmocka_unit_test(heads_that_are_not_finite_are_not_written),
        cmocka_unit_test(a_file_that_cannot_be_written_leaves_nothing),
        cmocka_unit_test(heads_are_told_in_one_line),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
