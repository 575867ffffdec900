/* Small KV folders for tests: a pool filled with known bits, a folder of its own, files changed
 * by hand, and what was said on stderr. */
#ifndef SHEAF_TEST_KV_MAKE_H
#define SHEAF_TEST_KV_MAKE_H

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rng.h"
#include "engine/kv_disk.h"

enum { POOL_PAGES = 24, PAGE = KV_PAGE_TOKENS, PREFIX_PAGES = 20 };
enum { LONG_WAIT_US = 600000000 }; /* longer than any disk takes */

static const char model_a[] =
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

struct kv_world {
    char folder[64];
    struct kv_disk_options options;
    struct kvpool *pool;
    struct kv_disk *disk;
    int32_t pages[PREFIX_PAGES];
    int32_t tokens[PREFIX_PAGES * PAGE];
};

static inline struct kvpool_shape small_shape(enum kv_type type)
{
    return (struct kvpool_shape){
        .n_pages = POOL_PAGES, .n_layers = 2, .n_kv_heads = 2, .head_dim = 16, .type = type};
}

static inline void fill_page(struct kvpool *pool, const struct kvpool_shape *s, int32_t page,
                             uint64_t seed)
{
    const size_t words = kvpool_page_bytes(s) / s->n_layers / sizeof(uint64_t);
    for (size_t layer = 0; layer < s->n_layers; layer++) {
        uint64_t *to = kvpool_block(pool, layer, page, 0);
        for (size_t i = 0; i < words; i++)
            to[i] = rng_bits(seed, layer, i);
    }
}

static inline bool page_is(struct kvpool *pool, const struct kvpool_shape *s, int32_t page,
                           uint64_t seed)
{
    const size_t words = kvpool_page_bytes(s) / s->n_layers / sizeof(uint64_t);
    for (size_t layer = 0; layer < s->n_layers; layer++) {
        const uint64_t *at = kvpool_block(pool, layer, page, 0);
        for (size_t i = 0; i < words; i++)
            if (at[i] != rng_bits(seed, layer, i))
                return false;
    }
    return true;
}

/* Opens the world's disk over a pool of its own whose pages hold nothing. */
static inline void open_world(struct kv_world *w)
{
    assert_int_equal(kvpool_open(&w->options.shape, &w->pool, NULL), 0);
    for (size_t i = 0; i < PREFIX_PAGES; i++)
        w->pages[i] = kvpool_acquire_page(w->pool);
    struct err e = {0};
    if (kv_disk_open(&w->options, w->pool, &w->disk, &e) != 0)
        fail_msg("%s", e.text);
}

/* Waits for the writer: what was saved is there after. */
static inline void close_world(struct kv_world *w)
{
    kv_disk_close(w->disk);
    kvpool_close(w->pool);
    w->disk = NULL;
    w->pool = NULL;
}

static inline void reopen_world(struct kv_world *w)
{
    close_world(w);
    open_world(w);
}

static inline void make_world(struct kv_world *w, enum kv_type type)
{
    *w = (struct kv_world){.options = {.bytes_max = 1 << 30,
                                       .tokens_min = PAGE,
                                       .context = PREFIX_PAGES * PAGE,
                                       .model_sha256 = model_a,
                                       .kernels = "ref",
                                       .activations = ACT_INT8,
                                       .shape = small_shape(type)}};
    snprintf(w->folder, sizeof w->folder, "/tmp/sheaf-kv-XXXXXX");
    assert_non_null(mkdtemp(w->folder));
    w->options.folder = w->folder;
    for (size_t i = 0; i < PREFIX_PAGES * PAGE; i++)
        w->tokens[i] = (int32_t)i;
    open_world(w);
}

/* Calls visit with the path of each entry; returns how many there are. */
static inline size_t each_entry(const char *folder, void (*visit)(const char *path))
{
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    size_t n = 0;
    const struct dirent *entry;
    while ((entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        char path[512];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        n++;
        if (visit)
            visit(path);
    }
    closedir(dir);
    return n;
}

static inline void remove_entry(const char *path)
{
    if (unlink(path) != 0)
        rmdir(path);
}

static inline void drop_world(struct kv_world *w)
{
    close_world(w);
    each_entry(w->folder, remove_entry);
    rmdir(w->folder);
}

/* Fills the first n pages with the bits of seed + page and saves them, to the end. */
static inline void save_pages(struct kv_world *w, uint64_t seed, size_t n)
{
    for (size_t i = 0; i < n; i++)
        fill_page(w->pool, &w->options.shape, w->pages[i], seed + i);
    assert_int_equal(kv_disk_save(w->disk, NULL, w->tokens, 0, w->pages, n, LONG_WAIT_US), n);
}

/* Loads what there is of n pages, from first on, into the pages of the same places, and
 * returns where it ends. Every page must have the bits of seed + page. */
static inline size_t load_pages(struct kv_world *w, uint64_t seed, size_t first, size_t n)
{
    size_t n_pieces, page = first;
    const struct kv_piece *pieces = kv_disk_find(w->disk, NULL, w->tokens, first, n, &n_pieces);
    for (size_t i = 0; i < n_pieces; i++) {
        const size_t got = kv_disk_read(w->disk, &pieces[i], page, w->pages + page);
        for (size_t k = 0; k < got; k++, page++)
            if (!page_is(w->pool, &w->options.shape, w->pages[page], seed + page))
                fail_msg("page %zu came back with other bits", page);
        if (page < pieces[i].end_page)
            break;
    }
    return page;
}

/* The name that the options give the prefix of n pages, as a path. */
static inline void path_of(const struct kv_world *w, const char *salt, size_t n, char path[192])
{
    const struct kv_disk_options *o = &w->options;
    struct kv_identity id;
    struct kv_chain chain;
    assert_int_equal(
        kv_identity_init(&id, o->model_sha256, o->kernels, o->activations, &o->shape, NULL), 0);
    assert_int_equal(kv_chain_begin(&chain, &id, salt, NULL), 0);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(kv_chain_extend(&chain, w->tokens + i * PAGE, NULL), 0);
    snprintf(path, 192, "%s/%s.kv", w->folder, chain.hash);
}

static inline size_t read_file(const char *path, uint8_t **out)
{
    struct stat st;
    const int fd = open(path, O_RDONLY);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    *out = malloc((size_t)st.st_size + 1);
    assert_non_null(*out);
    assert_int_equal(read(fd, *out, (size_t)st.st_size), st.st_size);
    close(fd);
    return (size_t)st.st_size;
}

static inline void write_file(const char *path, const void *bytes, size_t length)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, length), length);
    close(fd);
}

struct said {
    int stderr_fd, memory_fd;
    char text[8192];
};

static inline void listen_begin(struct said *said)
{
    fflush(stderr);
    said->stderr_fd = dup(STDERR_FILENO);
    said->memory_fd = memfd_create("stderr", MFD_CLOEXEC);
    assert_true(said->stderr_fd >= 0 && said->memory_fd >= 0);
    dup2(said->memory_fd, STDERR_FILENO);
}

static inline const char *listen_end(struct said *said)
{
    fflush(stderr);
    dup2(said->stderr_fd, STDERR_FILENO);
    close(said->stderr_fd);
    const ssize_t n = pread(said->memory_fd, said->text, sizeof said->text - 1, 0);
    said->text[n > 0 ? n : 0] = '\0';
    close(said->memory_fd);
    return said->text;
}

static inline size_t count_of(const char *text, const char *needle)
{
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, needle)) != NULL; at += strlen(needle))
        n++;
    return n;
}

#endif
