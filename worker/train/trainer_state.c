/*
 * The state file of a training, little-endian:
 *
 *     bytes 0-7     "SHEAFTR1"
 *     bytes 8-71    the training's identity, hex
 *     bytes 72-79   steps done
 *     bytes 80-87   n, parameters
 *     ...           3 n floats: parameters, first and second moments
 *     last 64       SHA-256 of all before, hex
 *
 * It is written under another name, synced and renamed: there is always a whole one or none.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/file.h"
#include "base/sha256.h"
#include "base/size.h"
#include "train/trainer_int.h"

#define MAGIC "SHEAFTR1"

enum { MAGIC_BYTES = 8, HEX = SHA256_HEX_BYTES - 1, HEAD_BYTES = MAGIC_BYTES + HEX + 16 };

static int make_bytes(const struct trainer *t, const char *identity, struct buf *out,
                      struct err *e)
{
    const uint64_t numbers[] = {t->n_done, t->n_params};
    char hex[SHA256_HEX_BYTES];
    buf_append(out, MAGIC, MAGIC_BYTES);
    buf_append(out, identity, HEX);
    buf_append(out, numbers, sizeof numbers);
    buf_append(out, t->params, 3 * t->n_params * sizeof t->params[0]);
    if (!buf_ok(out))
        return ERR_SET(e, ERR_NOMEM, "no memory for the state of the training");
    TRY(sha256_hex(out->data, out->length, hex, e));
    buf_append(out, hex, HEX);
    return buf_ok(out) ? 0 : ERR_SET(e, ERR_NOMEM, "no memory for the state of the training");
}

int trainer_save(const struct trainer *t, const char *path, const char *identity, struct err *e)
{
    ASSERT(strlen(identity) == HEX);
    struct buf bytes = {0};
    struct file_replacement file;
    int rc = make_bytes(t, identity, &bytes, e);
    if (rc == 0)
        rc = file_replace_begin(path, &file, e);
    if (rc == 0) {
        rc = file_replace_write(&file, bytes.data, bytes.length, e);
        if (rc == 0)
            rc = file_replace_commit(&file, e);
        else
            file_replace_abandon(&file);
    }
    buf_fini(&bytes);
    return rc;
}

static int check_head(const char *path, const char *identity, const char *bytes, size_t length,
                      struct err *e)
{
    if (length < HEAD_BYTES || memcmp(bytes, MAGIC, MAGIC_BYTES) != 0)
        return ERR_SET(e, ERR_FORMAT, "%s is no state of a training; delete it to begin anew",
                       path);
    if (memcmp(bytes + MAGIC_BYTES, identity, HEX) != 0)
        return ERR_SET(e, ERR_STATE,
                       "%s is of a training with other texts, options or another model; delete "
                       "it to begin anew, or choose another output",
                       path);
    return 0;
}

static int check_bytes(const struct trainer *t, const char *path, const char *identity,
                       const char *bytes, size_t length, struct err *e)
{
    char hex[SHA256_HEX_BYTES];
    uint64_t numbers[2];
    TRY(check_head(path, identity, bytes, length, e));
    memcpy(numbers, bytes + MAGIC_BYTES + HEX, sizeof numbers);
    if (length != HEAD_BYTES + 3 * t->n_params * sizeof(float) + HEX)
        return ERR_SET(e, ERR_FORMAT, "%s is damaged; delete it to begin anew", path);
    TRY(sha256_hex(bytes, length - HEX, hex, e));
    if (memcmp(bytes + length - HEX, hex, HEX) != 0 || numbers[1] != t->n_params ||
        numbers[0] > t->n_steps)
        return ERR_SET(e, ERR_FORMAT, "%s is damaged; delete it to begin anew", path);
    return 0;
}

/* The first of the wanted bytes; how many are there is said by *length. */
static int read_bytes(const char *path, size_t wanted, char **out, size_t *length,
                      struct err *e)
{
    int fd = -1;
    size_t size;
    *out = NULL;
    TRY(file_open(path, "state of a training", &fd, &size, e));
    *length = size_min(size, wanted);
    *out = malloc(*length);
    const int rc = *out ? file_read_at(fd, 0, *out, *length, e)
                        : ERR_SET(e, ERR_NOMEM, "no memory for %s", path);
    close(fd);
    return rc;
}

static bool is_there(const char *path)
{
    return access(path, F_OK) == 0 || errno != ENOENT;
}

int trainer_check_state(const char *path, const char *identity, struct err *e)
{
    if (!is_there(path))
        return 0;
    char *bytes = NULL;
    size_t length;
    int rc = read_bytes(path, HEAD_BYTES, &bytes, &length, e);
    if (rc == 0)
        rc = check_head(path, identity, bytes, length, e);
    free(bytes);
    return rc;
}

int trainer_load(struct trainer *t, const char *path, const char *identity, bool *found,
                 struct err *e)
{
    ASSERT(strlen(identity) == HEX);
    *found = is_there(path);
    if (!*found)
        return 0;
    const size_t floats = 3 * t->n_params * sizeof(float);
    char *bytes = NULL;
    size_t length;
    int rc = read_bytes(path, HEAD_BYTES + floats + HEX + 1, &bytes, &length, e);
    if (rc == 0)
        rc = check_bytes(t, path, identity, bytes, length, e);
    if (rc == 0) {
        memcpy(&t->n_done, bytes + MAGIC_BYTES + HEX, sizeof t->n_done);
        memcpy(t->params, bytes + HEAD_BYTES, floats);
    }
    free(bytes);
    return rc;
}
