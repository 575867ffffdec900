/*
 * Lines of a file, however long, in bounded memory: a line is held up to JOB_BYTES_MAX + 1
 * bytes, what is over is counted and let go.
 */
#include "io/queue_file.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/limits.h"

enum { CHUNK_BYTES = 64 << 10, LINE_BYTES_MAX = JOB_BYTES_MAX + 1, STOP_LATENCY_MS = 100 };

struct file_source {
    int fd;
    _Atomic bool stop;
    char *path;
    int64_t bytes_read, bytes_total;
    int64_t number;
    char *line; /* owned; [capacity] */
    size_t length, capacity;
    uint64_t size;
    size_t chunk_at, chunk_end;
    char chunk[CHUNK_BYTES];
};

static int open_input(struct file_source *f, struct err *e)
{
    struct stat st;
    f->fd = strcmp(f->path, "-") == 0 ? STDIN_FILENO : open(f->path, O_RDONLY | O_CLOEXEC);
    if (f->fd < 0)
        return ERR_SET(e, errno == ENOENT ? ERR_NOTFOUND : ERR_IO, "cannot open %s: %s%s",
                       f->path, strerror(errno), err_advice(errno));
    if (fstat(f->fd, &st) != 0)
        return ERR_SET(e, ERR_IO, "cannot look at %s: %s", f->path, strerror(errno));
    if (S_ISDIR(st.st_mode))
        return ERR_SET(e, ERR_INVALID, "%s is a folder", f->path);
    f->bytes_total = S_ISREG(st.st_mode) ? (int64_t)st.st_size : -1;
    return 0;
}

int file_source_open(const char *path, struct file_source **out, struct err *e)
{
    *out = NULL;
    struct file_source *f = calloc(1, sizeof *f);
    if (!f || !(f->path = strdup(path))) {
        free(f);
        return ERR_SET(e, ERR_NOMEM, "out of memory");
    }
    f->fd = -1;
    const int code = open_input(f, e);
    if (code != 0) {
        file_source_close(f);
        return code;
    }
    *out = f;
    return 0;
}

void file_source_stop(struct file_source *f)
{
    atomic_store(&f->stop, true);
}

/* A pipe may stay silent for ever; whoever stops the run must not wait for it. */
static int wait_for_input(struct file_source *f, struct err *e)
{
    struct pollfd input = {.fd = f->fd, .events = POLLIN};
    while (poll(&input, 1, STOP_LATENCY_MS) <= 0)
        if (atomic_load(&f->stop))
            return ERR_SET(e, ERR_CANCELLED, "%s: stopped", f->path);
    return 0;
}

/* chunk_end 0: the file has ended. */
static int refill(struct file_source *f, struct err *e)
{
    TRY(wait_for_input(f, e));
    ssize_t got;
    do
        got = read(f->fd, f->chunk, sizeof f->chunk);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return ERR_SET(e, ERR_IO, "cannot read %s: %s%s", f->path, strerror(errno),
                       err_advice(errno));
    f->chunk_at = 0;
    f->chunk_end = (size_t)got;
    f->bytes_read += got;
    return 0;
}

static int hold(struct file_source *f, const char *bytes, size_t n, struct err *e)
{
    f->size += n;
    if (n > LINE_BYTES_MAX - f->length)
        n = LINE_BYTES_MAX - f->length;
    if (f->length + n > f->capacity) {
        size_t capacity = f->capacity ? f->capacity : CHUNK_BYTES;
        while (capacity < f->length + n)
            capacity *= 2;
        if (capacity > LINE_BYTES_MAX)
            capacity = LINE_BYTES_MAX;
        char *line = realloc(f->line, capacity);
        if (!line)
            return ERR_SET(e, ERR_NOMEM, "%s line %lld: out of memory", f->path,
                           (long long)f->number + 1);
        f->line = line;
        f->capacity = capacity;
    }
    if (n)
        memcpy(f->line + f->length, bytes, n);
    f->length += n;
    return 0;
}

int file_source_next(struct file_source *f, struct file_line *line, struct err *e)
{
    *line = (struct file_line){0};
    f->length = 0;
    f->size = 0;
    bool has_end = false;
    while (!has_end) {
        if (f->chunk_at == f->chunk_end)
            TRY(refill(f, e));
        if (f->chunk_end == 0)
            break;
        const char *at = f->chunk + f->chunk_at;
        const size_t left = f->chunk_end - f->chunk_at;
        const char *end = memchr(at, '\n', left);
        has_end = end != NULL;
        const size_t n = end ? (size_t)(end - at) : left;
        TRY(hold(f, at, n, e));
        f->chunk_at += n + has_end;
    }
    if (!has_end && f->size == 0)
        return 0;
    line->bytes = f->length ? f->line : "";
    line->length = f->length;
    line->size = f->size;
    line->number = ++f->number;
    return 0;
}

void file_source_progress(const struct file_source *f, int64_t *read, int64_t *total)
{
    *read = f->bytes_read - (int64_t)(f->chunk_end - f->chunk_at);
    *total = f->bytes_total;
}

void file_source_close(struct file_source *f)
{
    if (!f)
        return;
    if (f->fd > STDIN_FILENO)
        close(f->fd);
    free(f->line);
    free(f->path);
    free(f);
}
