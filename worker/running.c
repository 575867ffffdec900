#include "running.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/limits.h"

#define RUNNING_MAGIC "SHEAFRUN"

enum { RUNNING_VERSION = 1, SHA_DIGITS = 64, SLOTS_MAX = RUNNING_ENGINE + ENGINE_SEQS_MAX };

struct header {
    char magic[8];
    uint32_t version, n_slots, slot_bytes;
    _Atomic uint32_t mark; /* 0, or 1 + the hand that crashed */
    int64_t pid;
    char rest[32];
};

struct slot {
    _Atomic uint32_t is_used; /* written last */
    int32_t partition;
    int64_t offset;
    char payload_sha256[SHA_DIGITS]; /* no NUL */
    char topic[PATH_MAX];
    char rest[48];
};
static_assert(sizeof(struct header) == 64 && sizeof(struct slot) % 64 == 0,
              "a name is not torn more than it must be");
static_assert(ATOMIC_INT_LOCK_FREE == 2, "a signal handler stores the mark");

struct running {
    char *path;
    struct header *header; /* the mapping */
    struct slot *slots;
    size_t n_slots;
    size_t bytes;
};

/* The same database under two names must meet the same file. */
static char *path_of(const char *db_path)
{
    char *real = realpath(db_path, NULL);
    char *path = NULL;
    if (asprintf(&path, "%s-running", real ? real : db_path) < 0)
        path = NULL;
    free(real);
    return path;
}

/* ------------------------------------------------------------------ writing */

static int map_file(struct running *r, struct err *e)
{
    unlink(r->path);
    const int fd = open(r->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return ERR_SET(e, ERR_IO, "cannot create %s: %s%s", r->path, strerror(errno),
                       err_advice(errno));
    const int why = posix_fallocate(fd, 0, (off_t)r->bytes);
    void *at =
        why == 0 ? mmap(NULL, r->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    const int cause = why ? why : errno;
    close(fd);
    if (at == MAP_FAILED)
        return ERR_SET(e, ERR_IO, "cannot map %s: %s%s", r->path, strerror(cause),
                       err_advice(cause));
    r->header = at;
    return 0;
}

int running_open(const char *db_path, size_t n_engine, struct running **out, struct err *e)
{
    *out = NULL;
    ASSERT(n_engine <= ENGINE_SEQS_MAX);
    struct running *r = calloc(1, sizeof *r);
    char *path = path_of(db_path);
    if (!r || !path) {
        free(r);
        free(path);
        return ERR_SET(e, ERR_NOMEM, "no memory for the list of running jobs");
    }
    r->path = path;
    r->n_slots = RUNNING_ENGINE + n_engine;
    r->bytes = sizeof(struct header) + r->n_slots * sizeof(struct slot);
    const int rc = map_file(r, e);
    if (rc != 0) {
        running_close(r);
        return rc;
    }
    r->slots = (struct slot *)(r->header + 1);
    r->header->version = RUNNING_VERSION;
    r->header->n_slots = (uint32_t)r->n_slots;
    r->header->slot_bytes = sizeof(struct slot);
    r->header->pid = getpid();
    memcpy(r->header->magic, RUNNING_MAGIC, sizeof r->header->magic);
    *out = r;
    return 0;
}

void running_close(struct running *r)
{
    if (!r)
        return;
    if (r->header) {
        if (atomic_load(&r->header->mark) == 0)
            unlink(r->path);
        munmap(r->header, r->bytes);
    }
    free(r->path);
    free(r);
}

void running_put(struct running *r, size_t slot, const struct job_source *source,
                 const char *payload_sha256)
{
    if (!r)
        return;
    ASSERT(slot < r->n_slots);
    struct slot *s = &r->slots[slot];
    const size_t n = strlen(source->topic);
    if (n >= sizeof s->topic || strlen(payload_sha256) != SHA_DIGITS)
        return; /* no name that could be told */
    atomic_store_explicit(&s->is_used, 0, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst);
    s->partition = source->partition;
    s->offset = source->offset;
    memcpy(s->payload_sha256, payload_sha256, SHA_DIGITS);
    memcpy(s->topic, source->topic, n + 1);
    atomic_store_explicit(&s->is_used, 1, memory_order_release);
}

void running_clear(struct running *r, size_t slot)
{
    if (!r)
        return;
    ASSERT(slot < r->n_slots);
    atomic_store_explicit(&r->slots[slot].is_used, 0, memory_order_release);
}

void running_mark_crashed(struct running *r, enum running_hand hand)
{
    uint32_t none = 0;
    if (r)
        atomic_compare_exchange_strong(&r->header->mark, &none, 1 + (uint32_t)hand);
}

void running_describe(struct running *r, char *out, size_t capacity)
{
    enum { NAMED_MAX = 8, TOPIC_BYTES = 80 };
    size_t at = 0, n = 0;
    snprintf(out, capacity, "none that is known");
    for (size_t i = RUNNING_ENGINE; r && i < r->n_slots; i++) {
        const struct slot *s = &r->slots[i];
        if (!atomic_load(&s->is_used) || n++ >= NAMED_MAX || at >= capacity)
            continue;
        at += (size_t)snprintf(out + at, capacity - at, "%s%.*s-%d-%lld", at ? ", " : "",
                               (int)TOPIC_BYTES, s->topic, (int)s->partition,
                               (long long)s->offset);
    }
    if (n > NAMED_MAX && at < capacity)
        snprintf(out + at, capacity - at, " and %zu more", n - NAMED_MAX);
}

/* ------------------------------------------------------------------ reading */

static bool is_sha(const char *digits)
{
    for (size_t i = 0; i < SHA_DIGITS; i++)
        if (!strchr("0123456789abcdef", digits[i]) || digits[i] == '\0')
            return false;
    return true;
}

/* False: no memory. What is no name is passed over. */
static bool take_name(struct running_last *last, const struct slot *s, size_t slot)
{
    if (!s->is_used || !memchr(s->topic, '\0', sizeof s->topic) || !is_sha(s->payload_sha256))
        return true;
    struct running_name *name = &last->names[last->n];
    *name = (struct running_name){
        .topic = strdup(s->topic),
        .partition = s->partition,
        .offset = s->offset,
        .hand = slot < RUNNING_ENGINE ? (enum running_hand)slot : RUNNING_ENGINE,
    };
    memcpy(name->payload_sha256, s->payload_sha256, SHA_DIGITS);
    last->n += name->topic != NULL;
    return name->topic != NULL;
}

static int take_names(struct running_last *last, const void *bytes, size_t length,
                      struct err *e)
{
    const struct header *h = bytes;
    const struct slot *slots = (const struct slot *)(h + 1);
    if (length < sizeof *h || memcmp(h->magic, RUNNING_MAGIC, sizeof h->magic) != 0 ||
        h->version != RUNNING_VERSION || h->slot_bytes != sizeof(struct slot))
        return 0;
    const size_t n = (length - sizeof *h) / sizeof slots[0];
    last->names = calloc(n + 1, sizeof last->names[0]);
    if (!last->names)
        return ERR_SET(e, ERR_NOMEM, "no memory for the list of running jobs");
    last->pid = h->pid;
    last->crashed = h->mark >= 1 && h->mark <= RUNNING_HANDS;
    if (last->crashed)
        last->crashed_in = (enum running_hand)(h->mark - 1);
    for (size_t i = 0; i < n; i++)
        if (!take_name(last, &slots[i], i))
            return ERR_SET(e, ERR_NOMEM, "no memory for the list of running jobs");
    return 0;
}

static int cannot_read(const char *path, struct err *e)
{
    return ERR_SET(e, ERR_IO, "cannot read %s: %s%s", path, strerror(errno), err_advice(errno));
}

static int read_file(const char *path, void *bytes, size_t capacity, size_t *length,
                     struct err *e)
{
    *length = 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT)
        return 0;
    if (fd < 0)
        return cannot_read(path, e);
    ssize_t n = 1;
    while (n > 0 && *length < capacity) {
        n = read(fd, (char *)bytes + *length, capacity - *length);
        *length += n > 0 ? (size_t)n : 0;
    }
    const int rc = n < 0 ? cannot_read(path, e) : 0;
    close(fd);
    return rc;
}

int running_read(const char *db_path, struct running_last *out, struct err *e)
{
    const size_t capacity = sizeof(struct header) + SLOTS_MAX * sizeof(struct slot);
    *out = (struct running_last){0};
    char *path = path_of(db_path);
    void *bytes = malloc(capacity);
    size_t length = 0;
    int rc = path && bytes ? read_file(path, bytes, capacity, &length, e)
                           : ERR_SET(e, ERR_NOMEM, "no memory for the list of running jobs");
    if (rc == 0)
        rc = take_names(out, bytes, length, e);
    if (rc != 0)
        running_last_fini(out);
    free(bytes);
    free(path);
    return rc;
}

void running_last_fini(struct running_last *last)
{
    for (size_t i = 0; i < last->n; i++)
        free(last->names[i].topic);
    free(last->names);
    *last = (struct running_last){0};
}

void running_remove(const char *db_path)
{
    char *path = path_of(db_path);
    if (path)
        unlink(path);
    free(path);
}
