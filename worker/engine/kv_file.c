#include "engine/kv_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/check.h"

enum { HEX = SHA256_HEX_BYTES - 1, HEAD_ALIGN = 64 };

struct fields {
    char magic[8];
    uint32_t version;
    uint32_t page_tokens, n_layers, n_kv_heads, head_dim, kv_type, activations;
    uint32_t first_page, n_pages, n_tokens;
    char kernels[16];
    char program[16];
    char model_sha256[HEX];
    char salt_sha256[HEX];
    char name[HEX];
    uint64_t page_bytes, file_bytes;
};

static_assert(sizeof(struct fields) == 288, "the fields lie as the header file says");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "fields are copied as they lie");
static_assert(sizeof(((struct kv_identity *)0)->kernels) == 16, "copied whole");
static_assert(sizeof(((struct kv_identity *)0)->program) == 16, "copied whole");

/* ------------------------------------------------------------------ names */

int kv_identity_init(struct kv_identity *id, const char *model_sha256, const char *kernels,
                     enum act_kind activations, const struct kvpool_shape *shape, struct err *e)
{
    ASSERT(strlen(model_sha256) == HEX);
    ASSERT(strlen(kernels) < sizeof id->kernels);
    *id = (struct kv_identity){.activations = activations, .shape = *shape};
    memcpy(id->model_sha256, model_sha256, HEX);
    memcpy(id->kernels, kernels, strlen(kernels));
    snprintf(id->program, sizeof id->program, "%s", SHEAF_VERSION);
    char text[512];
    const int n = snprintf(text, sizeof text,
                           "sheaf kv %d\nprogram %s\nmodel %s\nkernels %s\nactivations %d\n"
                           "kv %d\nlayers %zu\nheads %zu\ndim %zu\npage %d\n",
                           KV_FILE_VERSION, id->program, id->model_sha256, id->kernels,
                           (int)activations, (int)shape->type, shape->n_layers,
                           shape->n_kv_heads, shape->head_dim, KV_PAGE_TOKENS);
    ASSERT(n > 0 && (size_t)n < sizeof text);
    return sha256_hex(text, (size_t)n, id->hash, e);
}

int kv_chain_begin(struct kv_chain *chain, const struct kv_identity *id, const char *salt,
                   struct err *e)
{
    TRY(sha256_hex(salt ? salt : "", salt ? strlen(salt) : 0, chain->salt_sha256, e));
    char text[2 * HEX];
    memcpy(text, id->hash, HEX);
    memcpy(text + HEX, chain->salt_sha256, HEX);
    return sha256_hex(text, sizeof text, chain->hash, e);
}

int kv_chain_extend(struct kv_chain *chain, const int32_t *tokens, struct err *e)
{
    char text[HEX + KV_PAGE_TOKENS * sizeof tokens[0]];
    memcpy(text, chain->hash, HEX);
    memcpy(text + HEX, tokens, sizeof text - HEX);
    return sha256_hex(text, sizeof text, chain->hash, e);
}

/* ------------------------------------------------------------------ the head */

static size_t tokens_bytes(const struct kv_piece *piece)
{
    return piece->end_page * KV_PAGE_TOKENS * sizeof piece->tokens[0];
}

size_t kv_file_head_bytes(const struct kv_piece *piece)
{
    const size_t bytes = sizeof(struct fields) + tokens_bytes(piece) +
                         (kv_piece_pages(piece) + 1) * sizeof(uint64_t);
    return (bytes + HEAD_ALIGN - 1) / HEAD_ALIGN * HEAD_ALIGN;
}

size_t kv_file_bytes(const struct kv_identity *id, const struct kv_piece *piece)
{
    return kv_file_head_bytes(piece) + kv_piece_pages(piece) * kvpool_page_bytes(&id->shape);
}

static struct fields expected_fields(const struct kv_identity *id, const struct kv_piece *piece)
{
    struct fields f = {
        .magic = {'s', 'h', 'e', 'a', 'f', 'k', 'v', '\n'},
        .version = KV_FILE_VERSION,
        .page_tokens = KV_PAGE_TOKENS,
        .n_layers = (uint32_t)id->shape.n_layers,
        .n_kv_heads = (uint32_t)id->shape.n_kv_heads,
        .head_dim = (uint32_t)id->shape.head_dim,
        .kv_type = id->shape.type,
        .activations = id->activations,
        .first_page = (uint32_t)piece->first_page,
        .n_pages = (uint32_t)kv_piece_pages(piece),
        .n_tokens = (uint32_t)(piece->end_page * KV_PAGE_TOKENS),
        .page_bytes = kvpool_page_bytes(&id->shape),
        .file_bytes = kv_file_bytes(id, piece),
    };
    memcpy(f.kernels, id->kernels, sizeof f.kernels);
    memcpy(f.program, id->program, sizeof f.program);
    memcpy(f.model_sha256, id->model_sha256, HEX);
    memcpy(f.salt_sha256, piece->chain.salt_sha256, HEX);
    memcpy(f.name, piece->chain.hash, HEX);
    return f;
}

static void check_piece(const struct kv_piece *piece)
{
    ASSERT(piece->first_page % KV_FILE_PAGES == 0);
    ASSERT(piece->end_page > piece->first_page);
    ASSERT(kv_piece_pages(piece) <= KV_FILE_PAGES);
}

static uint64_t page_sum(const struct kvpool_shape *s, const uint8_t *data)
{
    const size_t layer_bytes = kvpool_page_bytes(s) / s->n_layers;
    uint64_t sum = 0;
    for (size_t layer = 0; layer < s->n_layers; layer++)
        sum = XXH3_64bits_withSeed(data + layer * layer_bytes, layer_bytes, sum);
    return sum;
}

void kv_file_make_head(const struct kv_identity *id, const struct kv_piece *piece,
                       const uint8_t *data, uint8_t *head)
{
    check_piece(piece);
    const size_t bytes = kv_file_head_bytes(piece);
    const size_t page_bytes = kvpool_page_bytes(&id->shape);
    const struct fields f = expected_fields(id, piece);
    memset(head, 0, bytes);
    memcpy(head, &f, sizeof f);
    memcpy(head + sizeof f, piece->tokens, tokens_bytes(piece));
    uint8_t *sums = head + sizeof f + tokens_bytes(piece);
    for (size_t i = 0; i < kv_piece_pages(piece); i++) {
        const uint64_t sum = page_sum(&id->shape, data + i * page_bytes);
        memcpy(sums + i * sizeof sum, &sum, sizeof sum);
    }
    const uint64_t sum = XXH3_64bits(head, bytes - sizeof sum);
    memcpy(head + bytes - sizeof sum, &sum, sizeof sum);
}

#define FIELD(what, member)                                                                    \
    {                                                                                          \
        what, offsetof(struct fields, member), sizeof(((struct fields *)0)->member)            \
    }

/* In the order in which a difference says most. */
static int compare_fields(const struct fields *found, const struct fields *expected,
                          struct err *e)
{
    static const struct {
        const char *what;
        size_t offset, bytes;
    } rows[] = {
        FIELD("it is not a KV file", magic),
        FIELD("it has another format version", version),
        FIELD("another version of the program wrote it", program),
        FIELD("it is of another model", model_sha256),
        FIELD("it was computed with another kernel set", kernels),
        FIELD("it has another KV type", kv_type),
        FIELD("it was computed with other activations", activations),
        FIELD("it has another page size", page_tokens),
        FIELD("it has another number of layers", n_layers),
        FIELD("it has another number of KV heads", n_kv_heads),
        FIELD("it has another head dimension", head_dim),
        FIELD("it is of another salt", salt_sha256),
        FIELD("it is another file renamed", name),
        FIELD("it begins at another page", first_page),
        FIELD("it has another number of pages", n_pages),
        FIELD("it has another number of tokens", n_tokens),
        FIELD("it has pages of another length", page_bytes),
        FIELD("it gives itself another length", file_bytes),
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (memcmp((const char *)found + rows[i].offset,
                   (const char *)expected + rows[i].offset, rows[i].bytes) != 0)
            return ERR_SET(e, ERR_FORMAT, "%s", rows[i].what);
    return 0;
}

/* ------------------------------------------------------------------ reading */

static int read_at(int fd, void *bytes, size_t length, size_t offset, struct err *e)
{
    size_t done = 0;
    while (done < length) {
        const ssize_t n =
            pread(fd, (char *)bytes + done, length - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return ERR_SET(e, ERR_IO, "it cannot be read: %s", strerror(errno));
        if (n == 0)
            return ERR_SET(e, ERR_FORMAT, "it ends at byte %zu", offset + done);
        done += (size_t)n;
    }
    return 0;
}

int kv_file_check_head(int fd, const struct kv_identity *id, const struct kv_piece *piece,
                       uint8_t *head, struct err *e)
{
    check_piece(piece);
    struct stat st;
    if (fstat(fd, &st) != 0)
        return ERR_SET(e, ERR_IO, "it cannot be read: %s", strerror(errno));
    if (!S_ISREG(st.st_mode))
        return ERR_SET(e, ERR_FORMAT, "it is not a regular file");
    const struct fields expected = expected_fields(id, piece);
    struct fields found;
    TRY(read_at(fd, &found, sizeof found, 0, e));
    TRY(compare_fields(&found, &expected, e));
    if ((uint64_t)st.st_size != expected.file_bytes)
        return ERR_SET(e, ERR_FORMAT, "it has %jd bytes of %" PRIu64, (intmax_t)st.st_size,
                       expected.file_bytes);
    const size_t bytes = kv_file_head_bytes(piece);
    TRY(read_at(fd, head, bytes, 0, e));
    uint64_t sum;
    memcpy(&sum, head + bytes - sizeof sum, sizeof sum);
    if (sum != XXH3_64bits(head, bytes - sizeof sum))
        return ERR_SET(e, ERR_FORMAT, "the checksum of its head is wrong");
    if (memcmp(head + sizeof found, piece->tokens, tokens_bytes(piece)) != 0)
        return ERR_SET(e, ERR_FORMAT, "it is of other tokens");
    return 0;
}

int kv_file_read_page(int fd, const struct kv_identity *id, const struct kv_piece *piece,
                      const uint8_t *head, size_t index, struct kvpool *pool, int32_t page,
                      struct err *e)
{
    ASSERT(index < kv_piece_pages(piece));
    const struct kvpool_shape *s = &id->shape;
    const size_t layer_bytes = kvpool_page_bytes(s) / s->n_layers;
    size_t offset = kv_file_head_bytes(piece) + index * kvpool_page_bytes(s);
    uint64_t sum = 0;
    for (size_t layer = 0; layer < s->n_layers; layer++) {
        void *blocks = kvpool_fill(pool, layer, page); /* of all heads, side by side */
        TRY(read_at(fd, blocks, layer_bytes, offset, e));
        sum = XXH3_64bits_withSeed(blocks, layer_bytes, sum);
        offset += layer_bytes;
    }
    const uint8_t *expected = head + sizeof(struct fields) + tokens_bytes(piece);
    if (memcmp(expected + index * sizeof sum, &sum, sizeof sum) != 0)
        return ERR_SET(e, ERR_FORMAT, "the checksum of page %zu is wrong",
                       piece->first_page + index);
    if (!kvpool_filled(pool, page))
        return ERR_SET(e, ERR_STATE, "the device that its pages go to has failed");
    return 0;
}
