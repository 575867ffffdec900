/*
 * Every allocation of opening and writing heads fails in turn: ERR_NOMEM and nothing left
 * behind, in memory or on disk. Our own allocations are caught by the linker (--wrap).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "failing_alloc.h"
#include "heads_builder.h"
#include "model/heads.h"
#include "model_edit.h"

enum { TRIES_MAX = 1000 };

static struct model *model;
static char folder[] = "/tmp/sheaf-heads-XXXXXX";
static char path[256];

static int set_up(void **state)
{
    (void)state;
    assert_int_equal(model_open(LLAMA, &model, NULL), 0);
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/heads.safetensors", folder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    model_close(model);
    unlink(path);
    return rmdir(folder);
}

static void opening_survives_every_failed_allocation(void **state)
{
    (void)state;
    static const int32_t ids[2] = {9, 4};
    const struct small_heads x = {SMALL_VLLM, "BF16", 2, 1, true, true};
    struct st_builder b;
    st_init(&b);
    for (size_t i = 0; i < 2; i++)
        small_head(&b, &x, i);
    st_tensor(&b, "lm_heads.0.weight", "F16", SMALL_V, SMALL_D, 1);
    st_tensor_bytes(&b, "token_map", "I32", 0, 2, ids, sizeof ids);
    struct gguf_bytes file = st_take(&b);
    small_write(folder, "heads.safetensors", &file);
    free(file.data);
    const char *const paths[] = {path, folder, SHEAF_TEST_DATA "/fixtures/heads/outputs.gguf"};
    for (size_t k = 0; k < 3; k++) {
        int code = ERR_NOMEM;
        for (long nth = 1; code != 0 && nth < TRIES_MAX; nth++) {
            struct heads *h = NULL;
            failing_alloc_arm(nth, false);
            code = heads_open(paths[k], model, &h, NULL);
            failing_alloc_disarm();
            assert_true(code == ERR_NOMEM || (code == 0 && failing_alloc_refused() == 0));
            assert_int_equal(code == 0, h != NULL);
            heads_close(h);
        }
        assert_int_equal(code, 0);
    }
}

static void writing_survives_every_failed_allocation(void **state)
{
    (void)state;
    struct heads *h = NULL;
    assert_int_equal(
        heads_open(SHEAF_TEST_DATA "/fixtures/heads/outputs.gguf", model, &h, NULL), 0);
    unlink(path);
    int code = ERR_NOMEM;
    for (long nth = 1; code != 0 && nth < TRIES_MAX; nth++) {
        failing_alloc_arm(nth, false);
        code = heads_write(path, h, model, NULL);
        failing_alloc_disarm();
        assert_true(code == ERR_NOMEM || code == 0);
        assert_int_equal(access(path, F_OK) == 0, code == 0);
    }
    assert_int_equal(code, 0);
    heads_close(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_survives_every_failed_allocation),
        cmocka_unit_test(writing_survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
