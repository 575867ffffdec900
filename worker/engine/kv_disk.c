#include "engine/kv_disk.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/size.h"
#include "engine/kv_folder.h"
#include "engine/memory.h"

enum { ALWAYS_WAIT_US = 60000000 };

enum {
    SLOTS = 2,            /* files in the writer's hands: one being written, one ready */
    REFUSALS_MAX = 32,    /* loads that did not seem to pay, before one is tried again */
    RATE_WINDOW_SHIFT = 3 /* an estimate forgets an eighth with each observation */
};

/* Units per microsecond, the latest observations weighing most. */
struct rate {
    double units, us;
};

struct slot {
    char name[SHA256_HEX_BYTES];
    uint8_t *head, *data; /* in the block; tokens are in the head */
    size_t head_bytes, data_bytes;
    int64_t used_us;
};

struct kv_disk {
    struct kv_identity id;
    struct kvpool *pool;
    struct kv_folder folder;
    uint64_t bytes_max;
    size_t tokens_min, pages_max;
    bool always;
    size_t page_bytes;

    void *block; /* the slots' memory and the reader's head */
    size_t block_bytes;
    uint8_t *head;           /* scratch of the reader */
    struct kv_piece *pieces; /* of the last find */
    struct hash_set said;    /* bad files that could not be removed */
    struct rate loading, prefill;
    unsigned n_refused;

    pthread_t writer;
    bool has_writer;
    pthread_mutex_t lock;
    pthread_cond_t queued, taken;
    /* Under the lock; a slot's content belongs to the writer while it is queued. */
    struct slot slots[SLOTS];
    size_t first_slot, n_queued;
    bool closing, broken;
    struct kv_disk_counters counters;
};

/* ------------------------------------------------------------------ the writer */

/* A file counts as used a second a page before the prefix's first one, so that prefixes lose
 * their ends first, though the ends are saved some steps later. */
static int64_t last_use(size_t first_page)
{
    return clock_wall_us() - (int64_t)first_page * 1000000;
}

static void write_slot(struct kv_disk *d, const struct slot *slot)
{
    struct err e = {0};
    size_t n_removed = 0;
    const size_t bytes = slot->head_bytes + slot->data_bytes;
    int rc = kv_folder_fit(&d->folder, d->bytes_max, bytes, &n_removed, &e);
    if (rc == 0)
        rc = kv_folder_write(&d->folder, slot->name, slot->head, slot->head_bytes, slot->data,
                             slot->data_bytes, slot->used_us, &e);
    if (rc != 0)
        log_warn("%s; no more KV pages are kept there by this run", e.text);
    pthread_mutex_lock(&d->lock);
    d->broken = d->broken || rc != 0;
    d->counters.files_removed += n_removed;
    d->counters.files_saved += rc == 0;
    d->counters.bytes_saved += rc == 0 ? bytes : 0;
    pthread_mutex_unlock(&d->lock);
}

static void *run_writer(void *context)
{
    struct kv_disk *d = context;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        while (d->n_queued == 0 && !d->closing)
            pthread_cond_wait(&d->queued, &d->lock);
        if (d->n_queued == 0)
            break;
        const struct slot *slot = &d->slots[d->first_slot];
        const bool broken = d->broken;
        pthread_mutex_unlock(&d->lock);
        if (!broken)
            write_slot(d, slot);
        pthread_mutex_lock(&d->lock);
        d->first_slot = (d->first_slot + 1) % SLOTS;
        d->n_queued--;
        pthread_cond_signal(&d->taken);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* The writer takes no signal: a file size limit is then an error of write, and the program's
 * own signals go to the threads that wait for them. */
static int start_writer(struct kv_disk *d, struct err *e)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int failed = pthread_create(&d->writer, NULL, run_writer, d);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        return ERR_SET(e, ERR_IO, "cannot start the writer of KV files: %s", strerror(failed));
    d->has_writer = true;
    return 0;
}

static void stop_writer(struct kv_disk *d)
{
    if (!d->has_writer)
        return;
    pthread_mutex_lock(&d->lock);
    d->closing = true;
    pthread_cond_signal(&d->queued);
    pthread_mutex_unlock(&d->lock);
    pthread_join(d->writer, NULL);
}

/* ------------------------------------------------------------------ opening */

static int take_memory(struct kv_disk *d, struct err *e)
{
    const struct kv_piece longest = {
        .first_page = (d->pages_max - 1) / KV_FILE_PAGES * KV_FILE_PAGES,
        .end_page = (d->pages_max - 1) / KV_FILE_PAGES * KV_FILE_PAGES + KV_FILE_PAGES};
    const size_t head_bytes = kv_file_head_bytes(&longest);
    const size_t data_bytes = KV_FILE_PAGES * d->page_bytes;
    if (head_bytes + data_bytes > d->bytes_max)
        return ERR_SET(e, ERR_CONFIG,
                       "kv.disk_mb is less than one file, which may have %zu MiB; raise it",
                       ((head_bytes + data_bytes) >> 20) + 1);
    d->block_bytes = SLOTS * (head_bytes + data_bytes) + head_bytes;
    TRY(memory_take(d->block_bytes, "saving KV pages", &d->block, e));
    uint8_t *next = d->block;
    for (size_t i = 0; i < SLOTS; i++) {
        d->slots[i].head = next;
        d->slots[i].data = next + head_bytes;
        next += head_bytes + data_bytes;
    }
    d->head = next;
    d->pieces = calloc(d->pages_max / KV_FILE_PAGES + 1, sizeof d->pieces[0]);
    return d->pieces ? 0 : ERR_SET(e, ERR_NOMEM, "no memory for %zu KV files", d->pages_max);
}

int kv_disk_open(const struct kv_disk_options *o, struct kvpool *pool, struct kv_disk **out,
                 struct err *e)
{
    ASSERT(o->context >= KV_PAGE_TOKENS);
    struct kv_disk *d = calloc(1, sizeof *d);
    if (!d)
        return ERR_SET(e, ERR_NOMEM, "no memory for the KV files");
    d->pool = pool;
    d->bytes_max = o->bytes_max;
    d->tokens_min = o->tokens_min;
    d->always = o->always;
    d->pages_max = o->context / KV_PAGE_TOKENS;
    d->page_bytes = kvpool_page_bytes(&o->shape);
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->queued, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&d->taken, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int rc = 0;
    TRY_OUT(rc, kv_identity_init(&d->id, o->model_sha256, o->kernels, o->activations, &o->shape,
                                 e));
    TRY_OUT(rc, kv_folder_open(&d->folder, o->folder, e));
    TRY_OUT(rc, take_memory(d, e));
    TRY_OUT(rc, kv_folder_fit(&d->folder, d->bytes_max, 0, NULL, e));
    TRY_OUT(rc, start_writer(d, e));
    *out = d;
out:
    if (rc != 0)
        kv_disk_close(d);
    return rc;
}

void kv_disk_close(struct kv_disk *d)
{
    if (!d)
        return;
    stop_writer(d);
    kv_folder_close(&d->folder);
    memory_give_back(d->block, d->block_bytes);
    hash_set_fini(&d->said);
    free(d->pieces);
    pthread_cond_destroy(&d->taken);
    pthread_cond_destroy(&d->queued);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

/* ------------------------------------------------------------------ saving */

static bool is_queued(const struct kv_disk *d, const char *name)
{
    for (size_t i = 0; i < d->n_queued; i++)
        if (strcmp(d->slots[(d->first_slot + i) % SLOTS].name, name) == 0)
            return true;
    return false;
}

enum handed { HANDED_OVER, HANDED_LATER, HANDED_NEVER };

/* False: a device did not give a page. */
static bool fill_slot(struct kv_disk *d, struct slot *slot, const struct kv_piece *piece,
                      const int32_t *pages)
{
    const size_t n = kv_piece_pages(piece);
    for (size_t i = 0; i < n; i++)
        if (!kvpool_read_page(d->pool, pages[piece->first_page + i],
                              slot->data + i * d->page_bytes))
            return false;
    memcpy(slot->name, piece->chain.hash, sizeof slot->name);
    slot->head_bytes = kv_file_head_bytes(piece);
    slot->data_bytes = n * d->page_bytes;
    slot->used_us = last_use(piece->first_page);
    kv_file_make_head(&d->id, piece, slot->data, slot->head);
    return true;
}

/* Under the lock: until a slot is free, or that time of the monotonic clock has come. */
static void wait_for_slot(struct kv_disk *d, int64_t until_us)
{
    const struct timespec until = {.tv_sec = (time_t)(until_us / 1000000),
                                   .tv_nsec = (long)(until_us % 1000000) * 1000};
    int rc = 0;
    while (rc == 0 && !d->broken && d->n_queued == SLOTS)
        rc = pthread_cond_timedwait(&d->taken, &d->lock, &until);
}

static enum handed hand_over(struct kv_disk *d, const struct kv_piece *piece,
                             const int32_t *pages, int64_t until_us)
{
    pthread_mutex_lock(&d->lock);
    const bool known = is_queued(d, piece->chain.hash);
    if (!known && until_us > 0)
        wait_for_slot(d, until_us);
    const bool broken = d->broken, full = d->n_queued == SLOTS;
    struct slot *slot = &d->slots[(d->first_slot + d->n_queued) % SLOTS];
    pthread_mutex_unlock(&d->lock);
    if (broken)
        return HANDED_NEVER;
    if (known)
        return HANDED_OVER;
    if (full)
        return HANDED_LATER;
    if (!fill_slot(d, slot, piece, pages)) /* only this thread adds to the queue */
        return HANDED_NEVER;
    pthread_mutex_lock(&d->lock);
    d->n_queued++;
    pthread_cond_signal(&d->queued);
    pthread_mutex_unlock(&d->lock);
    return HANDED_OVER;
}

static void count_given_up(struct kv_disk *d, size_t n_pages)
{
    pthread_mutex_lock(&d->lock);
    d->counters.files_given_up += (n_pages + KV_FILE_PAGES - 1) / KV_FILE_PAGES;
    pthread_mutex_unlock(&d->lock);
}

size_t kv_disk_save(struct kv_disk *d, const char *salt, const int32_t *tokens,
                    size_t first_page, const int32_t *pages, size_t n_pages, int64_t wait_us)
{
    const int64_t until_us =
        wait_us > 0 ? clock_mono_us() + (d->always ? ALWAYS_WAIT_US : wait_us) : 0;
    const size_t n = n_pages < d->pages_max ? n_pages : d->pages_max;
    struct kv_piece piece = {.tokens = tokens};
    if (n * KV_PAGE_TOKENS < d->tokens_min || first_page >= n ||
        kv_chain_begin(&piece.chain, &d->id, salt, NULL) != 0)
        return n_pages;
    for (size_t page = 0; page < n; page++) {
        if (kv_chain_extend(&piece.chain, tokens + page * KV_PAGE_TOKENS, NULL) != 0)
            return n_pages;
        piece.end_page = page + 1;
        if (piece.end_page % KV_FILE_PAGES != 0 && piece.end_page < n)
            continue;
        piece.first_page = page / KV_FILE_PAGES * KV_FILE_PAGES;
        if (piece.end_page <= first_page ||
            kv_folder_touch(&d->folder, piece.chain.hash, last_use(piece.first_page)))
            continue;
        const enum handed handed = hand_over(d, &piece, pages, until_us);
        if (handed == HANDED_NEVER)
            return n_pages;
        if (handed == HANDED_LATER && wait_us > 0)
            count_given_up(d, n - piece.first_page);
        if (handed == HANDED_LATER)
            return piece.first_page > first_page ? piece.first_page : first_page;
    }
    return n_pages;
}

size_t kv_disk_pages_to_save(const struct kv_disk *d, size_t n_found, size_t n_prompt)
{
    const size_t n_shared = n_found >= d->tokens_min ? n_found / KV_PAGE_TOKENS : 0;
    const bool is_cold = n_shared == 0 || n_prompt - n_found >= d->tokens_min;
    const size_t n_cut = n_prompt / KV_PAGE_TOKENS / KV_FILE_PAGES * KV_FILE_PAGES;
    return is_cold && n_cut > n_shared ? n_cut : n_shared;
}

/* ------------------------------------------------------------------ finding and reading */

/* The longest file that ends in (first_page, end_page], both within one cut of the prefix.
 * *chain has come to first_page, and comes to end_page. */
static bool find_piece(struct kv_disk *d, struct kv_chain *chain, const int32_t *tokens,
                       size_t first_page, size_t end_page, struct kv_piece *out)
{
    struct kv_chain ends[KV_FILE_PAGES];
    for (size_t page = first_page; page < end_page; page++) {
        if (kv_chain_extend(chain, tokens + page * KV_PAGE_TOKENS, NULL) != 0)
            return false;
        ends[page - first_page] = *chain;
    }
    const size_t cut = first_page / KV_FILE_PAGES * KV_FILE_PAGES;
    const int64_t used_us = last_use(cut);
    for (size_t end = end_page; end > first_page; end--) {
        const struct kv_chain *at = &ends[end - 1 - first_page];
        if (!kv_folder_touch(&d->folder, at->hash, used_us))
            continue;
        *out = (struct kv_piece){
            .first_page = cut, .end_page = end, .tokens = tokens, .chain = *at};
        return true;
    }
    return false;
}

static size_t next_cut(size_t page)
{
    return (page / KV_FILE_PAGES + 1) * KV_FILE_PAGES;
}

const struct kv_piece *kv_disk_find(struct kv_disk *d, const char *salt, const int32_t *tokens,
                                    size_t first_page, size_t n_pages, size_t *n_pieces)
{
    *n_pieces = 0;
    const size_t n = size_min(n_pages, d->pages_max);
    struct kv_chain chain;
    if (n * KV_PAGE_TOKENS < d->tokens_min || first_page >= n ||
        kv_chain_begin(&chain, &d->id, salt, NULL) != 0)
        return d->pieces;
    for (size_t page = 0; page < first_page; page++) {
        if (kv_chain_extend(&chain, tokens + page * KV_PAGE_TOKENS, NULL) != 0)
            return d->pieces;
        if ((page + 1) % KV_FILE_PAGES == 0) /* what is in memory is in use too */
            kv_folder_touch(&d->folder, chain.hash, last_use(page + 1 - KV_FILE_PAGES));
    }
    for (size_t page = first_page; page < n;) {
        const size_t end = size_min(next_cut(page), n);
        struct kv_piece *piece = &d->pieces[*n_pieces];
        if (!find_piece(d, &chain, tokens, page, end, piece))
            break;
        (*n_pieces)++;
        page = piece->end_page;
        if (page % KV_FILE_PAGES != 0)
            break;
    }
    return d->pieces;
}

/* A file of our own naming that is not what its name says is of no use to anybody. One that
 * cannot be read may be well another day. */
static void say_bad(struct kv_disk *d, const struct kv_piece *piece, const struct err *e)
{
    const bool removed =
        e->code == ERR_FORMAT && kv_folder_remove(&d->folder, piece->chain.hash);
    const uint64_t hash = hash_bytes(piece->chain.hash, SHA256_HEX_BYTES);
    if (removed || hash_set_add(&d->said, hash) == HASH_SET_NEW)
        log_warn("%s/%s.kv is ignored: %s", d->folder.path, piece->chain.hash, e->text);
    pthread_mutex_lock(&d->lock);
    d->counters.files_bad++;
    pthread_mutex_unlock(&d->lock);
}

static void observe(struct rate *r, double units, double us)
{
    const double keep = 1 - 1.0 / (1 << RATE_WINDOW_SHIFT);
    r->units = r->units * keep + units;
    r->us = r->us * keep + us;
}

static void count_loaded(struct kv_disk *d, size_t n_pages, int64_t spent_us)
{
    observe(&d->loading, (double)(n_pages * KV_PAGE_TOKENS), (double)spent_us);
    d->n_refused = 0;
    pthread_mutex_lock(&d->lock);
    d->counters.files_loaded += n_pages > 0;
    d->counters.bytes_loaded += n_pages * d->page_bytes;
    d->counters.tokens_loaded += n_pages * KV_PAGE_TOKENS;
    d->counters.load_us += spent_us;
    pthread_mutex_unlock(&d->lock);
}

size_t kv_disk_read(struct kv_disk *d, const struct kv_piece *piece, size_t first_page,
                    const int32_t *pages)
{
    ASSERT(first_page >= piece->first_page && first_page < piece->end_page);
    const int64_t began_us = clock_mono_us();
    const int fd = kv_folder_open_file(&d->folder, piece->chain.hash);
    if (fd < 0 && errno == ENOENT)
        return 0;
    struct err e = {0};
    size_t n = 0;
    int rc = fd < 0 ? ERR_SET(&e, ERR_IO, "it cannot be opened: %s", strerror(errno))
                    : kv_file_check_head(fd, &d->id, piece, d->head, &e);
    while (rc == 0 && first_page + n < piece->end_page) {
        rc = kv_file_read_page(fd, &d->id, piece, d->head, first_page + n - piece->first_page,
                               d->pool, pages[n], &e);
        n += rc == 0;
    }
    if (fd >= 0)
        close(fd);
    if (rc != 0)
        say_bad(d, piece, &e);
    count_loaded(d, n, clock_mono_us() - began_us);
    return n;
}

/* ------------------------------------------------------------------ what pays */

bool kv_disk_pays(struct kv_disk *d)
{
    const bool known = d->loading.us > 0 && d->prefill.us > 0;
    if (d->always || !known ||
        d->loading.units * d->prefill.us >= d->prefill.units * d->loading.us)
        return true;
    if (++d->n_refused < REFUSALS_MAX)
        return false;
    d->n_refused = 0;
    return true;
}

void kv_disk_note_prefill(struct kv_disk *d, size_t n_tokens, int64_t spent_us)
{
    if (n_tokens > 0)
        observe(&d->prefill, (double)n_tokens, (double)spent_us);
}

struct kvpool *kv_disk_pool(const struct kv_disk *d)
{
    return d->pool;
}

struct kv_disk_counters kv_disk_counters(struct kv_disk *d)
{
    pthread_mutex_lock(&d->lock);
    const struct kv_disk_counters counters = d->counters;
    pthread_mutex_unlock(&d->lock);
    return counters;
}
