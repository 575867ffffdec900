/*
 * Ordinary files: opened with a check of what they are, read at an offset, and replaced as a
 * whole. Thread: any; a struct file_replacement, one.
 */
#ifndef SHEAF_FILE_H
#define SHEAF_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Opens for reading. wanted says what should be named instead of a folder or a device
 * (".gguf file"). Errors begin with the path. */
int file_open(const char *path, const char *wanted, int *fd, size_t *size, struct err *e);
/* All of the bytes, or ERR_IO: a file that became shorter is one that is still fetched. */
int file_read_at(int fd, uint64_t offset, void *out, size_t bytes, struct err *e);
/* All of the bytes; -1 and errno otherwise. */
int file_write_all(int fd, const void *bytes, size_t length);

/*
 * A file that takes the place of another at once and complete, or not at all. It is written
 * beside it, readable by its owner alone, and is on the disk before it gets its name.
 */
struct file_replacement {
    int fd;
    char *path, *temporary; /* owned */
};
int file_replace_begin(const char *path, struct file_replacement *r, struct err *e);
int file_replace_write(struct file_replacement *r, const void *bytes, size_t length,
                       struct err *e);
/* Either ends it: r is empty after. */
int file_replace_commit(struct file_replacement *r, struct err *e);
void file_replace_abandon(struct file_replacement *r);

#endif
