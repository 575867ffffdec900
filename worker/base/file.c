#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_TRIES_MAX = 1000 };

static int check_ordinary(int fd, const char *path, const char *wanted, size_t *size,
                          struct err *e)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return ERR_SET(e, ERR_IO, "%s: cannot be examined: %s", path, strerror(errno));
    if (S_ISDIR(info.st_mode))
        return ERR_SET(e, ERR_IO, "%s: is a folder; name the %s in it", path, wanted);
    if (!S_ISREG(info.st_mode))
        return ERR_SET(e, ERR_IO, "%s: is not an ordinary file; name a %s", path, wanted);
    if (info.st_size <= 0)
        return ERR_SET(e, ERR_FORMAT, "%s: is empty; fetch the %s again", path, wanted);
    *size = (size_t)info.st_size;
    return 0;
}

int file_open(const char *path, const char *wanted, int *fd, size_t *size, struct err *e)
{
    const int opened = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (opened < 0)
        return ERR_SET(e, errno == ENOENT ? ERR_NOTFOUND : ERR_IO, "%s: cannot be opened: %s%s",
                       path, strerror(errno), err_advice(errno));
    const int code = check_ordinary(opened, path, wanted, size, e);
    if (code != 0) {
        close(opened);
        return code;
    }
    *fd = opened;
    return 0;
}

int file_read_at(int fd, uint64_t offset, void *out, size_t bytes, struct err *e)
{
    size_t done = 0;
    while (done < bytes) {
        const ssize_t n = pread(fd, (char *)out + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return ERR_SET(e, ERR_IO, "cannot be read: %s%s", strerror(errno),
                           err_advice(errno));
        if (n == 0)
            return ERR_SET(e, ERR_IO, "became shorter while it was read; is it still fetched?");
        done += (size_t)n;
    }
    return 0;
}

int file_write_all(int fd, const void *bytes, size_t length)
{
    size_t done = 0;
    while (done < length) {
        const ssize_t n = write(fd, (const char *)bytes + done, length - done);
        if (n < 0 && errno != EINTR)
            return -1;
        done += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

/* ------------------------------------------------------------------ replacing a file */

static void forget(struct file_replacement *r)
{
    free(r->path);
    free(r->temporary);
    *r = (struct file_replacement){.fd = -1};
}

/* The path's folder with its slash; nothing for the current one. */
static int folder_length(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? (int)(slash - path) + 1 : 0;
}

static int open_temporary(struct file_replacement *r)
{
    for (unsigned i = 0; i < NAME_TRIES_MAX; i++) {
        free(r->temporary);
        if (asprintf(&r->temporary, "%.*s.sheaf-%d-%u", folder_length(r->path), r->path,
                     (int)getpid(), i) < 0) {
            r->temporary = NULL;
            errno = ENOMEM;
            return -1;
        }
        const int fd =
            open(r->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    return -1;
}

int file_replace_begin(const char *path, struct file_replacement *r, struct err *e)
{
    *r = (struct file_replacement){.fd = -1, .path = strdup(path)};
    if (r->path)
        r->fd = open_temporary(r);
    if (r->fd >= 0)
        return 0;
    const int cause = r->path ? errno : ENOMEM;
    forget(r);
    return ERR_SET(e, cause == ENOMEM ? ERR_NOMEM : ERR_IO,
                   "%s: no file can be made in its folder: %s%s", path, strerror(cause),
                   err_advice(cause));
}

int file_replace_write(struct file_replacement *r, const void *bytes, size_t length,
                       struct err *e)
{
    if (file_write_all(r->fd, bytes, length) == 0)
        return 0;
    return ERR_SET(e, ERR_IO, "%s: cannot be written: %s%s", r->path, strerror(errno),
                   err_advice(errno));
}

/* So that the new name, too, outlives a power cut. Not every file system can. */
static void sync_folder(const char *path)
{
    char *folder = NULL;
    if (asprintf(&folder, "%.*s.", folder_length(path), path) < 0)
        return;
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(folder);
}

int file_replace_commit(struct file_replacement *r, struct err *e)
{
    if (fsync(r->fd) != 0 || rename(r->temporary, r->path) != 0) {
        const int code = ERR_SET(e, ERR_IO, "%s: cannot be written: %s%s", r->path,
                                 strerror(errno), err_advice(errno));
        file_replace_abandon(r);
        return code;
    }
    sync_folder(r->path);
    close(r->fd);
    forget(r);
    return 0;
}

void file_replace_abandon(struct file_replacement *r)
{
    if (r->fd < 0)
        return;
    unlink(r->temporary);
    close(r->fd);
    forget(r);
}
