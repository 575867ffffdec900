#include "disk_tape.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/check.h"
#include "base/rng.h"

enum { FILES_MAX = 16, PATH_BYTES = 4600, THE_FOLDER = FILES_MAX };
enum kind { OP_CREATE, OP_WRITE, OP_CUT, OP_SYNC, OP_UNLINK };

struct op {
    enum kind kind;
    int file;
    size_t at, n; /* OP_CUT: at is the new length */
    char *bytes;
};

static struct {
    bool is_on;
    char folder[PATH_BYTES];
    char *names[FILES_MAX]; /* below the folder */
    int n_files;
    struct op *ops;
    size_t n, capacity;
} tape;

/* ------------------------------------------------------------------ recording */

/* -1: not on the tape. */
static int file_of_path(const char *path)
{
    const size_t length = strlen(tape.folder);
    if (!tape.is_on || strncmp(path, tape.folder, length) != 0)
        return -1;
    if (path[length] == '\0')
        return THE_FOLDER;
    if (path[length] != '/')
        return -1;
    const char *name = path + length + 1;
    const size_t n = strlen(name);
    if (n > 4 && strcmp(name + n - 4, "-shm") == 0)
        return -1;
    for (int i = 0; i < tape.n_files; i++)
        if (strcmp(tape.names[i], name) == 0)
            return i;
    ASSERT(tape.n_files < FILES_MAX);
    tape.names[tape.n_files] = strdup(name);
    ASSERT(tape.names[tape.n_files]);
    return tape.n_files++;
}

static int file_of_fd(int fd)
{
    char link[64], path[PATH_BYTES];
    if (!tape.is_on)
        return -1;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return -1;
    path[length] = '\0';
    return file_of_path(path);
}

static void record(int file, enum kind kind, size_t at, const void *bytes, size_t n)
{
    if (file < 0)
        return;
    if (tape.n == tape.capacity) {
        tape.capacity = tape.capacity ? 2 * tape.capacity : 256;
        tape.ops = realloc(tape.ops, tape.capacity * sizeof tape.ops[0]);
        ASSERT(tape.ops);
    }
    struct op *op = &tape.ops[tape.n++];
    *op = (struct op){.kind = kind, .file = file, .at = at, .n = n};
    if (n > 0) {
        op->bytes = malloc(n);
        ASSERT(op->bytes);
        memcpy(op->bytes, bytes, n);
    }
}

void disk_tape_begin(const char *folder)
{
    for (size_t i = 0; i < tape.n; i++)
        free(tape.ops[i].bytes);
    for (int i = 0; i < tape.n_files; i++)
        free(tape.names[i]);
    tape.n = 0;
    tape.n_files = 0;
    snprintf(tape.folder, sizeof tape.folder, "%s", folder);
    tape.is_on = true;
}

void disk_tape_end(void)
{
    tape.is_on = false;
}

size_t disk_tape_length(void)
{
    return tape.n;
}

size_t disk_tape_syncs(size_t length)
{
    size_t n = 0;
    for (size_t i = 0; i < length; i++)
        n += tape.ops[i].kind == OP_SYNC;
    return n;
}

/* ------------------------------------------------------------------ in place of libc's */

static int open_and_record(const char *path, int flags, mode_t mode)
{
    const bool is_new = (flags & O_CREAT) && access(path, F_OK) != 0;
    const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    if (fd >= 0 && is_new)
        record(file_of_path(path), OP_CREATE, 0, NULL, 0);
    return fd;
}

#define WITH_MODE(flags, call)                                                                 \
    mode_t mode = 0;                                                                           \
    if ((flags)&O_CREAT) {                                                                     \
        va_list args;                                                                          \
        va_start(args, flags);                                                                 \
        mode = va_arg(args, mode_t);                                                           \
        va_end(args);                                                                          \
    }                                                                                          \
    return call

int open(const char *path, int flags, ...)
{
    WITH_MODE(flags, open_and_record(path, flags, mode));
}

int open64(const char *path, int flags, ...)
{
    WITH_MODE(flags, open_and_record(path, flags, mode));
}

static ssize_t write_and_record(int fd, const void *bytes, size_t n, off64_t at)
{
    const ssize_t done = syscall(SYS_pwrite64, fd, bytes, n, at);
    if (done > 0)
        record(file_of_fd(fd), OP_WRITE, (size_t)at, bytes, (size_t)done);
    return done;
}

ssize_t pwrite(int fd, const void *bytes, size_t n, off_t at)
{
    return write_and_record(fd, bytes, n, at);
}

ssize_t pwrite64(int fd, const void *bytes, size_t n, off64_t at)
{
    return write_and_record(fd, bytes, n, at);
}

static int cut_and_record(int fd, off64_t length)
{
    const int rc = (int)syscall(SYS_ftruncate, fd, length);
    if (rc == 0)
        record(file_of_fd(fd), OP_CUT, (size_t)length, NULL, 0);
    return rc;
}

int ftruncate(int fd, off_t length)
{
    return cut_and_record(fd, length);
}

int ftruncate64(int fd, off64_t length)
{
    return cut_and_record(fd, length);
}

/* There is no need to wait for a real disk. */
int fsync(int fd)
{
    record(file_of_fd(fd), OP_SYNC, 0, NULL, 0);
    return 0;
}

int fdatasync(int fd)
{
    return fsync(fd);
}

int unlink(const char *path)
{
    const int rc = (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    if (rc == 0)
        record(file_of_path(path), OP_UNLINK, 0, NULL, 0);
    return rc;
}

/* ------------------------------------------------------------------ images */

struct image {
    bool exists;
    char *bytes;
    size_t length, capacity;
};

static void set_length(struct image *image, size_t length)
{
    if (length > image->capacity) {
        image->capacity = 2 * length;
        image->bytes = realloc(image->bytes, image->capacity);
        ASSERT(image->bytes);
    }
    if (length > image->length)
        memset(image->bytes + image->length, 0, length - image->length);
    image->length = length;
}

static void apply(struct image *image, const struct op *op, size_t n)
{
    switch (op->kind) {
    case OP_CREATE: image->exists = true; break;
    case OP_UNLINK:
        *image = (struct image){.bytes = image->bytes, .capacity = image->capacity};
        break;
    case OP_CUT: set_length(image, op->at); break;
    case OP_SYNC: break;
    case OP_WRITE:
        if (op->at + n > image->length)
            set_length(image, op->at + n);
        memcpy(image->bytes + op->at, op->bytes, n);
        break;
    }
}

/* The calls before the one with this number are safe: the last sync of the file, or, for names,
 * of the folder. */
static size_t synced_until(int file, size_t length)
{
    size_t until = 0;
    for (size_t i = 0; i < length; i++)
        if (tape.ops[i].file == file && tape.ops[i].kind == OP_SYNC)
            until = i;
    return until;
}

static bool is_made_again(size_t unlinked, size_t length)
{
    for (size_t i = unlinked + 1; i < length; i++)
        if (tape.ops[i].file == tape.ops[unlinked].file && tape.ops[i].kind == OP_CREATE)
            return true;
    return false;
}

/* How much of an unsynced call is left; -1: nothing. A file that was made anew has lost its
 * former self for certain. */
static long left_of(size_t i, size_t length, enum disk_tape_rest rest, uint64_t seed)
{
    const struct op *op = &tape.ops[i];
    if (op->kind == OP_UNLINK && is_made_again(i, length))
        return 0;
    if (rest != DISK_TAPE_SOME)
        return rest == DISK_TAPE_ALL ? (long)op->n : -1;
    /* From images that keep nearly all to images that keep next to nothing. */
    const double kept = rng_uniform(seed, 0, 0), draw = rng_uniform(seed, 1, i);
    if (draw >= kept)
        return -1;
    const bool is_torn = op->kind == OP_WRITE && rng_uniform(seed, 2, i) < 0.2;
    return (long)(is_torn ? op->n / 2 : op->n);
}

static void write_image(const struct image *image, const char *into, const char *name)
{
    char path[PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/%s", into, name);
    const long fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    ASSERT(fd >= 0);
    ASSERT(syscall(SYS_write, fd, image->bytes, image->length) == (long)image->length);
    syscall(SYS_close, fd);
}

void disk_tape_image(size_t length, enum disk_tape_rest rest, uint64_t seed, const char *into)
{
    const size_t names_safe = synced_until(THE_FOLDER, length);
    for (int file = 0; file < tape.n_files; file++) {
        struct image image = {0};
        const size_t bytes_safe = synced_until(file, length);
        for (size_t i = 0; i < length; i++) {
            if (tape.ops[i].file != file)
                continue;
            size_t safe = bytes_safe;
            if (tape.ops[i].kind == OP_UNLINK)
                safe = names_safe;
            if (tape.ops[i].kind == OP_CREATE) /* its own sync keeps the name, too */
                safe = names_safe > bytes_safe ? names_safe : bytes_safe;
            const long left = i < safe ? (long)tape.ops[i].n : left_of(i, length, rest, seed);
            if (left >= 0)
                apply(&image, &tape.ops[i], (size_t)left);
        }
        if (image.exists)
            write_image(&image, into, tape.names[file]);
        free(image.bytes);
    }
}
