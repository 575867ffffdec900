/*
 * KV pages on disk: what is loaded has the saved bits or is not loaded at all. The layout and
 * the names are computed here once more, from what the header file says.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <xxhash.h>

#include "base/sha256.h"
#include "kv_make.h"

enum {
    FIELDS_BYTES = 288,
    DATA_PAGE_BYTES = 2 * 2 * 2 * 32 * 16 * 2 /* L, KVH, k+v, HD, bf16 */
};

static int set_up(void **state)
{
    struct kv_world *w = malloc(sizeof *w);
    assert_non_null(w);
    make_world(w, KV_BF16);
    *state = w;
    return 0;
}

static int tear_down(void **state)
{
    drop_world(*state);
    free(*state);
    return 0;
}

/* ------------------------------------------------------------------ what comes back */

static void pages_come_back_bit_for_bit(void **state)
{
    (void)state;
    for (int type = KV_F32; type <= KV_INT8; type++)
        for (size_t n = 1; n <= PREFIX_PAGES; n++) {
            struct kv_world w;
            make_world(&w, (enum kv_type)type);
            save_pages(&w, 100, n);
            reopen_world(&w);
            assert_int_equal(load_pages(&w, 100, 0, n), n);
            const struct kv_disk_counters c = kv_disk_counters(w.disk);
            assert_int_equal(c.tokens_loaded, n * PAGE);
            assert_int_equal(c.files_loaded, (n + 7) / 8);
            drop_world(&w);
        }
}

static void loading_goes_on_from_any_page(void **state)
{
    struct kv_world *w = *state;
    save_pages(w, 7, 20);
    reopen_world(w);
    for (size_t first = 0; first < 20; first++)
        assert_int_equal(load_pages(w, 7, first, 20), 20);
    assert_int_equal(load_pages(w, 7, 20, 20), 20);
}

static void a_prompt_that_goes_another_way_gets_what_it_shares(void **state)
{
    struct kv_world *w = *state;
    save_pages(w, 7, 20);
    reopen_world(w);
    w->tokens[17 * PAGE + 3] = -1;
    assert_int_equal(load_pages(w, 7, 0, 20), 16); /* the file of pages 16.. has token -1 */
    w->tokens[0] = -1;
    assert_int_equal(load_pages(w, 7, 0, 20), 0);
}

static void nested_prefixes_share_their_files(void **state)
{
    struct kv_world *w = *state;
    save_pages(w, 7, 8);
    reopen_world(w);
    assert_int_equal(each_entry(w->folder, NULL), 1);
    save_pages(w, 7, 19);
    reopen_world(w);
    assert_int_equal(each_entry(w->folder, NULL), 3); /* [0, 8) [8, 16) [16, 19) */
    save_pages(w, 7, 17);
    reopen_world(w);
    assert_int_equal(each_entry(w->folder, NULL), 4); /* [16, 17) */
    save_pages(w, 7, 19);
    reopen_world(w);
    assert_int_equal(each_entry(w->folder, NULL), 4);
    assert_int_equal(load_pages(w, 7, 0, 17), 17);
    assert_int_equal(load_pages(w, 7, 0, 18), 17);
    assert_int_equal(load_pages(w, 7, 0, 20), 19);
}

static void a_short_prefix_is_neither_saved_nor_looked_for(void **state)
{
    struct kv_world *w = *state;
    save_pages(w, 7, 3);
    w->options.tokens_min = 3 * PAGE + 1;
    reopen_world(w);
    assert_int_equal(load_pages(w, 7, 0, 3), 0);
    w->tokens[0] = 99;
    save_pages(w, 7, 3);
    w->options.tokens_min = 3 * PAGE;
    reopen_world(w);
    assert_int_equal(load_pages(w, 7, 0, 3), 0);
    w->tokens[0] = 0;
    assert_int_equal(load_pages(w, 7, 0, 3), 3);
}

static void saving_without_waiting_comes_to_its_end_in_several_calls(void **state)
{
    struct kv_world *w = *state;
    for (size_t i = 0; i < PREFIX_PAGES; i++)
        fill_page(w->pool, &w->options.shape, w->pages[i], i);
    size_t n_calls = 0;
    for (size_t at = 0; at < PREFIX_PAGES; n_calls++) {
        const size_t before = at;
        at = kv_disk_save(w->disk, NULL, w->tokens, at, w->pages, PREFIX_PAGES, 0);
        assert_true(at >= before && (at % 8 == 0 || at == PREFIX_PAGES));
    }
    reopen_world(w);
    assert_int_equal(each_entry(w->folder, NULL), 3);
    assert_int_equal(load_pages(w, 0, 0, PREFIX_PAGES), PREFIX_PAGES);
}

static void what_is_worth_saving_follows_from_what_was_found(void **state)
{
    struct kv_world *w = *state;
    w->options.tokens_min = 256;
    reopen_world(w);
    static const struct {
        size_t n_found, n_prompt, pages;
    } cases[] = {
        {0, 255, 0},    {0, 256, 8},    {0, 511, 8},    {0, 512, 16},   {255, 600, 16},
        {256, 600, 16}, {345, 600, 10}, {599, 600, 18}, {544, 800, 24},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(kv_disk_pages_to_save(w->disk, cases[i].n_found, cases[i].n_prompt),
                         cases[i].pages);
}

/* ------------------------------------------------------------------ the form */

static void hex_of(const void *bytes, size_t length, char hex[65])
{
    assert_int_equal(sha256_hex(bytes, length, hex, NULL), 0);
}

/* Path of the prefix of n pages in the given format version. */
static void described_path(const struct kv_world *w, int version, const char *salt, size_t n,
                           char path[192])
{
    char bytes[64 + PAGE * 4], hash[65], identity[256];
    snprintf(identity, sizeof identity,
             "sheaf kv %d\nprogram " SHEAF_VERSION
             "\nmodel aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
             "aaaa\nkernels ref\nactivations 1\nkv 1\nlayers 2\nheads 2\ndim 16\n"
             "page 32\n",
             version);
    hex_of(identity, strlen(identity), hash);
    memcpy(bytes, hash, 64);
    hex_of(salt, strlen(salt), hash);
    memcpy(bytes + 64, hash, 64);
    hex_of(bytes, 128, hash);
    for (size_t i = 0; i < n; i++) {
        memcpy(bytes, hash, 64);
        memcpy(bytes + 64, w->tokens + i * PAGE, PAGE * 4);
        hex_of(bytes, sizeof bytes, hash);
    }
    snprintf(path, 192, "%s/%s.kv", w->folder, hash);
}

static void names_are_the_chain_that_is_described(void **state)
{
    struct kv_world *w = *state;
    assert_int_equal(kv_disk_save(w->disk, "tenant", w->tokens, 0, w->pages, 3, LONG_WAIT_US),
                     3);
    reopen_world(w);
    char path[192];
    described_path(w, 2, "tenant", 3, path);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(each_entry(w->folder, NULL), 1);
}

static uint64_t number_at(const uint8_t *bytes, size_t offset, size_t length)
{
    uint64_t n = 0;
    for (size_t i = length; i-- > 0;)
        n = n << 8 | bytes[offset + i];
    return n;
}

static void the_file_lies_as_described(void **state)
{
    struct kv_world *w = *state;
    save_pages(w, 7, 10);
    char path[192];
    path_of(w, NULL, 10, path);
    reopen_world(w);
    uint8_t *bytes;
    const size_t length = read_file(path, &bytes);
    const size_t head = (FIELDS_BYTES + 10 * PAGE * 4 + 2 * 8 + 8 + 63) / 64 * 64;
    assert_int_equal(length, head + 2 * DATA_PAGE_BYTES);
    assert_memory_equal(bytes, "sheafkv\n", 8);
    static const uint32_t numbers[] = {2, 32, 2, 2, 16, KV_BF16, ACT_INT8, 8, 2, 10 * PAGE};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        assert_int_equal(number_at(bytes, 8 + 4 * i, 4), numbers[i]);
    assert_memory_equal(bytes + 48, "ref\0\0\0\0\0\0\0\0\0\0\0\0", 16);
    assert_string_equal((const char *)bytes + 64, SHEAF_VERSION);
    assert_memory_equal(bytes + 80, model_a, 64);
    assert_memory_equal(bytes + 208, path + strlen(w->folder) + 1, 64);
    assert_int_equal(number_at(bytes, 272, 8), DATA_PAGE_BYTES);
    assert_int_equal(number_at(bytes, 280, 8), length);
    assert_memory_equal(bytes + FIELDS_BYTES, w->tokens, 10 * PAGE * 4);
    for (size_t i = 0; i < 2; i++) {
        const uint8_t *page = bytes + head + i * DATA_PAGE_BYTES;
        const uint64_t first_layer = XXH3_64bits(page, DATA_PAGE_BYTES / 2);
        assert_int_equal(
            number_at(bytes, FIELDS_BYTES + 10 * PAGE * 4 + 8 * i, 8),
            XXH3_64bits_withSeed(page + DATA_PAGE_BYTES / 2, DATA_PAGE_BYTES / 2, first_layer));
    }
    assert_int_equal(number_at(bytes, head - 8, 8), XXH3_64bits(bytes, head - 8));
    const uint64_t first_word = rng_bits(7 + 8, 0, 0);
    assert_int_equal(number_at(bytes, head, 8), first_word);
    free(bytes);
}

/* ------------------------------------------------------------------ damaged and foreign */

/* One saved file of 8 pages, its path and its bytes. */
static size_t make_file(struct kv_world *w, char path[192], uint8_t **bytes)
{
    save_pages(w, 7, 8);
    path_of(w, NULL, 8, path);
    reopen_world(w);
    return read_file(path, bytes);
}

static void expect_ignored(struct kv_world *w, const char *path, size_t pages_good,
                           const char *reason)
{
    struct said said;
    listen_begin(&said);
    const size_t n = load_pages(w, 7, 0, 8);
    const size_t again = load_pages(w, 7, 0, 8);
    const char *text = listen_end(&said);
    if (n != pages_good || again != 0 || count_of(text, "is ignored") != 1 ||
        !strstr(text, reason) || !strstr(text, path))
        fail_msg("expected '%s' once and %zu pages; %zu pages, said: %s", reason, pages_good, n,
                 text);
}

static void a_flipped_byte_is_found_and_said(void **state)
{
    static const struct {
        size_t offset; /* in the file; from its end when as large as the data */
        const char *reason;
    } cases[] = {
        {0, "it is not a KV file"},
        {8, "it has another format version"},
        {12, "it has another page size"},
        {16, "it has another number of layers"},
        {20, "it has another number of KV heads"},
        {24, "it has another head dimension"},
        {28, "it has another KV type"},
        {32, "it was computed with other activations"},
        {36, "it begins at another page"},
        {40, "it has another number of pages"},
        {44, "it has another number of tokens"},
        {48, "it was computed with another kernel set"},
        {64, "another version of the program wrote it"},
        {80, "it is of another model"},
        {144, "it is of another salt"},
        {208, "it is another file renamed"},
        {272, "it has pages of another length"},
        {287, "it gives itself another length"},
        {FIELDS_BYTES, "the checksum of its head is wrong"},
        {FIELDS_BYTES + 8 * PAGE * 4 - 1, "the checksum of its head is wrong"},
        {FIELDS_BYTES + 8 * PAGE * 4, "the checksum of its head is wrong"},
    };
    struct kv_world *w = *state;
    char path[192];
    uint8_t *bytes;
    const size_t length = make_file(w, path, &bytes);
    assert_int_equal(load_pages(w, 7, 0, 8), 8);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bytes[cases[i].offset] ^= 1;
        write_file(path, bytes, length);
        expect_ignored(w, path, 0, cases[i].reason);
        bytes[cases[i].offset] ^= 1;
    }
    write_file(path, bytes, length);
    assert_int_equal(load_pages(w, 7, 0, 8), 8);
    free(bytes);
}

static void any_flipped_byte_of_the_head_is_found(void **state)
{
    struct kv_world *w = *state;
    char path[192];
    uint8_t *bytes;
    const size_t length = make_file(w, path, &bytes);
    const size_t head = length - 8 * DATA_PAGE_BYTES;
    struct said said;
    listen_begin(&said);
    size_t n_loaded = 0;
    for (size_t i = 0; i < head; i++) {
        bytes[i] ^= 0x80;
        write_file(path, bytes, length);
        n_loaded += load_pages(w, 7, 0, 8);
        bytes[i] ^= 0x80;
    }
    listen_end(&said);
    assert_int_equal(n_loaded, 0);
    assert_int_equal(kv_disk_counters(w->disk).files_bad, head);
    free(bytes);
}

static void the_pages_before_a_damaged_one_are_good(void **state)
{
    struct kv_world *w = *state;
    char path[192];
    uint8_t *bytes;
    const size_t length = make_file(w, path, &bytes);
    const size_t head = length - 8 * DATA_PAGE_BYTES;
    for (size_t page = 0; page < 8; page++)
        for (size_t edge = 0; edge < 2; edge++) {
            const size_t at = head + page * DATA_PAGE_BYTES + edge * (DATA_PAGE_BYTES - 1);
            char reason[64];
            snprintf(reason, sizeof reason, "the checksum of page %zu is wrong", page);
            bytes[at] ^= 4;
            write_file(path, bytes, length);
            expect_ignored(w, path, page, reason);
            bytes[at] ^= 4;
        }
    free(bytes);
}

static void a_file_of_another_length_is_ignored(void **state)
{
    struct kv_world *w = *state;
    char path[192];
    uint8_t *bytes;
    const size_t length = make_file(w, path, &bytes);
    for (size_t cut = 0; cut < length; cut += cut < 400 ? 1 : 997) {
        write_file(path, bytes, cut);
        expect_ignored(w, path, 0, cut < FIELDS_BYTES ? "it ends at byte" : "bytes of");
    }
    write_file(path, bytes, length - 1);
    expect_ignored(w, path, 0, "bytes of");
    bytes[length] = 0;
    write_file(path, bytes, length + 1);
    expect_ignored(w, path, 0, "bytes of");
    free(bytes);
}

static const char model_b[] =
    "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

static void set_model(struct kv_disk_options *o)
{
    o->model_sha256 = model_b;
}
static void set_kernels(struct kv_disk_options *o)
{
    o->kernels = "avx2";
}
static void set_type(struct kv_disk_options *o)
{
    o->shape.type = KV_F32;
}
static void set_int8(struct kv_disk_options *o)
{
    o->shape.type = KV_INT8;
}
static void set_activations(struct kv_disk_options *o)
{
    o->activations = ACT_F32;
}
static void set_layers(struct kv_disk_options *o)
{
    o->shape.n_layers = 4;
}
static void set_heads(struct kv_disk_options *o)
{
    o->shape.n_kv_heads = 1;
}
static void set_dim(struct kv_disk_options *o)
{
    o->shape.head_dim = 32;
}

static void a_file_from_elsewhere_is_not_found_and_under_our_name_ignored(void **state)
{
    static const struct {
        void (*set)(struct kv_disk_options *);
        const char *reason;
    } cases[] = {
        {set_model, "it is of another model"},
        {set_kernels, "it was computed with another kernel set"},
        {set_type, "it has another KV type"},
        {set_int8, "it has another KV type"},
        {set_activations, "it was computed with other activations"},
        {set_layers, "it has another number of layers"},
        {set_heads, "it has another number of KV heads"},
        {set_dim, "it has another head dimension"},
    };
    struct kv_world *w = *state;
    char path[192], foreign[192];
    uint8_t *bytes;
    const size_t length = make_file(w, path, &bytes);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct kv_disk_options before = w->options;
        cases[i].set(&w->options);
        reopen_world(w);
        assert_int_equal(load_pages(w, 7, 0, 8), 0);
        assert_int_equal(kv_disk_counters(w->disk).files_bad, 0);
        path_of(w, NULL, 8, foreign);
        write_file(foreign, bytes, length);
        expect_ignored(w, foreign, 0, cases[i].reason);
        w->options = before;
    }
    free(bytes);
}

/* Version 1: values of int8 pages lay token by token. */
static void a_file_of_an_older_format_is_not_found_and_under_our_name_ignored(void **state)
{
    struct kv_world *w = *state;
    char path[192], older[192];
    uint8_t *bytes;
    const size_t length = make_file(w, path, &bytes);
    unlink(path);
    bytes[8] = 1;
    described_path(w, 1, "", 8, older);
    write_file(older, bytes, length);
    struct said said;
    listen_begin(&said);
    const size_t n = load_pages(w, 7, 0, 8);
    assert_string_equal(listen_end(&said), "");
    assert_int_equal(n, 0);
    assert_int_equal(kv_disk_counters(w->disk).files_bad, 0);
    write_file(path, bytes, length);
    expect_ignored(w, path, 0, "it has another format version");
    free(bytes);
}

static void another_salt_finds_nothing(void **state)
{
    struct kv_world *w = *state;
    char path[192], foreign[192];
    uint8_t *bytes;
    const size_t length = make_file(w, path, &bytes);
    size_t n;
    kv_disk_find(w->disk, "tenant", w->tokens, 0, 8, &n);
    assert_int_equal(n, 0);
    kv_disk_find(w->disk, "", w->tokens, 0, 8, &n);
    assert_int_equal(n, 1);
    path_of(w, "tenant", 8, foreign);
    write_file(foreign, bytes, length);
    const struct kv_piece *piece = kv_disk_find(w->disk, "tenant", w->tokens, 0, 8, &n);
    assert_int_equal(n, 1);
    struct said said;
    listen_begin(&said);
    const size_t got = kv_disk_read(w->disk, piece, 0, w->pages);
    assert_non_null(strstr(listen_end(&said), "it is of another salt"));
    assert_int_equal(got, 0);
    free(bytes);
}

/* A forger who repairs name and checksum is left with the tokens, which are compared. */
static void tokens_are_compared_and_not_only_their_hash(void **state)
{
    struct kv_world *w = *state;
    char path[192], other[192];
    uint8_t *bytes;
    const size_t length = make_file(w, path, &bytes);
    const size_t head = length - 8 * DATA_PAGE_BYTES;
    w->tokens[5] = 4711;
    path_of(w, NULL, 8, other);
    write_file(other, bytes, length);
    expect_ignored(w, other, 0, "it is another file renamed");
    memcpy(bytes + 208, other + strlen(w->folder) + 1, 64);
    const uint64_t sum = XXH3_64bits(bytes, head - 8);
    memcpy(bytes + head - 8, &sum, 8);
    write_file(other, bytes, length);
    expect_ignored(w, other, 0, "it is of other tokens");
    free(bytes);
}

static void what_is_not_a_file_is_ignored(void **state)
{
    struct kv_world *w = *state;
    char path[192];
    uint8_t *bytes;
    const size_t length = make_file(w, path, &bytes);
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_ignored(w, path, 0, "it is not a regular file");
    char target[192];
    snprintf(target, sizeof target, "%s/elsewhere", w->folder);
    write_file(target, bytes, length);
    assert_int_equal(symlink(target, path), 0);
    expect_ignored(w, path, 0, "it cannot be opened");
    unlink(path);
    reopen_world(w); /* what was said is said anew by another run */
    assert_int_equal(mkdir(path, 0700), 0);
    expect_ignored(w, path, 0, "it is not a regular file");
    free(bytes);
}

/* ------------------------------------------------------------------ any change at all */

static size_t mutate(uint64_t seed, uint64_t round, uint8_t *bytes, size_t length, size_t room)
{
    const uint64_t at = rng_bits(seed, round, 1) % length;
    const uint64_t from = rng_bits(seed, round, 2) % length;
    uint64_t n = rng_bits(seed, round, 3) % 4096;
    n = n < length - at ? n : length - at;
    n = n < length - from ? n : length - from;
    switch (rng_bits(seed, round, 4) % 6) {
    case 0: bytes[at] ^= (uint8_t)(1u << rng_bits(seed, round, 5) % 8); return length;
    case 1: return at;
    case 2: memset(bytes + at, 0, n); return length;
    case 3: memmove(bytes + at, bytes + from, n); return length;
    case 4: memset(bytes + length, 0xa5, room - length); return length + at % (room - length);
    default:
        for (uint64_t i = 0; i < 8 && at + i < length; i++)
            bytes[at + i] = (uint8_t)(rng_bits(seed, round, 6) >> 8 * i);
        return length;
    }
}

/* load_pages fails the test when a page that was taken has other bits. */
static void a_changed_file_never_gives_other_bits(void **state)
{
    const char *given = getenv("SHEAF_TEST_SEED");
    const uint64_t seed = given ? strtoull(given, NULL, 0) : 20260817;
    print_message("seed %llu\n", (unsigned long long)seed);
    struct kv_world *w = *state;
    char path[192];
    uint8_t *bytes;
    const size_t length = make_file(w, path, &bytes);
    const size_t room = length + 512;
    uint8_t *changed = malloc(room);
    assert_non_null(changed);
    const int null_fd = open("/dev/null", O_WRONLY);
    const int stderr_fd = dup(STDERR_FILENO);
    dup2(null_fd, STDERR_FILENO);
    size_t n_whole = 0;
    for (uint64_t round = 0; round < 1500; round++) {
        memcpy(changed, bytes, length);
        const size_t n = mutate(seed, round, changed, length, room);
        const bool same = n == length && memcmp(changed, bytes, length) == 0;
        write_file(path, changed, n);
        const size_t loaded = load_pages(w, 7, 0, 8);
        n_whole += same;
        if (same != (loaded == 8))
            fail_msg("round %llu: %zu pages", (unsigned long long)round, loaded);
    }
    dup2(stderr_fd, STDERR_FILENO);
    close(stderr_fd);
    close(null_fd);
    assert_in_range(n_whole, 0, 100);
    free(changed);
    free(bytes);
}

/* ------------------------------------------------------------------ what pays */

static void loading_is_tried_first_and_then_has_to_be_faster(void **state)
{
    struct kv_world *w = *state;
    save_pages(w, 7, 8);
    reopen_world(w);
    assert_true(kv_disk_pays(w->disk));
    kv_disk_note_prefill(w->disk, 1000000000, 1);
    assert_true(kv_disk_pays(w->disk)); /* no load yet */
    assert_int_equal(load_pages(w, 7, 0, 8), 8);
    size_t n_refused = 0;
    while (!kv_disk_pays(w->disk))
        n_refused++;
    assert_int_equal(n_refused, 31);
    assert_false(kv_disk_pays(w->disk));
    for (int i = 0; i < 400; i++) /* what was fast is forgotten */
        kv_disk_note_prefill(w->disk, 1, 1000000000);
    for (int i = 0; i < 100; i++)
        assert_true(kv_disk_pays(w->disk));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_come_back_bit_for_bit),
        TEST(loading_goes_on_from_any_page),
        TEST(a_prompt_that_goes_another_way_gets_what_it_shares),
        TEST(nested_prefixes_share_their_files),
        TEST(a_short_prefix_is_neither_saved_nor_looked_for),
        TEST(saving_without_waiting_comes_to_its_end_in_several_calls),
        TEST(what_is_worth_saving_follows_from_what_was_found),
        TEST(names_are_the_chain_that_is_described),
        TEST(the_file_lies_as_described),
        TEST(a_flipped_byte_is_found_and_said),
        TEST(any_flipped_byte_of_the_head_is_found),
        TEST(the_pages_before_a_damaged_one_are_good),
        TEST(a_file_of_another_length_is_ignored),
        TEST(a_file_from_elsewhere_is_not_found_and_under_our_name_ignored),
        TEST(a_file_of_an_older_format_is_not_found_and_under_our_name_ignored),
        TEST(another_salt_finds_nothing),
        TEST(tokens_are_compared_and_not_only_their_hash),
        TEST(what_is_not_a_file_is_ignored),
        TEST(a_changed_file_never_gives_other_bits),
        TEST(loading_is_tried_first_and_then_has_to_be_faster),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
