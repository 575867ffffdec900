/*
 * Sheaf's own files of heads. Those of fixtures/heads come from a program that shares no code
 * with Sheaf: they are read, written again byte for byte, and refused when they contradict
 * themselves or belong to another model.
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

#include "heads_rig.h"
#include "model_edit.h"

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
    if (heads_write(rig.path, h, rig.model, &e) != 0)
        fail_msg("%s", e.text);
}

static const int32_t fixture_draft[] = {3, 5, 17, 64, 65, 100, 200, 300, 318, 319};

static void another_programs_files_are_read_and_written_byte_for_byte(void **state)
{
    (void)state;
    struct heads *h = heads_rig_open(TIED, rig.model);
    check_blocks(h, 2, 1, true);
    check_outputs(h, true);
    for (size_t i = 0; i < 2 * HEADS_RANKS; i++)
        assert_true(h->heads[i / HEADS_RANKS].accuracies[i % HEADS_RANKS] ==
                    (double)(i + 1) / 64);
    write_heads(h);
    check_same_bytes(rig.path, TIED);
    heads_close(h);

    h = heads_rig_open(OUTPUTS, rig.model);
    check_blocks(h, 2, 0, true);
    assert_int_equal(h->n_draft, 10);
    assert_memory_equal(h->draft_vocab, fixture_draft, sizeof fixture_draft);
    for (size_t i = 0; i < 2; i++) {
        check_floats(h->heads[i].output, small_seed(SMALL_OUTPUT, i, 0), 0, 10 * SMALL_D);
        for (size_t r = 0; r < HEADS_RANKS; r++)
            assert_true(h->heads[i].accuracies[r] == 0);
    }
    write_heads(h);
    check_same_bytes(rig.path, OUTPUTS);
    heads_close(h);

    h = heads_rig_open(HEADS_FIXTURES "tied.safetensors", rig.model);
    check_blocks(h, 2, 1, true);
    check_outputs(h, true);
    for (size_t i = 0; i < 2 * HEADS_RANKS; i++)
        h->heads[i / HEADS_RANKS].accuracies[i % HEADS_RANKS] = (double)(i + 1) / 64;
    write_heads(h);
    check_same_bytes(rig.path, TIED);
    heads_close(h);
}

static void what_is_written_is_read_back(void **state)
{
    (void)state;
    for (int k = 0; k < 4; k++) {
        const struct small_heads x = {SMALL_PLAIN,           "BF16", 3,
                                      k > 0 ? (size_t)k : 1, false,  k % 2 == 0};
        heads_rig_put(small_heads_file(&x));
        struct heads *h = heads_rig_open(rig.path, rig.model);
        write_heads(h);
        heads_close(h);
        struct stat info;
        assert_int_equal(stat(rig.path, &info), 0);
        assert_int_equal(info.st_mode & 0777, 0600);
        h = heads_rig_open(rig.path, rig.model);
        check_blocks(h, x.n_heads, x.n_blocks, true);
        check_outputs(h, x.is_tied);
        heads_close(h);
    }
}

/* Halves of other programs. */
static void gguf_files_may_hold_halves(void **state)
{
    (void)state;
    struct gguf_bytes file = gguf_bytes_read(TIED);
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
    heads_rig_put(builder_take(&b));
    struct heads *h = heads_rig_open(rig.path, rig.model);
    check_blocks(h, 2, 1, true);
    heads_close(h);
}

static void heads_fit_any_quantisation_of_their_model(void **state)
{
    (void)state;
    struct model *other = heads_rig_model(TINY "tiny-llama-f32.gguf");
    heads_close(heads_rig_open(TIED, other));
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
    check_refused_for(other, TIED, ERR_CONFIG, "a model with other tokens than");
    model_close(other);
}

static void heads_of_another_model_are_refused(void **state)
{
    (void)state;
    struct model *wide = heads_rig_model(TINY "tiny-llama-mix.gguf");
    check_refused_for(wide, TIED, ERR_CONFIG,
                      "medusa.embedding_length is 64, but the model has 256");
    check_refused_for(wide, HEADS_FIXTURES "tied.safetensors", ERR_CONFIG,
                      "a model of 64 dimensions, and this model has 256");
    model_close(wide);
}

/* One change to a fixture: a key or tensor left out and, unless NONE, added again. */
static const struct {
    struct model_edit edit;
    int code;
    const char *text;
} edits[] = {
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
        heads_rig_put(model_edit_apply(&edits[k].edit));
        check_refused(edits[k].code, edits[k].text);
    }
}

static void refuse_edited(struct gguf_builder *b, const char *text)
{
    heads_rig_put(builder_take(b));
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
    heads_rig_put(builder_take(&b));
    check_refused(ERR_UNSUPPORTED, "tensor medusa.0.blk.0.weight has type Q8_0");
}

static void a_file_cut_anywhere_is_refused(void **state)
{
    (void)state;
    static const char *const names[] = {TIED, HEADS_FIXTURES "tied.safetensors"};
    for (size_t k = 0; k < 2; k++) {
        struct gguf_bytes file = gguf_bytes_read(names[k]);
        for (size_t n = 0; n < file.size; n += n < 900 ? 1 : 509) {
            const struct gguf_bytes cut = {file.data, n};
            small_write(rig.folder, "heads", &cut);
            struct heads *h = NULL;
            assert_int_not_equal(heads_open(rig.path, rig.model, &h, NULL), 0);
            assert_null(h);
        }
        free(file.data);
    }
}

static void heads_that_are_not_finite_are_not_written(void **state)
{
    (void)state;
    struct heads *h = heads_rig_open(TIED, rig.model);
    write_heads(h);
    h->heads[1].blocks[0].bias[7] = 0.0f / 0.0f;
    struct err e = {0};
    assert_int_equal(heads_write(rig.path, h, rig.model, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "element 7 of tensor medusa.1.blk.0.bias"));
    check_same_bytes(rig.path, TIED); /* what was there stays */
    heads_close(h);
}

static void a_file_that_cannot_be_written_leaves_nothing(void **state)
{
    (void)state;
    unlink(rig.path);
    struct heads *h = heads_rig_open(TIED, rig.model);
    struct err e = {0};
    char at[512];
    snprintf(at, sizeof at, "%s/none/heads", rig.folder);
    assert_int_equal(heads_write(at, h, rig.model, &e), ERR_IO);
    assert_non_null(strstr(e.text, at));
    err_clear(&e);
    snprintf(at, sizeof at, "%s/sub", rig.folder);
    assert_int_equal(mkdir(at, 0700), 0);
    assert_int_equal(heads_write(at, h, rig.model, &e), ERR_IO); /* a folder has the name */
    assert_int_equal(rmdir(at), 0);
    assert_int_equal(rmdir(rig.folder), 0); /* nothing lies in it */
    assert_int_equal(mkdir(rig.folder, 0700), 0);
    heads_close(h);
}

static void heads_are_told_in_one_line(void **state)
{
    (void)state;
    char text[128];
    struct heads *h = heads_rig_open(TIED, rig.model);
    heads_describe(h, text, sizeof text);
    assert_string_equal(text, "2 heads of 1 block, D 64, the model's output");
    heads_close(h);
    h = heads_rig_open(OUTPUTS, rig.model);
    heads_describe(h, text, sizeof text);
    assert_string_equal(text, "2 heads of 0 blocks, D 64, outputs of their own over 10 tokens");
    heads_close(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
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
    return cmocka_run_group_tests(tests, heads_rig_set_up, heads_rig_tear_down);
}
