/*
 * KV pages of documents kept on disk, so that the next night loads what this one computed.
 *
 *     save  pages of a committed prefix --copy--> slot --writer thread--> file
 *     load  files that continue a cold prefix --read--> fresh pages of the pool
 *
 * What is loaded has the bits that were computed, for the name of a file holds everything that
 * they depend on (kv_file.h), the tokens are compared and each page has a checksum. A file that
 * is torn, foreign or damaged is said once, taken out of the folder and computed anew. Nothing
 * here can fail a job: when the disk is full or gone, that is said once and saving ends.
 *
 * Loading is done in the caller's thread: while it is faster than computing, waiting for it is
 * the shorter wait. Whether it is follows from what both took so far (kv_disk_pays).
 *
 * Thread: the engine's, which alone touches the pool; a writer thread of its own writes and
 * removes files.
 */
#ifndef SHEAF_KV_DISK_H
#define SHEAF_KV_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/kv_file.h"
#include "engine/kvpool.h"
#include "engine/prefix.h"

struct kv_disk;

struct kv_disk_options {
    const char *folder;
    uint64_t bytes_max; /* of all files together */
    size_t tokens_min;  /* shorter prefixes are neither saved nor loaded */
    bool always;    /* loads also when computing is faster, waits for the writer, for tests */
    size_t context; /* longest prefix, in tokens; a page at least */
    const char *model_sha256;
    const char *kernels; /* name of the kernel set */
    enum act_kind activations;
    struct kvpool_shape shape; /* of the pool */
};

struct kv_disk_counters {
    uint64_t files_saved, files_loaded;
    uint64_t files_bad;      /* found and not usable */
    uint64_t files_removed;  /* to keep the bound */
    uint64_t files_given_up; /* not written for the writer was too slow */
    uint64_t bytes_saved, bytes_loaded;
    uint64_t tokens_loaded;
    int64_t load_us;
};

/* The pool is borrowed. ERR_CONFIG and ERR_IO say what is wrong with the folder. */
int kv_disk_open(const struct kv_disk_options *o, struct kvpool *pool, struct kv_disk **out,
                 struct err *e);
/* Writes what was handed to the writer, then ends it. Accepts NULL. */
void kv_disk_close(struct kv_disk *d);

/*
 * Copies pages [first_page, n_pages) of a prefix to the writer, all of whose pages are
 * committed; whole files that are there already count as used. pages: [n_pages], from the
 * prefix's first page on. Returns how far it came, n_pages when there is nothing left to do:
 * the writer takes a few files at a time, so call it again after the next step with what it
 * returned, or wait for the writer: wait_us at most in all, and what the writer has not taken
 * by then is given up and counted. 0: no wait, nothing is given up.
 */
size_t kv_disk_save(struct kv_disk *d, const char *salt, const int32_t *tokens,
                    size_t first_page, const int32_t *pages, size_t n_pages, int64_t wait_us);

/* How many pages of a prompt whose first n_found tokens came from the tree are worth saving,
 * once they are committed: what it shares with another prompt; and when as much as
 * tokens_min is its own, what makes whole files, for that may be a document to be asked about
 * another night. */
size_t kv_disk_pages_to_save(const struct kv_disk *d, size_t n_found, size_t n_prompt);

/*
 * The files that continue the first first_page pages of a prefix of n_pages, in order, the
 * first one from the cut before first_page on; they count as used. Valid until the next call;
 * *n_pieces is 0 when there are none.
 */
const struct kv_piece *kv_disk_find(struct kv_disk *d, const char *salt, const int32_t *tokens,
                                    size_t first_page, size_t n_pages, size_t *n_pieces);

/* Reads a piece from first_page on into pages, and returns how many of them are good. */
size_t kv_disk_read(struct kv_disk *d, const struct kv_piece *piece, size_t first_page,
                    const int32_t *pages);

/* Whether loading is faster than computing, as far as is known; now and then it is tried all
 * the same, for disks and machines have other hours. */
bool kv_disk_pays(struct kv_disk *d);
/* A step computed n_tokens of prompts in that time. */
void kv_disk_note_prefill(struct kv_disk *d, size_t n_tokens, int64_t spent_us);

/*
 * Before a WANTED path is started: loads what continues its cached prefix into the tree, where
 * prefix_start then finds it. Returns the tokens it added. Nothing when another path is about
 * to compute them, or when no page is to be had.
 */
size_t kv_disk_load(struct kv_disk *d, struct prefix_tree *t, struct prefix_path *path,
                    const char *salt, const int32_t *tokens, size_t n_tokens);

struct kvpool *kv_disk_pool(const struct kv_disk *d);
struct kv_disk_counters kv_disk_counters(struct kv_disk *d);

#endif
