/*
 * Which kind of file it is, and what in it has a name of heads. A folder is read as one
 * checkpoint in several files; of these only the headers are read here.
 */
#include "model/heads_int.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/file.h"
#include "base/size.h"
#include "quant.h"

/* ------------------------------------------------------------------ tensors */

static void note_foreign(struct heads_found *found, const char *name)
{
    for (size_t i = 0; i < HEADS_LAYOUTS; i++) {
        if (!found->foreign[i][0] && heads_layout_owns((enum heads_layout)i, name))
            snprintf(found->foreign[i], HEADS_FOREIGN_BYTES, "%s", name);
    }
}

/* One more entry, zeroed but for its name; *out is NULL when the name is none of heads. */
static int add(struct heads_found *found, const char *name, bool is_gguf,
               struct heads_tensor **out, struct err *e)
{
    struct heads_name parsed;
    *out = NULL;
    if (!heads_name_parse(name, &parsed) || (parsed.layout == HEADS_GGUF) != is_gguf) {
        note_foreign(found, name);
        return 0;
    }
    if (found->n_tensors == HEADS_TENSORS_MAX)
        return ERR_SET(e, ERR_LIMIT, "more than %d tensors with names of heads",
                       HEADS_TENSORS_MAX);
    if (found->n_tensors == found->capacity) {
        const size_t capacity = 2 * found->capacity + 64;
        struct heads_tensor *tensors =
            realloc(found->tensors, capacity * sizeof *found->tensors);
        if (!tensors)
            return ERR_SET(e, ERR_NOMEM, "out of memory for the tensors of heads");
        found->tensors = tensors;
        found->capacity = capacity;
    }
    *out = &found->tensors[found->n_tensors++];
    **out = (struct heads_tensor){.name = parsed};
    snprintf((*out)->text, sizeof(*out)->text, "%s", name);
    return 0;
}

static int add_stored(struct heads_found *found, const struct safetensors *file,
                      const struct safetensors_tensor *stored, struct err *e)
{
    struct heads_tensor *t;
    TRY(add(found, stored->name, false, &t, e));
    if (!t)
        return 0;
    t->n_dims = stored->n_dims;
    t->n_rows = stored->n_dims > 1 ? stored->dims[0] : 1;
    t->n_cols = stored->n_dims > 0 ? stored->dims[stored->n_dims - 1] : 1;
    t->is_float = stored->type <= SAFETENSORS_BF16;
    t->is_integer = stored->type == SAFETENSORS_I32 || stored->type == SAFETENSORS_I64;
    memcpy(t->type_name, stored->type_name, sizeof t->type_name);
    t->file = file;
    t->stored = stored;
    return 0;
}

static int add_gguf(struct heads_found *found, const struct gguf_tensor *stored, struct err *e)
{
    char name[HEADS_NAME_BYTES];
    gguf_str_print(stored->name, name, sizeof name);
    struct heads_tensor *t;
    TRY(add(found, name, true, &t, e));
    if (!t)
        return 0;
    t->n_dims = stored->n_dims;
    t->n_rows = stored->n_dims > 1 ? stored->dims[1] : 1;
    t->n_cols = stored->dims[0];
    t->is_float = stored->type_id == QUANT_F32 || stored->type_id == QUANT_F16 ||
                  stored->type_id == QUANT_BF16;
    snprintf(t->type_name, sizeof t->type_name, "%s", quant_find(stored->type_id)->name);
    t->in_gguf = stored;
    return 0;
}

static int read_floats(const struct heads_tensor *t, uint64_t first, float *out, size_t n,
                       struct err *e)
{
    if (!t->in_gguf)
        return safetensors_read_floats(t->file, t->stored, first, out, n, e);
    const struct quant_info *info = quant_find(t->in_gguf->type_id);
    ASSERT((first + n) * info->block_bytes <= t->in_gguf->bytes);
    quant_dequantize_row(info->type, (const char *)t->in_gguf->data + first * info->block_bytes,
                         out, n);
    return 0;
}

int heads_read_floats(const struct heads_tensor *t, uint64_t first, float *out, size_t n,
                      struct err *e)
{
    const bool is_first_error = e && e->code == 0;
    const int code = read_floats(t, first, out, n, e);
    if (code != 0 && is_first_error)
        err_prefix(e, "tensor %s", t->text);
    TRY(code);
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(out[i]))
            return ERR_SET(e, ERR_FORMAT, "element %llu of tensor %s is not a finite number",
                           (unsigned long long)(first + i), t->text);
    }
    return 0;
}

/* ------------------------------------------------------------------ files that are refused */

/* Text that is safe to paste into a shell. */
static bool is_plain_path(const char *path)
{
    for (; *path; path++) {
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/-",
                    *path))
            return false;
    }
    return true;
}

static int refuse_pickle(const char *path, struct err *e)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    if (!is_plain_path(name) || strlen(name) > 48 || *name == '-')
        name = "IN.pt";
    return ERR_SET(e, ERR_UNSUPPORTED,
                   "%.120s: to read a file of torch is to run it; convert it where torch is: "
                   "python3 -c 'import torch, safetensors.torch as s; "
                   "s.save_file({k: v.clone().contiguous() for k, v in torch.load(\"%s\", "
                   "map_location=\"cpu\", weights_only=True).items()}, \"heads.safetensors\")'",
                   path, name);
}

static bool has_suffix(const char *name, const char *suffix)
{
    const size_t length = strlen(name), n = strlen(suffix);
    return length > n && strcmp(name + length - n, suffix) == 0;
}

static bool has_pickle_name(const char *name)
{
    return has_suffix(name, ".pt") || has_suffix(name, ".pth") || has_suffix(name, ".bin");
}

/* ------------------------------------------------------------------ a file */

enum file_kind { FILE_SAFETENSORS, FILE_GGUF, FILE_PICKLE };

/* A safetensors file begins with a length and {, and any length may look like the two bytes
 * with which a pickle begins. */
static int tell_kind(const char *path, enum file_kind *out, struct err *e)
{
    int fd;
    size_t size;
    unsigned char start[9] = {0};
    TRY(file_open(path, "file of heads", &fd, &size, e));
    const int code = file_read_at(fd, 0, start, size_min(size, sizeof start), e);
    close(fd);
    if (code != 0) {
        err_prefix(e, "%s", path);
        return code;
    }
    *out = FILE_SAFETENSORS;
    if (memcmp(start, "GGUF", 4) == 0)
        *out = FILE_GGUF;
    else if (memcmp(start, "PK\3\4", 4) == 0)
        *out = FILE_PICKLE;
    else if (start[8] != '{' &&
             ((start[0] == 0x80 && start[1] >= 2 && start[1] <= 5) || has_pickle_name(path)))
        *out = FILE_PICKLE;
    return 0;
}

/* Files that hold nothing of heads are closed again. */
static int find_in_safetensors(const char *path, struct heads_found *found, struct err *e)
{
    struct safetensors *file;
    TRY(safetensors_open(path, &file, e));
    const size_t n_before = found->n_tensors;
    for (size_t i = 0; i < safetensors_count(file); i++) {
        const int code = add_stored(found, file, safetensors_at(file, i), e);
        if (code != 0) {
            err_prefix(e, "%s", path);
            safetensors_close(file);
            return code;
        }
    }
    if (found->n_tensors == n_before)
        safetensors_close(file);
    else
        found->files[found->n_files++] = file;
    return 0;
}

static int find_in_gguf(const char *path, struct heads_found *found, struct err *e)
{
    TRY(gguf_open(path, &found->gguf, e));
    for (size_t i = 0; i < gguf_tensor_count(found->gguf); i++) {
        const int code = add_gguf(found, gguf_tensor_at(found->gguf, i), e);
        if (code != 0) {
            err_prefix(e, "%s", path);
            return code;
        }
    }
    return 0;
}

static int find_in_file(const char *path, struct heads_found *found, struct err *e)
{
    enum file_kind kind;
    TRY(tell_kind(path, &kind, e));
    if (kind == FILE_PICKLE)
        return refuse_pickle(path, e);
    return kind == FILE_GGUF ? find_in_gguf(path, found, e)
                             : find_in_safetensors(path, found, e);
}

/* ------------------------------------------------------------------ a folder */

struct folder {
    char *paths[SAFETENSORS_FILES_MAX]; /* owned */
    size_t n_paths;
    char *pickle; /* one of them, owned; or NULL */
};

static void folder_fini(struct folder *f)
{
    for (size_t i = 0; i < f->n_paths; i++)
        free(f->paths[i]);
    free(f->pickle);
}

static int list_entry(struct folder *f, const char *path, const char *entry, struct err *e)
{
    const bool is_wanted = has_suffix(entry, ".safetensors");
    if (entry[0] == '.' || (!is_wanted && (f->pickle || !has_pickle_name(entry))))
        return 0;
    if (is_wanted && f->n_paths == SAFETENSORS_FILES_MAX)
        return ERR_SET(e, ERR_LIMIT, "%s: more than %d .safetensors files", path,
                       SAFETENSORS_FILES_MAX);
    char *joined;
    if (asprintf(&joined, "%s/%s", path, entry) < 0)
        return ERR_SET(e, ERR_NOMEM, "out of memory for the names of files");
    if (is_wanted)
        f->paths[f->n_paths++] = joined;
    else
        f->pickle = joined;
    return 0;
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int list_folder(const char *path, struct folder *f, struct err *e)
{
    DIR *dir = opendir(path);
    if (!dir)
        return ERR_SET(e, ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    int code = 0;
    for (const struct dirent *entry; code == 0 && (entry = readdir(dir));)
        code = list_entry(f, path, entry->d_name, e);
    closedir(dir);
    TRY(code);
    qsort(f->paths, f->n_paths, sizeof *f->paths, compare_paths);
    if (f->n_paths == 0 && f->pickle)
        return refuse_pickle(f->pickle, e);
    if (f->n_paths == 0)
        return ERR_SET(e, ERR_NOTFOUND,
                       "%s: no .safetensors file in this folder; name a file of heads", path);
    return 0;
}

static int find_in_folder(const char *path, struct heads_found *found, struct err *e)
{
    struct folder f = {0};
    int code = list_folder(path, &f, e);
    for (size_t i = 0; code == 0 && i < f.n_paths; i++)
        code = find_in_safetensors(f.paths[i], found, e);
    folder_fini(&f);
    return code;
}

int heads_find(const char *path, struct heads_found *found, struct err *e)
{
    struct stat info;
    *found = (struct heads_found){0};
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return find_in_folder(path, found, e);
    return find_in_file(path, found, e);
}

void heads_found_close(struct heads_found *found)
{
    for (size_t i = 0; i < found->n_files; i++)
        safetensors_close(found->files[i]);
    gguf_close(found->gguf);
    free(found->tensors);
}
