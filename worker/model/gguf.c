/*
 * Opening and closing. The file's bytes lie in an anonymous mapping, which is page-aligned, so
 * that tensors are as aligned in memory as in the file, and which can be given back in parts.
 */
#include "gguf_int.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"

static int read_file(int fd, size_t size, void **mapping, struct err *e)
{
    void *bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bytes == MAP_FAILED)
        return ERR_SET(e, ERR_NOMEM, "needs %zu MiB of memory, which cannot be had",
                       size >> 20);
    const int code = file_read_at(fd, 0, bytes, size, e);
    if (code != 0) {
        munmap(bytes, size);
        return code;
    }
    *mapping = bytes;
    return 0;
}

static int open_file(int fd, size_t size, const char *path, struct gguf **out, struct err *e)
{
    void *mapping = NULL;
    TRY(read_file(fd, size, &mapping, e));
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
    int fd;
    size_t size;
    TRY(file_open(path, ".gguf file", &fd, &size, e));
    const bool is_first_error = e && e->code == 0;
    const int code = open_file(fd, size, path, out, e);
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
