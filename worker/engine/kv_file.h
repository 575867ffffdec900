/*
 * The file form of KV pages: one file holds the last pages of one token prefix.
 *
 *     prefix   page 0 ... page 7 | page 8 ... page 15 | page 16 ... page 20
 *     files         A            |        B           |       C
 *
 * A prefix is cut every KV_FILE_PAGES pages; a file holds the pages from the last cut to where
 * its prefix ends, and is named by a hash of the whole prefix up to there. So prefixes that
 * begin alike share their first files, and a longer one goes on where a shorter one ended.
 *
 * The name is stable over processes and machines: a chain of SHA-256 over everything that the
 * bits of a page depend on:
 *
 *     identity  SHA-256(format version, program version, model file, kernel set,
 *                       formats, shape)
 *
 *     hash[0]   SHA-256(identity, SHA-256(salt))
 *
 *     hash[n]   SHA-256(hash[n - 1], the 32 tokens of page n - 1): the name of [.., n)
 *
 * All hashes are 64 digits of hex; tokens are int32. The file, all numbers little-endian:
 *
 *     offset  bytes
 *          0      8  "sheafkv\n"
 *          8      4  format version
 *         12     36  u32: tokens of a page, layers, KV heads, head dim, KV type, activations,
 *                    first page, pages, tokens of the prefix
 *         48     16  kernel set, padded with NULs
 *         64     16  program version, likewise
 *         80     64  SHA-256 of the model file
 *        144     64  SHA-256 of the salt
 *        208     64  the file's own name
 *        272     16  u64: bytes of a page, bytes of the file
 *        288    4 T  the prefix's tokens, all of them
 *              8 P+  checksum of each page, zeros up to 8 bytes before a multiple of 64
 *                 8  XXH3-64 of everything above
 *                    the pages, each [layer][KV head][block]
 *
 * A page's checksum is XXH3-64 over one layer's blocks, seeded with that of the layers before
 * it, from 0.
 *
 * The reader knows what it wants, so it takes nothing from the file but page sums and page
 * data: each field must be what it expects, and so must the length. The checksums find damage,
 * not intent: who may write to the folder may forge pages.
 */
#ifndef SHEAF_KV_FILE_H
#define SHEAF_KV_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/limits.h"
#include "base/sha256.h"
#include "engine/kvpool.h"
#include "kernels.h"

enum {
    /* Raised when the layout changes, or the arithmetic that fills a page. */
    KV_FILE_VERSION = 2,
    /* Of the demo model a file is then 6 MB, of an 8B model 32 MB: long enough reads. */
    KV_FILE_PAGES = 8,
};

/* What the bits of a page depend on beside its tokens. */
struct kv_identity {
    char model_sha256[SHA256_HEX_BYTES];
    char kernels[16];
    char program[16];
    enum act_kind activations;
    struct kvpool_shape shape; /* n_pages does not count */
    char hash[SHA256_HEX_BYTES];
};

/* Fills id, its hash included. */
int kv_identity_init(struct kv_identity *id, const char *model_sha256, const char *kernels,
                     enum act_kind activations, const struct kvpool_shape *shape,
                     struct err *e);

/* The hash chain of one prefix: begun, then extended page by page. */
struct kv_chain {
    char salt_sha256[SHA256_HEX_BYTES];
    char hash[SHA256_HEX_BYTES]; /* the name of the prefix so far */
};
int kv_chain_begin(struct kv_chain *chain, const struct kv_identity *id, const char *salt,
                   struct err *e);
int kv_chain_extend(struct kv_chain *chain, const int32_t *tokens /* [32] */, struct err *e);

/* What one file holds: pages [first_page, end_page) of the prefix of end_page pages. */
struct kv_piece {
    size_t first_page; /* a multiple of KV_FILE_PAGES */
    size_t end_page;
    const int32_t *tokens; /* [end_page * 32], borrowed */
    struct kv_chain chain; /* of the whole prefix; its hash is the name */
};

static inline size_t kv_piece_pages(const struct kv_piece *piece)
{
    return piece->end_page - piece->first_page;
}

size_t kv_file_head_bytes(const struct kv_piece *piece);
size_t kv_file_bytes(const struct kv_identity *id, const struct kv_piece *piece);

/* Fills head, [kv_file_head_bytes], for the pages at data. */
void kv_file_make_head(const struct kv_identity *id, const struct kv_piece *piece,
                       const uint8_t *data, uint8_t *head);

/*
 * Compares the file's head and length with what is expected; head is scratch of
 * [kv_file_head_bytes]. ERR_FORMAT with what differs, ERR_IO when reading fails.
 */
int kv_file_check_head(int fd, const struct kv_identity *id, const struct kv_piece *piece,
                       uint8_t *head, struct err *e);

/* Reads page index of a file whose checked head this is into the pool's page. ERR_FORMAT when
 * its checksum differs, ERR_STATE when the pool's device has failed: then the page holds
 * anything. */
int kv_file_read_page(int fd, const struct kv_identity *id, const struct kv_piece *piece,
                      const uint8_t *head, size_t index, struct kvpool *pool, int32_t page,
                      struct err *e);

#endif
