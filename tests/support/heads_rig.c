#include "heads_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "model_edit.h"

struct heads_rig rig;

struct model *heads_rig_model(const char *path)
{
    struct model *m = NULL;
    struct err e = {0};
    if (model_open(path, &m, &e) != 0)
        fail_msg("%s", e.text);
    return m;
}

int heads_rig_set_up(void **state)
{
    (void)state;
    rig.model = heads_rig_model(LLAMA);
    assert_int_equal(rig.model->config.dim, SMALL_D);
    assert_int_equal(rig.model->config.n_vocab, SMALL_V);
    snprintf(rig.folder, sizeof rig.folder, "/tmp/sheaf-heads-XXXXXX");
    assert_non_null(mkdtemp(rig.folder));
    snprintf(rig.path, sizeof rig.path, "%s/heads", rig.folder);
    return 0;
}

int heads_rig_tear_down(void **state)
{
    (void)state;
    model_close(rig.model);
    unlink(rig.path);
    return rmdir(rig.folder);
}

void heads_rig_put(struct gguf_bytes file)
{
    small_write(rig.folder, "heads", &file);
    free(file.data);
}

struct heads *heads_rig_open(const char *path, const struct model *m)
{
    struct heads *h = NULL;
    struct err e = {0};
    if (heads_open(path, m, &h, &e) != 0)
        fail_msg("%s", e.text);
    return h;
}

/* Fails the test unless the sentence has this text and names the file. */
void check_refused_for(const struct model *m, const char *path, int code, const char *text)
{
    struct heads *h = NULL;
    struct err e = {0};
    const int got = heads_open(path, m, &h, &e);
    if (got == 0)
        fail_msg("read, where this was expected: %s", text);
    assert_null(h);
    if (got != code || !strstr(e.text, text) || !strstr(e.text, path))
        fail_msg("%s (%d), where this was expected: %s (%d)", e.text, got, text, code);
}

void check_refused(int code, const char *text)
{
    check_refused_for(rig.model, rig.path, code, text);
}

void check_floats(const float *got, unsigned seed, size_t first, size_t n)
{
    assert_non_null(got);
    for (size_t i = 0; i < n; i++) {
        if (!(got[i] == small_value(seed, first + i)))
            fail_msg("element %zu of seed %u is %g, not %g", first + i, seed, (double)got[i],
                     (double)small_value(seed, first + i));
    }
}

void check_blocks(const struct heads *h, size_t n_heads, size_t n_blocks, bool has_bias)
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

void check_outputs(const struct heads *h, bool is_tied)
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
