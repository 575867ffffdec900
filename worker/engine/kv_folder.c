#include "engine/kv_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/file.h"
#include "base/sha256.h"

#define FILE_SUFFIX      ".kv"
#define TEMPORARY_PREFIX "tmp-"

enum { HEX = SHA256_HEX_BYTES - 1, NAME_BYTES = SHA256_HEX_BYTES + 3, NAME_TRIES_MAX = 1000 };

/* ------------------------------------------------------------------ names and listing */

static void file_name(const char *name, char out[NAME_BYTES])
{
    ASSERT(strlen(name) == HEX);
    snprintf(out, NAME_BYTES, "%s" FILE_SUFFIX, name);
}

static bool is_file_name(const char *entry)
{
    return strspn(entry, "0123456789abcdef") == HEX && strcmp(entry + HEX, FILE_SUFFIX) == 0;
}

static bool is_temporary_name(const char *entry)
{
    return strncmp(entry, TEMPORARY_PREFIX, strlen(TEMPORARY_PREFIX)) == 0;
}

/* A stream of its own, so that one reading does not move another's place. */
static DIR *list_folder(const struct kv_folder *f, struct err *e)
{
    const int fd = openat(f->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        ERR_SET(e, ERR_IO, "cannot list %s: %s%s", f->path, strerror(errno), err_advice(errno));
        if (fd >= 0)
            close(fd);
    }
    return dir;
}

/* ------------------------------------------------------------------ opening */

/* A living writer holds a lock on its file. */
static void remove_stray(const struct kv_folder *f, const char *entry)
{
    const int fd = openat(f->fd, entry, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0)
        unlinkat(f->fd, entry, 0);
    close(fd);
}

static int remove_strays(const struct kv_folder *f, struct err *e)
{
    DIR *dir = list_folder(f, e);
    if (!dir)
        return ERR_IO;
    const struct dirent *entry;
    while ((entry = readdir(dir)) != NULL)
        if (is_temporary_name(entry->d_name))
            remove_stray(f, entry->d_name);
    closedir(dir);
    return 0;
}

static int check_owner(const struct kv_folder *f, struct err *e)
{
    struct stat st;
    if (fstat(f->fd, &st) != 0)
        return ERR_SET(e, ERR_IO, "cannot look at %s: %s", f->path, strerror(errno));
    if (st.st_uid != geteuid() || (st.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return ERR_SET(e, ERR_CONFIG,
                       "others may write to %s, and what lies there decides answers; give "
                       "kv.disk a folder of your own with mode 0700",
                       f->path);
    return 0;
}

int kv_folder_open(struct kv_folder *f, const char *path, struct err *e)
{
    *f = (struct kv_folder){.path = strdup(path), .fd = -1};
    if (!f->path)
        return ERR_SET(e, ERR_NOMEM, "no memory for the name of %s", path);
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return ERR_SET(e, ERR_IO, "cannot make the folder %s: %s%s", path, strerror(errno),
                       err_advice(errno));
    f->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (f->fd < 0)
        return ERR_SET(e, ERR_IO, "cannot open the folder %s: %s%s", path, strerror(errno),
                       err_advice(errno));
    TRY(check_owner(f, e));
    return remove_strays(f, e);
}

void kv_folder_close(struct kv_folder *f)
{
    if (f->path && f->fd >= 0)
        close(f->fd);
    free(f->path);
    *f = (struct kv_folder){.fd = -1};
}

/* ------------------------------------------------------------------ one file */

static void make_times(int64_t used_us, struct timespec times[2])
{
    times[0] = times[1] = (struct timespec){.tv_sec = (time_t)(used_us / 1000000),
                                            .tv_nsec = (long)(used_us % 1000000) * 1000};
}

bool kv_folder_touch(const struct kv_folder *f, const char *name, int64_t used_us)
{
    char entry[NAME_BYTES];
    file_name(name, entry);
    struct timespec times[2];
    make_times(used_us, times);
    if (utimensat(f->fd, entry, times, AT_SYMLINK_NOFOLLOW) == 0)
        return true;
    /* On a medium that only reads it is there all the same. */
    return errno != ENOENT && faccessat(f->fd, entry, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

int kv_folder_open_file(const struct kv_folder *f, const char *name)
{
    char entry[NAME_BYTES];
    file_name(name, entry);
    return openat(f->fd, entry, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
}

bool kv_folder_remove(const struct kv_folder *f, const char *name)
{
    char entry[NAME_BYTES];
    file_name(name, entry);
    return unlinkat(f->fd, entry, 0) == 0 || errno == ENOENT;
}

/* A worker that opens the folder may take a file for a stray between its making and its lock:
 * then it holds the lock, or has removed the name already. */
static bool is_taken(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && st.st_nlink == 0;
}

static int make_temporary(struct kv_folder *f, char entry[NAME_BYTES], struct err *e)
{
    int fd = -1;
    for (int i = 0; i < NAME_TRIES_MAX; i++) {
        snprintf(entry, NAME_BYTES, TEMPORARY_PREFIX "%d-%u", (int)getpid(), f->n_temporary++);
        fd = openat(f->fd, entry, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0 && errno != EEXIST)
            break;
        if (fd < 0)
            continue;
        const bool refused = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
        if (!refused && !is_taken(fd))
            return fd;
        close(fd);
        fd = -1;
        errno = EBUSY;
    }
    ERR_SET(e, ERR_IO, "cannot make a file in %s: %s", f->path, strerror(errno));
    return -1;
}

/* *taken: it failed because the file was taken for a stray. */
static int write_file(struct kv_folder *f, const char *name, const void *head,
                      size_t head_bytes, const void *data, size_t data_bytes, int64_t used_us,
                      bool *taken, struct err *e)
{
    *taken = false;
    char entry[NAME_BYTES], temporary[NAME_BYTES];
    file_name(name, entry);
    const int fd = make_temporary(f, temporary, e);
    if (fd < 0)
        return ERR_IO;
    struct timespec times[2];
    make_times(used_us, times);
    int rc = 0;
    if (file_write_all(fd, head, head_bytes) != 0 ||
        file_write_all(fd, data, data_bytes) != 0 || futimens(fd, times) != 0 ||
        fsync(fd) != 0 || renameat(f->fd, temporary, f->fd, entry) != 0) {
        rc = ERR_SET(e, ERR_IO, "cannot write %zu bytes to %s: %s", head_bytes + data_bytes,
                     f->path, strerror(errno));
        *taken = is_taken(fd);
        unlinkat(f->fd, temporary, 0);
    }
    close(fd);
    return rc;
}

int kv_folder_write(struct kv_folder *f, const char *name, const void *head, size_t head_bytes,
                    const void *data, size_t data_bytes, int64_t used_us, struct err *e)
{
    bool taken;
    const int rc = write_file(f, name, head, head_bytes, data, data_bytes, used_us, &taken, e);
    if (rc == 0 || !taken)
        return rc;
    return write_file(f, name, head, head_bytes, data, data_bytes, used_us, &taken, e);
}

/* ------------------------------------------------------------------ the bound */

struct stored {
    struct timespec used;
    uint64_t bytes;
    char name[SHA256_HEX_BYTES];
};

struct stored_list {
    struct stored *items; /* owned */
    size_t length, capacity;
    uint64_t bytes;
};

static int by_last_use(const void *a, const void *b)
{
    const struct stored *x = a, *y = b;
    if (x->used.tv_sec != y->used.tv_sec)
        return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
    if (x->used.tv_nsec != y->used.tv_nsec)
        return x->used.tv_nsec < y->used.tv_nsec ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int add_stored(struct stored_list *list, const struct stat *st, const char *entry,
                      struct err *e)
{
    if (list->length == list->capacity) {
        const size_t capacity = 2 * list->capacity + 256;
        struct stored *items = realloc(list->items, capacity * sizeof items[0]);
        if (!items)
            return ERR_SET(e, ERR_NOMEM, "no memory for the names of %zu KV files", capacity);
        list->items = items;
        list->capacity = capacity;
    }
    struct stored *item = &list->items[list->length++];
    *item = (struct stored){.used = st->st_mtim, .bytes = (uint64_t)st->st_size};
    memcpy(item->name, entry, HEX);
    list->bytes += item->bytes;
    return 0;
}

static int list_files(const struct kv_folder *f, struct stored_list *list, struct err *e)
{
    DIR *dir = list_folder(f, e);
    if (!dir)
        return ERR_IO;
    int rc = 0;
    const struct dirent *entry;
    while (rc == 0 && (entry = readdir(dir)) != NULL) {
        struct stat st;
        if (is_file_name(entry->d_name) &&
            fstatat(f->fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
            rc = add_stored(list, &st, entry->d_name, e);
    }
    closedir(dir);
    return rc;
}

int kv_folder_fit(const struct kv_folder *f, uint64_t bytes_max, uint64_t bytes_new,
                  size_t *n_removed, struct err *e)
{
    ASSERT(bytes_new <= bytes_max);
    struct stored_list list = {0};
    int rc = list_files(f, &list, e);
    if (rc == 0 && list.bytes + bytes_new > bytes_max)
        qsort(list.items, list.length, sizeof list.items[0], by_last_use);
    size_t n = 0;
    for (size_t i = 0; rc == 0 && i < list.length && list.bytes + bytes_new > bytes_max; i++)
        if (kv_folder_remove(f, list.items[i].name)) {
            list.bytes -= list.items[i].bytes;
            n++;
        }
    if (rc == 0 && list.bytes + bytes_new > bytes_max)
        rc = ERR_SET(e, ERR_IO, "cannot make room in %s", f->path);
    free(list.items);
    if (n_removed)
        *n_removed = n;
    return rc;
}
