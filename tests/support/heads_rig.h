/*
 * Opening files of heads for a tiny model, and what is expected of them. Whatever fails in a
 * test that passes fails it with a sentence.
 */
#ifndef SHEAF_TEST_HEADS_RIG_H
#define SHEAF_TEST_HEADS_RIG_H

#include <stdbool.h>
#include <stddef.h>

#include "heads_builder.h"
#include "model/heads.h"

#define HEADS_FIXTURES SHEAF_TEST_DATA "/fixtures/heads/"
#define TIED           HEADS_FIXTURES "tied.gguf"
#define OUTPUTS        HEADS_FIXTURES "outputs.gguf"

/* Of the test program: tiny-llama, a folder of its own, and the path of a file in it. */
struct heads_rig {
    struct model *model;
    char folder[64], path[96];
};
extern struct heads_rig rig;

/* Group set-up and tear-down. */
int heads_rig_set_up(void **state);
int heads_rig_tear_down(void **state);

struct model *heads_rig_model(const char *path);
/* Writes rig.path and frees the bytes. */
void heads_rig_put(struct gguf_bytes file);
struct heads *heads_rig_open(const char *path, const struct model *m);

/* Heads from path are refused with this code and a sentence that has this text and the path. */
void check_refused_for(const struct model *m, const char *path, int code, const char *text);
void check_refused(int code, const char *text); /* rig.path for rig.model */
/* n numbers are those of the formula, from the first-th on. */
void check_floats(const float *got, unsigned seed, size_t first, size_t n);
void check_blocks(const struct heads *h, size_t n_heads, size_t n_blocks, bool has_bias);
/* Of the whole vocabulary. */
void check_outputs(const struct heads *h, bool is_tied);

#endif
