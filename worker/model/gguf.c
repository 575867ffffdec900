/*
 * Opening and closing. The file's bytes lie in an anonymous mapping, which is page-aligned, so
 * that tensors are as aligned in memory as in the file, and which can be given back in parts.
 */
#include "gguf_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

static int check_file(int fd, size_t *size, struct err *e)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return ERR_SET(e, ERR_IO, "cannot be examined: %s", strerror(errno));
    if (S_ISDIR(info.st_mode))
        return ERR_SET(e, ERR_IO, "is a folder; name the .gguf file in it");
    if (!S_ISREG(info.st_mode))
        return ERR_SET(e, ERR_IO, "is not an ordinary file; a model is read from a .gguf file");
    if (info.st_size <= 0)
        return ERR_SET(e, ERR_FORMAT, "is empty; fetch the model file again");
    *size = (size_t)info.st_size;
    return 0;
}

static int read_all(int fd, uint8_t *out, size_t size, struct err *e)
{
    size_t done = 0;
    while (done < size) {
        const ssize_t n = read(fd, out + done, size - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return ERR_SET(e, ERR_IO, "cannot be read: %s", strerror(errno));
        if (n == 0)
            return ERR_SET(e, ERR_IO, "became shorter while it was read; is it still fetched?");
        done += (size_t)n;
    }
    return 0;
}

static int read_file(int fd, void **mapping, size_t *size, struct err *e)
{
    TRY(check_file(fd, size, e));
    void *bytes = mmap(NULL, *size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bytes == MAP_FAILED)
        return ERR_SET(e, ERR_NOMEM, "needs %zu MiB of memory, which cannot be had",
                       *size >> 20);
    const int code = read_all(fd, bytes, *size, e);
    if (code != 0) {
        munmap(bytes, *size);
        return code;
    }
    *mapping = bytes;
    return 0;
}

static int open_file(int fd, const char *path, struct gguf **out, struct err *e)
{
    void *mapping = NULL;
    size_t size = 0;
    TRY(read_file(fd, &mapping, &size, e));
    const int code = gguf_parse(mapping, size, out, e);
    if (code != 0) {
        munmap(mapping, size);
        return code;
    }
    (*out)->mapping = mapping;
    if ((*out)->unused_bytes > 0)
        log_warn("%s: %zu bytes between the tensors belong to none", path,
                 (*out)->unused_bytes);
    return 0;
}

int gguf_open(const char *path, struct gguf **out, struct err *e)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return ERR_SET(e, errno == ENOENT ? ERR_NOTFOUND : ERR_IO, "%s: cannot be opened: %s",
                       path, strerror(errno));
    const bool is_first_error = e && e->code == 0;
    const int code = open_file(fd, path, out, e);
    if (code != 0 && is_first_error)
        err_prefix(e, "%s", path);
    close(fd);
    return code;
}

void gguf_close(struct gguf *g)
{
    if (!g)
        return;
    if (g->mapping)
        munmap(g->mapping, g->size);
    free(g->tensors_by_name);
    free(g->tensors);
    free(g->kv);
    free(g);
}

void gguf_release_data(struct gguf *g, const void *data, size_t bytes)
{
    if (!g->mapping)
        return;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t start = (size_t)((const uint8_t *)data - g->bytes);
    const size_t first = (start + page - 1) / page * page, end = (start + bytes) / page * page;
    if (first < end)
        madvise((uint8_t *)g->mapping + first, end - first, MADV_DONTNEED);
}
