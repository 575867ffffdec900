#include "golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void die(const char *what, const char *why)
{
    fprintf(stderr, "test data: %s: %s\n", what, why);
    exit(99);
}

char *golden_path(const char *path_under_tests)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s", SHEAF_TEST_DATA, path_under_tests) < 0)
        die(path_under_tests, "no memory");
    return path;
}

json_t *golden_json(const char *path_under_tests)
{
    char *path = golden_path(path_under_tests);
    json_error_t error;
    json_t *root = json_load_file(path, 0, &error);
    if (!root)
        die(path, error.text);
    free(path);
    return root;
}

json_t *golden_jsonl(const char *path_under_tests)
{
    char *path = golden_path(path_under_tests);
    FILE *file = fopen(path, "r");
    if (!file)
        die(path, "cannot be opened");
    json_t *all = json_array();
    json_error_t error = {.text = "has no lines"};
    char *line = NULL;
    size_t capacity = 0;
    while (getline(&line, &capacity, file) > 0) {
        json_t *value = json_loads(line, JSON_ALLOW_NUL, &error);
        if (!value)
            die(path, error.text);
        json_array_append_new(all, value);
    }
    if (json_array_size(all) == 0)
        die(path, error.text);
    free(line);
    fclose(file);
    free(path);
    return all;
}

float *golden_floats(const char *path_under_tests, size_t *n)
{
    char *path = golden_path(path_under_tests);
    FILE *file = fopen(path, "rb");
    if (!file)
        die(path, "cannot be opened");
    fseek(file, 0, SEEK_END);
    const long bytes = ftell(file);
    rewind(file);
    float *out = malloc((size_t)bytes);
    if (!out || fread(out, 1, (size_t)bytes, file) != (size_t)bytes)
        die(path, "cannot be read");
    fclose(file);
    free(path);
    *n = (size_t)bytes / sizeof out[0];
    return out;
}

int32_t *golden_ids(const json_t *array, size_t *n)
{
    *n = json_array_size(array);
    int32_t *ids = malloc((*n + 1) * sizeof ids[0]);
    for (size_t i = 0; i < *n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(array, i));
    return ids;
}

size_t golden_argmax(const float *x, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

double golden_number(const json_t *array, size_t index)
{
    const json_t *value = json_array_get(array, index);
    if (!json_is_number(value))
        die("a JSON array", "a number is missing");
    return json_number_value(value);
}

const char *golden_demo_model(void)
{
    static char path[4096];
    const char *given = getenv("SHEAF_MODEL");
    const char *cache = getenv("SHEAF_CACHE");
    const char *home = getenv("HOME");
    if (given)
        snprintf(path, sizeof path, "%s", given);
    else if (cache)
        snprintf(path, sizeof path, "%s/SmolLM2-135M-Instruct.Q4_1.gguf", cache);
    else
        snprintf(path, sizeof path, "%s/.cache/sheaf/SmolLM2-135M-Instruct.Q4_1.gguf",
                 home ? home : "");
    return path;
}

struct model *golden_open_model(const char *path)
{
    struct model *m = NULL;
    struct err e = {0};
    if (model_open(path, &m, &e) != 0)
        die(path, e.text);
    return m;
}

struct model *golden_open_tiny(const char *name)
{
    char under_tests[96];
    snprintf(under_tests, sizeof under_tests, "golden/tiny/%s", name);
    char *path = golden_path(under_tests);
    struct model *m = golden_open_model(path);
    free(path);
    return m;
}

struct engine *golden_open_engine(const struct model *m, const char *isa, enum act_kind act,
                                  enum kv_type kv, const struct engine_options *options)
{
    struct engine_options o = {
        .n_threads = 2, .batch = 16, .step_tokens = 128, .chunk_tokens = 64};
    if (options)
        o = *options;
    o.activations = act;
    o.kv_type = kv;
    if (!o.device && kv != KV_INT8) {
        o.device = getenv("SHEAF_TEST_DEVICE");
        o.device_exact = true;
        o.device_graphs = o.device_ahead = true;
    }
    setenv("SHEAF_KERNELS", isa, 1);
    struct engine *eng = NULL;
    struct err e = {0};
    if (engine_open(m, &o, &eng, &e) != 0)
        die(isa, e.text);
    return eng;
}

size_t golden_isas(const char *out[3])
{
    size_t n = 0;
    out[n++] = "ref";
    if (kernels_has_isa(KERNELS_AVX2))
        out[n++] = "avx2";
    if (kernels_has_isa(KERNELS_AVX512))
        out[n++] = "avx512";
    return n;
}
