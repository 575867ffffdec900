/*
 * The folder of the KV files: private, bounded, and shared by any number of workers.
 *
 * A file comes into being under a name of its own that no reader looks at, is synced, and then
 * renamed: a reader finds a file whole or not at all, whatever becomes of the writer. Its
 * modification time says when it was last used. Workers need no lock between them: a file that
 * another one removes first is gone for both, and one that another one replaces has the same
 * content. Files of other names are never touched.
 *
 * Thread: any for the questions; one thread writes and fits.
 */
#ifndef SHEAF_KV_FOLDER_H
#define SHEAF_KV_FOLDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct kv_folder {
    char *path; /* for messages */
    int fd;
    unsigned n_temporary; /* names given so far */
};

/*
 * Makes the folder (0700) when it is not there, and removes what dead writers left. ERR_IO when
 * it cannot be; ERR_CONFIG when others may write to it, for who writes there decides answers.
 */
int kv_folder_open(struct kv_folder *f, const char *path, struct err *e);
void kv_folder_close(struct kv_folder *f); /* accepts what a failed open left */

/* Sets the time of last use. False when there is no such file. */
bool kv_folder_touch(const struct kv_folder *f, const char *name, int64_t used_us);
/* A descriptor for reading, to be closed by the caller; -1 and errno. Never follows a link. */
int kv_folder_open_file(const struct kv_folder *f, const char *name);
/* Gone already is well enough. */
bool kv_folder_remove(const struct kv_folder *f, const char *name);

/* The file with that name and content, head before data; ERR_IO, and nothing left behind, when
 * any of it fails. */
int kv_folder_write(struct kv_folder *f, const char *name, const void *head, size_t head_bytes,
                    const void *data, size_t data_bytes, int64_t used_us, struct err *e);

/* Removes the least recently used files until the rest and bytes_new more are bytes_max at
 * most. n_removed may be NULL. */
int kv_folder_fit(const struct kv_folder *f, uint64_t bytes_max, uint64_t bytes_new,
                  size_t *n_removed, struct err *e);

#endif
