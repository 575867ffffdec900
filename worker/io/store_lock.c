/*
 * One owner a database: <database>.lock, held by flock and removed on a clean close.
 *
 * The file holds the owner's pid in text. A lock file that is there and not held tells that
 * the last owner died. Removing the file and taking it could cross: after the lock is ours, the
 * name must still lead to the file that we locked, else we try again.
 */
#include "io/store_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"

enum { LOCK_TRIES_MAX = 16, LOCK_TEXT_BYTES = 32 };

static int refuse(int fd, const char *db_path, struct err *e)
{
    char text[LOCK_TEXT_BYTES] = "";
    const ssize_t length = pread(fd, text, sizeof text - 1, 0);
    const long pid = length > 0 ? strtol(text, NULL, 10) : 0;
    if (pid > 0)
        return ERR_SET(e, ERR_STATE, "%s is in use by process %ld; one worker owns a database",
                       db_path, pid);
    return ERR_SET(e, ERR_STATE, "%s is in use by another process; one worker owns a database",
                   db_path);
}

static bool names_same_file(int fd, const char *path)
{
    struct stat held, named;
    return fstat(fd, &held) == 0 && stat(path, &named) == 0 && held.st_ino == named.st_ino &&
           held.st_dev == named.st_dev;
}

/* 0 and *fd >= 0: taken; 0 and *fd -1: the file was removed meanwhile. */
static int try_lock(const char *path, const char *db_path, bool *existed, int *fd,
                    struct err *e)
{
    *fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    *existed = *fd < 0 && errno == EEXIST;
    if (*existed)
        *fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (*fd < 0 && errno == ENOENT && *existed)
        return 0;
    if (*fd < 0)
        return ERR_SET(e, ERR_IO, "cannot open %s: %s%s", path, strerror(errno),
                       err_advice(errno));
    if (flock(*fd, LOCK_EX | LOCK_NB) != 0) {
        const int code = errno == EWOULDBLOCK ? refuse(*fd, db_path, e)
                                              : ERR_SET(e, ERR_IO, "cannot lock %s: %s%s", path,
                                                        strerror(errno), err_advice(errno));
        close(*fd);
        *fd = -1;
        return code;
    }
    if (!names_same_file(*fd, path)) {
        close(*fd);
        *fd = -1;
    }
    return 0;
}

static int write_pid(int fd, const char *path, struct err *e)
{
    char text[LOCK_TEXT_BYTES];
    const int length = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)length, 0) != length)
        return ERR_SET(e, ERR_IO, "cannot write %s: %s%s", path, strerror(errno),
                       err_advice(errno));
    return 0;
}

int store_lock_take(struct store_lock *lock, const char *db_path, struct err *e)
{
    /* The same database under two names must meet the same lock. */
    char *real = realpath(db_path, NULL);
    struct buf path = {0};
    buf_printf(&path, "%s.lock", real ? real : db_path);
    free(real);
    *lock = (struct store_lock){.fd = -1, .path = buf_take(&path)};
    if (!lock->path)
        return ERR_SET(e, ERR_NOMEM, "out of memory");
    for (int i = 0; i < LOCK_TRIES_MAX && lock->fd < 0; i++)
        TRY(try_lock(lock->path, db_path, &lock->left_behind, &lock->fd, e));
    if (lock->fd < 0)
        return ERR_SET(e, ERR_STATE, "%s changes hands all the time", lock->path);
    return write_pid(lock->fd, lock->path, e);
}

void store_lock_release(struct store_lock *lock, bool is_clean)
{
    if (lock->path && lock->fd >= 0) {
        if (is_clean || !lock->left_behind)
            unlink(lock->path);
        close(lock->fd);
    }
    free(lock->path);
    *lock = (struct store_lock){.fd = -1};
}
