/*
 * Preloaded before a program, this is its bad disk: the n-th call on files below a folder
 * fails.
 *
 * BAD_DISK_FOLDER  the folder; it and the paths the program uses are absolute
 * BAD_DISK_CALLS   which calls count, of: write sync cut open name read (empty: all but read)
 * BAD_DISK_ERROR   ENOSPC, EIO, EROFS; or SHORT: the n-th write writes half of its bytes, and
 *                  those after it that are to fail do with ENOSPC
 * and NTH, COUNT, REPORT as in fault_plan.h.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include "fault_plan.h"

enum { FDS_MAX = 1024 };
enum group {
    GROUP_WRITE = 1,
    GROUP_SYNC = 2,
    GROUP_CUT = 4,
    GROUP_OPEN = 8,
    GROUP_NAME = 16,
    GROUP_READ = 32
};

static struct fault_plan plan;
static char folder[FAULT_TEXT_BYTES];
static unsigned groups;
static int error;
static bool is_short;
static _Atomic bool is_ours[FDS_MAX]; /* descriptors of files below the folder */

static unsigned read_groups(const char *text)
{
    static const char *const names[] = {"write", "sync", "cut", "open", "name", "read"};
    unsigned found = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strstr(text, names[i]))
            found |= 1u << i;
    return found ? found : GROUP_READ - 1;
}

static int read_error(const char *name)
{
    return strcmp(name, "EIO") == 0 ? EIO : strcmp(name, "EROFS") == 0 ? EROFS : ENOSPC;
}

__attribute__((constructor)) static void begin(void)
{
    const char *name = getenv("BAD_DISK_ERROR");
    const char *calls = getenv("BAD_DISK_CALLS");
    const char *below = getenv("BAD_DISK_FOLDER");
    snprintf(folder, sizeof folder, "%s", below ? below : "");
    groups = read_groups(calls ? calls : "");
    error = read_error(name ? name : "");
    is_short = name && strcmp(name, "SHORT") == 0;
    fault_plan_read(&plan, "BAD_DISK");
}

__attribute__((destructor)) static void end(void)
{
    fault_plan_report(&plan);
}

static bool is_watched(int fd)
{
    return fd >= 0 && fd < FDS_MAX && atomic_load(&is_ours[fd]);
}

/* A relative path is below the folder when its folder, open as dir, is. */
static bool is_below(int dir, const char *path)
{
    const size_t length = strlen(folder);
    if (path[0] != '/')
        return is_watched(dir);
    return length > 0 && strncmp(path, folder, length) == 0 &&
           (path[length] == '/' || path[length] == '\0');
}

static bool fails(enum group group, const char *call, const char *object)
{
    if (!(groups & group))
        return false;
    const bool strikes = fault_plan_strikes(&plan, call, object);
    if (strikes)
        errno = error;
    return strikes;
}

static bool fails_path(enum group group, const char *call, int dir, const char *path)
{
    return is_below(dir, path) && fails(group, call, path);
}

static bool fails_fd(enum group group, const char *call, int fd)
{
    char link[32], path[FAULT_TEXT_BYTES];
    if (!is_watched(fd))
        return false;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = '\0';
    return fails(group, call, path);
}

/* A write that fails, or writes half: then *n is less than before. */
static bool fails_write(const char *call, int fd, size_t *n)
{
    if (!fails_fd(GROUP_WRITE, call, fd))
        return false;
    if (!is_short || *n < 2 || atomic_load(&plan.failed) > 1)
        return true;
    *n /= 2;
    return false;
}

static int note(long fd, bool is_below_folder)
{
    if (fd >= 0 && fd < FDS_MAX)
        atomic_store(&is_ours[fd], is_below_folder);
    return (int)fd;
}

static int open_at(int dir, const char *path, int flags, mode_t mode)
{
    if (fails_path(GROUP_OPEN, "open", dir, path))
        return -1;
    return note(syscall(SYS_openat, dir, path, flags, mode), is_below(dir, path));
}

/* ------------------------------------------------------------------ in place of libc's */

#define OPEN_MODE(flags)                                                                       \
    mode_t mode = 0;                                                                           \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                                                     \
        va_list args;                                                                          \
        va_start(args, flags);                                                                 \
        mode = va_arg(args, mode_t);                                                           \
        va_end(args);                                                                          \
    }

int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);

int open(const char *path, int flags, ...)
{
    OPEN_MODE(flags)
    return open_at(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    OPEN_MODE(flags)
    return open_at(AT_FDCWD, path, flags, mode);
}

int openat(int dir, const char *path, int flags, ...)
{
    OPEN_MODE(flags)
    return open_at(dir, path, flags, mode);
}

int __open_2(const char *path, int flags)
{
    return open_at(AT_FDCWD, path, flags, 0);
}

int __open64_2(const char *path, int flags)
{
    return open_at(AT_FDCWD, path, flags, 0);
}

int close(int fd)
{
    if (fd >= 0 && fd < FDS_MAX)
        atomic_store(&is_ours[fd], false);
    return (int)syscall(SYS_close, fd);
}

ssize_t write(int fd, const void *bytes, size_t n)
{
    return fails_write("write", fd, &n) ? -1 : syscall(SYS_write, fd, bytes, n);
}

ssize_t pwrite(int fd, const void *bytes, size_t n, off_t at)
{
    return fails_write("pwrite", fd, &n) ? -1 : syscall(SYS_pwrite64, fd, bytes, n, at);
}

ssize_t pwrite64(int fd, const void *bytes, size_t n, off64_t at)
{
    return fails_write("pwrite", fd, &n) ? -1 : syscall(SYS_pwrite64, fd, bytes, n, at);
}

ssize_t read(int fd, void *bytes, size_t n)
{
    return fails_fd(GROUP_READ, "read", fd) ? -1 : syscall(SYS_read, fd, bytes, n);
}

ssize_t pread(int fd, void *bytes, size_t n, off_t at)
{
    return fails_fd(GROUP_READ, "pread", fd) ? -1 : syscall(SYS_pread64, fd, bytes, n, at);
}

ssize_t pread64(int fd, void *bytes, size_t n, off64_t at)
{
    return fails_fd(GROUP_READ, "pread", fd) ? -1 : syscall(SYS_pread64, fd, bytes, n, at);
}

int fsync(int fd)
{
    return fails_fd(GROUP_SYNC, "fsync", fd) ? -1 : (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
    return fails_fd(GROUP_SYNC, "fdatasync", fd) ? -1 : (int)syscall(SYS_fdatasync, fd);
}

int ftruncate(int fd, off_t length)
{
    return fails_fd(GROUP_CUT, "ftruncate", fd) ? -1 : (int)syscall(SYS_ftruncate, fd, length);
}

int ftruncate64(int fd, off64_t length)
{
    return fails_fd(GROUP_CUT, "ftruncate", fd) ? -1 : (int)syscall(SYS_ftruncate, fd, length);
}

int renameat(int from_dir, const char *from, int to_dir, const char *to)
{
    if (fails_path(GROUP_NAME, "rename", to_dir, to))
        return -1;
    return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, 0);
}

int rename(const char *from, const char *to)
{
    return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

int unlinkat(int dir, const char *path, int flags)
{
    if (fails_path(GROUP_NAME, "unlink", dir, path))
        return -1;
    return (int)syscall(SYS_unlinkat, dir, path, flags);
}

int unlink(const char *path)
{
    return unlinkat(AT_FDCWD, path, 0);
}

int mkdir(const char *path, mode_t mode)
{
    if (fails_path(GROUP_NAME, "mkdir", AT_FDCWD, path))
        return -1;
    return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}
