/* The output file; the steps and what they promise are in queue_file.h. */
#include "io/queue_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"

enum { REPLAY_LINES_MAX = 256, REPLAY_BYTES_MAX = 4 << 20 };

struct file_sink {
    int fd;
    bool is_stdout;
    bool is_torn; /* there may be bytes after good */
    char *path;   /* absolute; "-" for stdout */
    char *topic;
    struct store *store; /* borrowed */
    int64_t good;
};

/* After which failures the same write can succeed later. */
static unsigned flags_of(int error)
{
    const bool may_pass =
        error == ENOSPC || error == EDQUOT || error == EFBIG || error == EIO || error == EAGAIN;
    return may_pass ? ERR_RETRY : 0;
}

static int fail(const struct file_sink *f, const char *what, struct err *e)
{
    const int error = errno;
    return ERR_SET_FLAGS(e, ERR_IO, f->is_stdout ? 0 : flags_of(error), "cannot %s %s: %s%s",
                         what, f->is_stdout ? "stdout" : f->path, strerror(error),
                         err_advice(error));
}

static int cut(struct file_sink *f, struct err *e)
{
    if (!f->is_stdout && ftruncate(f->fd, f->good) != 0)
        return fail(f, "cut", e);
    f->is_torn = false;
    return 0;
}

static int append(struct file_sink *f, const char *bytes, size_t n, struct err *e)
{
    for (size_t done = 0; done < n;) {
        const ssize_t got = f->is_stdout
                                ? write(f->fd, bytes + done, n - done)
                                : pwrite(f->fd, bytes + done, n - done, f->good + (off_t)done);
        if (got < 0 && errno != EINTR)
            return fail(f, "write", e);
        done += got > 0 ? (size_t)got : 0;
    }
    if (fdatasync(f->fd) != 0 && !f->is_stdout)
        return fail(f, "sync", e);
    return 0;
}

/* Steps 1 to 3. A failure leaves the file torn at worst; the next write or opening cuts it. */
static int commit_bytes(struct file_sink *f, const struct buf *bytes,
                        const struct job_source *const *sources, size_t n, struct err *e)
{
    if (!buf_ok(bytes))
        return ERR_SET_FLAGS(e, ERR_NOMEM, ERR_RETRY, "out of memory");
    if (f->is_torn && f->is_stdout)
        return ERR_SET(e, ERR_IO, "stdout broke off in the middle of a line");
    if (f->is_torn)
        TRY(cut(f, e));
    f->is_torn = true;
    const int code = append(f, buf_str(bytes), bytes->length, e);
    if (code != 0) {
        if (!f->is_stdout)
            cut(f, NULL);
        return code;
    }
    /* Not cut when this fails: a commit that reported an error may still prove durable. */
    const int64_t good = f->good + (int64_t)bytes->length;
    TRY(store_mark_written(f->store, f->topic, f->path, good, sources, n, e));
    f->good = good;
    f->is_torn = false;
    return 0;
}

int file_sink_write(struct file_sink *f, const struct job_source *const *sources,
                    const char *const *lines, size_t n, struct err *e)
{
    struct buf bytes = {0};
    for (size_t i = 0; i < n; i++) {
        buf_append_str(&bytes, lines[i]);
        buf_append_char(&bytes, '\n');
    }
    const int code = n ? commit_bytes(f, &bytes, sources, n, e) : 0;
    buf_fini(&bytes);
    return code;
}

/* Stored lines on their way into the file, gathered so that not each one is synced alone. */
struct replay {
    struct file_sink *sink;
    struct buf bytes;
    size_t n;
    struct job_source sources[REPLAY_LINES_MAX];
};

static int replay_flush(struct replay *r, struct err *e)
{
    const struct job_source *sources[REPLAY_LINES_MAX];
    for (size_t i = 0; i < r->n; i++)
        sources[i] = &r->sources[i];
    const int code = r->n ? commit_bytes(r->sink, &r->bytes, sources, r->n, e) : 0;
    r->n = 0;
    buf_truncate(&r->bytes, 0);
    return code;
}

static int replay_line(void *ctx, const struct job_source *source, const char *custom_id,
                       const char *line, struct err *e)
{
    struct replay *r = ctx;
    (void)custom_id;
    if (!source->is_file || strcmp(source->topic, r->sink->topic) != 0)
        return 0;
    r->sources[r->n] = *source;
    r->sources[r->n++].topic = r->sink->topic;
    buf_append_str(&r->bytes, line);
    buf_append_char(&r->bytes, '\n');
    return r->n == REPLAY_LINES_MAX || r->bytes.length >= REPLAY_BYTES_MAX ? replay_flush(r, e)
                                                                           : 0;
}

static int replay_unpublished(struct file_sink *f, struct err *e)
{
    struct replay r = {.sink = f};
    int code = store_each_unpublished(f->store, replay_line, &r, e);
    if (code == 0)
        code = replay_flush(&r, e);
    buf_fini(&r.bytes);
    return code;
}

/* The transaction first: killed between the two, the next opening cuts the file. */
static int start_anew(struct file_sink *f, struct err *e)
{
    TRY(store_reset_sink(f->store, f->topic, f->path, e));
    f->good = 0;
    return cut(f, e);
}

static bool ends_a_line(int fd, int64_t bytes)
{
    char last;
    return bytes == 0 || (pread(fd, &last, 1, bytes - 1) == 1 && last == '\n');
}

static int repair(struct file_sink *f, int64_t size, bool overwrite, struct err *e)
{
    struct store_sink known;
    TRY(store_find_sink(f->store, f->topic, &known, e));
    const bool is_ours = known.path && strcmp(known.path, f->path) == 0;
    const bool is_whole = is_ours && size >= known.bytes && ends_a_line(f->fd, known.bytes);
    const bool is_stale = known.is_stale;
    f->good = is_whole ? known.bytes : 0;
    store_sink_fini(&known);
    if (is_whole && !is_stale)
        return cut(f, e);
    if (size > 0 && !is_whole && !overwrite)
        return ERR_SET(e, ERR_STATE,
                       is_ours ? "%s was changed by someone else since it was written; move it "
                                 "away or choose to overwrite it"
                               : "%s holds data that this run did not write; name another file "
                                 "or choose to overwrite it",
                       f->path);
    return start_anew(f, e);
}

/* A file's name is durable when its folder is. Not every file system can; no harm then. */
static void sync_folder(const char *path)
{
    char *folder = strdup(path);
    char *slash = folder ? strrchr(folder, '/') : NULL;
    if (slash) {
        slash[slash == folder] = '\0';
        const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0) {
            fsync(fd);
            close(fd);
        }
    }
    free(folder);
}

static int open_output(struct file_sink *f, const char *path, bool overwrite, struct err *e)
{
    struct stat st;
    f->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0600);
    if (f->fd < 0)
        return ERR_SET(e, ERR_IO, "cannot open %s: %s%s", path, strerror(errno),
                       err_advice(errno));
    if (fstat(f->fd, &st) != 0 || !S_ISREG(st.st_mode))
        return ERR_SET(e, ERR_INVALID, "%s is not a regular file; - is stdout", path);
    if (flock(f->fd, LOCK_EX | LOCK_NB) != 0)
        return ERR_SET(e, ERR_STATE, "%s is being written by another process", path);
    f->path = realpath(path, NULL);
    if (!f->path)
        return ERR_SET(e, ERR_IO, "cannot resolve %s: %s", path, strerror(errno));
    sync_folder(f->path);
    return repair(f, (int64_t)st.st_size, overwrite, e);
}

static int open_stdout(struct file_sink *f, struct err *e)
{
    f->fd = STDOUT_FILENO;
    f->is_stdout = true;
    f->path = strdup("-");
    if (!f->path)
        return ERR_SET(e, ERR_NOMEM, "out of memory");
    return start_anew(f, e);
}

int file_sink_open(const char *path, const char *topic, struct store *store, bool overwrite,
                   struct file_sink **out, struct err *e)
{
    *out = NULL;
    struct file_sink *f = calloc(1, sizeof *f);
    if (!f)
        return ERR_SET(e, ERR_NOMEM, "out of memory");
    f->fd = -1;
    f->store = store;
    f->topic = strdup(topic);
    int code = f->topic ? 0 : ERR_SET(e, ERR_NOMEM, "out of memory");
    if (code == 0)
        code = strcmp(path, "-") == 0 ? open_stdout(f, e) : open_output(f, path, overwrite, e);
    /* On stdout each known line comes again when its input is read: it may be another input. */
    if (code == 0 && strcmp(path, "-") != 0)
        code = replay_unpublished(f, e);
    if (code != 0) {
        file_sink_close(f);
        return code;
    }
    *out = f;
    return 0;
}

int file_sink_finish(struct file_sink *f, struct err *e)
{
    struct store_sink known;
    TRY(store_find_sink(f->store, f->topic, &known, e));
    const bool is_stale = known.is_stale;
    store_sink_fini(&known);
    if (!is_stale || f->is_stdout)
        return 0;
    TRY(start_anew(f, e));
    return replay_unpublished(f, e);
}

int64_t file_sink_bytes(const struct file_sink *f)
{
    return f->good;
}

void file_sink_close(struct file_sink *f)
{
    if (!f)
        return;
    if (!f->is_stdout && f->fd >= 0)
        close(f->fd);
    free(f->path);
    free(f->topic);
    free(f);
}
