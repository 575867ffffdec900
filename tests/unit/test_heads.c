/*
 * Heads from safetensors files: every layout gives the numbers that it was made from, and what
 * is no file of heads is refused with what to do.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "heads_rig.h"
#include "model_edit.h"

/* ------------------------------------------------------------------ the same numbers */

static void check_file_of(const struct small_heads *x)
{
    heads_rig_put(small_heads_file(x));
    struct heads *h = heads_rig_open(rig.path, rig.model);
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
        heads_rig_put(st_take(&b));
        struct heads *h = heads_rig_open(rig.path, rig.model);
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
        heads_rig_put(st_take(&b));
        struct heads *h = heads_rig_open(rig.path, rig.model);
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
    small_write(rig.folder, name, &file);
    free(file.data);
}

static void remove_from_folder(const char *name)
{
    char *joined;
    if (asprintf(&joined, "%s/%s", rig.folder, name) < 0)
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
    unlink(rig.path);
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
    small_write(rig.folder, "config.json", &other);
    struct heads *h = heads_rig_open(rig.folder, rig.model);
    check_blocks(h, 2, 1, true);
    check_outputs(h, true);
    heads_close(h);

    struct st_builder again;
    st_init(&again);
    st_tensor(&again, "medusa_head.1.0.linear.bias", "BF16", 0, SMALL_D, 1);
    in_folder("model-4.safetensors", &again);
    check_refused_for(rig.model, rig.folder, ERR_FORMAT,
                      "tensor medusa_head.1.0.linear.bias is there twice");
    remove_from_folder("model-4.safetensors");
    remove_from_folder(names[2]);
    check_refused_for(rig.model, rig.folder, ERR_FORMAT,
                      "tensor medusa_head.1.0.linear.weight is missing");
    remove_from_folder(names[0]);
    remove_from_folder(names[1]);
    check_refused_for(rig.model, rig.folder, ERR_NOTFOUND,
                      "no .safetensors file in this folder");
    small_write(rig.folder, "medusa_lm_head.pt", &other);
    check_refused_for(rig.model, rig.folder, ERR_UNSUPPORTED,
                      "torch.load(\"medusa_lm_head.pt\"");
    remove_from_folder("medusa_lm_head.pt");
    remove_from_folder("config.json");
}

/* ------------------------------------------------------------------ other files */

static void files_of_something_else_are_refused(void **state)
{
    (void)state;
    struct st_builder b;
    st_init(&b);
    small_base(&b, 0);
    heads_rig_put(st_take(&b));
    check_refused(ERR_FORMAT, "holds no Medusa heads in any layout that Sheaf knows; it has "
                              "the tensor model.embed_tokens.weight");
    st_init(&b);
    heads_rig_put(st_take(&b));
    check_refused(ERR_FORMAT, "holds no Medusa heads");
    check_refused_for(rig.model, LLAMA, ERR_FORMAT, "holds no Medusa heads");
    heads_rig_put((struct gguf_bytes){(uint8_t *)strdup("hello world, this is text"), 25});
    check_refused(ERR_FORMAT, "not a safetensors file");
    heads_rig_put((struct gguf_bytes){(uint8_t *)strdup("x"), 1});
    check_refused(ERR_FORMAT, "not a safetensors file");
    heads_rig_put((struct gguf_bytes){(uint8_t *)strdup(""), 0});
    check_refused(ERR_FORMAT, "is empty");
    unlink(rig.path);
    check_refused(ERR_NOTFOUND, "cannot be opened");
    check_refused_for(rig.model, "/dev/null", ERR_IO, "is not an ordinary file");
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
        snprintf(at, sizeof at, "%s/%s", rig.folder, files[k].name);
        const struct gguf_bytes file = {(uint8_t *)(uintptr_t)files[k].start, 12};
        small_write(rig.folder, files[k].name, &file);
        check_refused_for(rig.model, at, ERR_UNSUPPORTED, files[k].text);
        check_refused_for(rig.model, at, ERR_UNSUPPORTED, "\"heads.safetensors\")'");
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
    heads_rig_put(file);
    struct heads *h = heads_rig_open(rig.path, rig.model);
    check_blocks(h, 1, 1, true);
    heads_close(h);
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
        cmocka_unit_test(files_of_something_else_are_refused),
        cmocka_unit_test(files_of_torch_are_refused_with_what_converts_them),
    };
    return cmocka_run_group_tests(tests, heads_rig_set_up, heads_rig_tear_down);
}
