/*
 * The JSON of a header. Jansson nests by recursion and takes numbers of any length, so a pass
 * over the bytes comes first; what the JSON says is then held against the file by subtraction.
 */
#include "model/safetensors_int.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"

static const struct {
    const char *name;
    enum safetensors_type type;
    size_t bytes;
} TYPES[] = {
    {"F32", SAFETENSORS_F32, 4}, {"F16", SAFETENSORS_F16, 2}, {"BF16", SAFETENSORS_BF16, 2},
    {"I32", SAFETENSORS_I32, 4}, {"I64", SAFETENSORS_I64, 8},
};

size_t safetensors_type_bytes(enum safetensors_type type)
{
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++) {
        if (TYPES[i].type == type)
            return TYPES[i].bytes;
    }
    return 0;
}

/* ------------------------------------------------------------------ before Jansson */

/* Behind the quote that closes a string; the text's end when none does. */
static size_t skip_string(const char *text, size_t length, size_t at)
{
    while (at < length && text[at] != '"')
        at += text[at] == '\\' ? 2 : 1;
    return at < length ? at + 1 : length;
}

static size_t skip_number(const char *text, size_t length, size_t at)
{
    while (at < length && text[at] != '\0' && strchr("0123456789+-.eE", text[at]))
        at++;
    return at;
}

static int scan(const char *text, size_t length, struct err *e)
{
    size_t depth = 0;
    for (size_t at = 0; at < length;) {
        const char c = text[at];
        if (c == '"') {
            at = skip_string(text, length, at + 1);
            continue;
        }
        if ((c >= '0' && c <= '9') || c == '-') {
            const size_t end = skip_number(text, length, at);
            if (end - at > SAFETENSORS_NUMBER_BYTES_MAX)
                return ERR_SET(e, ERR_FORMAT,
                               "byte %zu of the header: a number of more than %d "
                               "digits",
                               at, SAFETENSORS_NUMBER_BYTES_MAX);
            at = end;
            continue;
        }
        if ((c == '{' || c == '[') && ++depth > SAFETENSORS_DEPTH_MAX)
            return ERR_SET(e, ERR_FORMAT,
                           "byte %zu of the header: nesting deeper than %d levels", at,
                           SAFETENSORS_DEPTH_MAX);
        if ((c == '}' || c == ']') && depth > 0)
            depth--;
        at++;
    }
    return 0;
}

/* ------------------------------------------------------------------ one tensor */

static int check_name(const char *name, struct err *e)
{
    const size_t length = strlen(name);
    if (length == 0)
        return ERR_SET(e, ERR_FORMAT, "a tensor of the header has an empty name");
    if (length > SAFETENSORS_NAME_BYTES_MAX)
        return ERR_SET(e, ERR_FORMAT, "a tensor's name has %zu bytes, more than %d", length,
                       SAFETENSORS_NAME_BYTES_MAX);
    for (size_t i = 0; i < length; i++) {
        if (name[i] < 0x20 || name[i] > 0x7e)
            return ERR_SET(e, ERR_FORMAT, "a tensor's name is not printable ASCII");
    }
    return 0;
}

static int read_count(const json_t *value, const char *name, const char *what, uint64_t *out,
                      struct err *e)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return ERR_SET(e, ERR_FORMAT, "the %s of tensor %s holds what is no count", what, name);
    *out = (uint64_t)json_integer_value(value);
    return 0;
}

static void read_type(const char *text, struct safetensors_tensor *t)
{
    t->type = SAFETENSORS_OTHER;
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++) {
        if (strcmp(TYPES[i].name, text) == 0)
            t->type = TYPES[i].type;
    }
    size_t n = 0;
    for (; n + 1 < sizeof t->type_name && text[n]; n++)
        t->type_name[n] = text[n] >= 0x20 && text[n] <= 0x7e ? text[n] : '?';
    t->type_name[n] = '\0';
}

static int read_shape(const json_t *shape, struct safetensors_tensor *t, struct err *e)
{
    t->n_dims = json_array_size(shape);
    if (t->n_dims > SAFETENSORS_DIMS_MAX)
        return ERR_SET(e, ERR_FORMAT, "tensor %s has %zu dimensions, more than %d", t->name,
                       t->n_dims, SAFETENSORS_DIMS_MAX);
    t->n_elems = 1;
    for (size_t i = 0; i < t->n_dims; i++) {
        TRY(read_count(json_array_get(shape, i), t->name, "shape", &t->dims[i], e));
        if (__builtin_mul_overflow(t->n_elems, t->dims[i], &t->n_elems))
            return ERR_SET(e, ERR_FORMAT, "tensor %s has too many elements", t->name);
    }
    return 0;
}

static int read_offsets(const json_t *offsets, uint64_t data_bytes,
                        struct safetensors_tensor *t, struct err *e)
{
    if (json_array_size(offsets) != 2)
        return ERR_SET(e, ERR_FORMAT, "tensor %s has %zu data_offsets, not 2", t->name,
                       json_array_size(offsets));
    TRY(read_count(json_array_get(offsets, 0), t->name, "data_offsets", &t->begin, e));
    TRY(read_count(json_array_get(offsets, 1), t->name, "data_offsets", &t->end, e));
    if (t->begin > t->end)
        return ERR_SET(e, ERR_FORMAT, "tensor %s ends at %llu, before its begin at %llu",
                       t->name, (unsigned long long)t->end, (unsigned long long)t->begin);
    if (t->end > data_bytes)
        return ERR_SET(
            e, ERR_FORMAT,
            "tensor %s ends at %llu of %llu bytes of data: the file is damaged or was "
            "not fetched whole",
            t->name, (unsigned long long)t->end, (unsigned long long)data_bytes);
    uint64_t bytes;
    const size_t elem_bytes = safetensors_type_bytes(t->type);
    if (elem_bytes > 0 &&
        (__builtin_mul_overflow(t->n_elems, elem_bytes, &bytes) || bytes != t->end - t->begin))
        return ERR_SET(e, ERR_FORMAT, "tensor %s has %llu bytes, which its shape does not need",
                       t->name, (unsigned long long)(t->end - t->begin));
    return 0;
}

static int read_tensor(const char *name, json_t *value, uint64_t data_bytes,
                       struct safetensors_tensor *t, struct err *e)
{
    TRY(check_name(name, e));
    const char *type;
    const json_t *shape, *offsets;
    if (json_unpack(value, "{s:s, s:o, s:o!}", "dtype", &type, "shape", &shape, "data_offsets",
                    &offsets) != 0 ||
        !json_is_array(shape) || !json_is_array(offsets))
        return ERR_SET(e, ERR_FORMAT,
                       "tensor %s does not tell just its dtype, shape and data_offsets", name);
    t->name = strdup(name);
    if (!t->name)
        return ERR_SET(e, ERR_NOMEM, "out of memory for the names of tensors");
    read_type(type, t);
    TRY(read_shape(shape, t, e));
    return read_offsets(offsets, data_bytes, t, e);
}

/* ------------------------------------------------------------------ all of them */

/* An empty tensor comes before the one that begins at the same byte. */
static int compare_place(const void *a, const void *b)
{
    const struct safetensors_tensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int check_cover(const struct safetensors_list *list, uint64_t data_bytes, struct err *e)
{
    uint64_t end = 0;
    for (size_t i = 0; i < list->length; i++) {
        const struct safetensors_tensor *t = &list->items[i];
        if (t->begin < end)
            return ERR_SET(e, ERR_FORMAT, "tensors %s and %s overlap", list->items[i - 1].name,
                           t->name);
        if (t->begin > end)
            return ERR_SET(e, ERR_FORMAT, "%llu bytes before tensor %s belong to none",
                           (unsigned long long)(t->begin - end), t->name);
        end = t->end;
    }
    if (end != data_bytes)
        return ERR_SET(e, ERR_FORMAT, "the last %llu bytes of the file belong to no tensor",
                       (unsigned long long)(data_bytes - end));
    return 0;
}

static int read_root(json_t *root, uint64_t data_bytes, struct safetensors_list *out,
                     struct err *e)
{
    if (!json_is_object(root))
        return ERR_SET(e, ERR_FORMAT, "the header is no JSON object");
    out->items = calloc(json_object_size(root) + 1, sizeof *out->items);
    if (!out->items)
        return ERR_SET(e, ERR_NOMEM, "out of memory for %zu tensors", json_object_size(root));
    const char *name;
    json_t *value;
    json_object_foreach(root, name, value)
    {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        struct safetensors_tensor *t = &out->items[out->length++];
        TRY(read_tensor(name, value, data_bytes, t, e));
    }
    qsort(out->items, out->length, sizeof *out->items, compare_place);
    return check_cover(out, data_bytes, e);
}

static int refuse_json(const json_error_t *error, struct err *e)
{
    if (json_error_code(error) == json_error_out_of_memory)
        return ERR_SET(e, ERR_NOMEM, "out of memory for the header");
    char text[JSON_ERROR_TEXT_LENGTH];
    size_t n = 0;
    for (; n + 1 < sizeof text && error->text[n]; n++)
        text[n] = error->text[n] >= 0x20 && error->text[n] <= 0x7e ? error->text[n] : '?';
    text[n] = '\0';
    return ERR_SET(e, ERR_FORMAT, "byte %d of the header: %s", error->position, text);
}

int safetensors_parse_header(const char *text, size_t length, uint64_t data_bytes,
                             struct safetensors_list *out, struct err *e)
{
    *out = (struct safetensors_list){0};
    if (length == 0 || text[0] != '{')
        return ERR_SET(e, ERR_FORMAT,
                       "not a safetensors file (its header does not begin with {)");
    TRY(scan(text, length, e));
    json_error_t error = {0};
    json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        return refuse_json(&error, e);
    const int code = read_root(root, data_bytes, out, e);
    json_decref(root);
    if (code != 0)
        safetensors_list_fini(out);
    return code;
}

void safetensors_list_fini(struct safetensors_list *list)
{
    for (size_t i = 0; i < list->length; i++)
        free(list->items[i].name);
    free(list->items);
    *list = (struct safetensors_list){0};
}
