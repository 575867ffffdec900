/*
 * Jansson's loader ignores a failed growth of its token buffer and then works on a token with
 * bytes missing; and it reports some failed allocations as a syntax error. So its allocator
 * is wrapped, once per process: the first failure on a thread is remembered, and every later
 * allocation of that thread fails too until the next json_watch_begin. That keeps the loader
 * from reading a cut token as a value, and tells a job's fault from a lack of memory.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "jobs_int.h"

static json_malloc_t inner_malloc;
static json_free_t inner_free;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Thread_local bool watching;
static _Thread_local bool failed;

static void *watched_malloc(size_t size)
{
    if (watching && failed)
        return NULL;
    void *memory = inner_malloc(size);
    if (!memory)
        failed = true;
    return memory;
}

static void install(void)
{
    json_get_alloc_funcs(&inner_malloc, &inner_free);
    json_set_alloc_funcs(watched_malloc, inner_free);
}

static void json_watch_install(void)
{
    pthread_once(&once, install);
}

void json_watch_begin(void)
{
    json_watch_install();
    watching = true;
    failed = false;
}

bool json_watch_failed(void)
{
    watching = false;
    return failed;
}

static const char *fault_code(const json_error_t *error)
{
    switch (json_error_code(error)) {
    case json_error_duplicate_key: return "duplicate_key";
    case json_error_numeric_overflow: return "invalid_value";
    case json_error_null_byte_in_key:
    case json_error_null_character: return "invalid_value";
    default: return "invalid_json_line";
    }
}

static int load(const char *bytes, size_t length, size_t flags, json_t **out,
                struct json_fault *fault, struct err *e)
{
    json_error_t error = {0};
    json_watch_begin();
    *out = json_loadb(bytes, length, flags | JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (json_watch_failed()) {
        json_decref(*out);
        *out = NULL;
        return ERR_SET(e, ERR_NOMEM, "out of memory while reading JSON");
    }
    if (*out)
        return 0;
    fault->code = fault_code(&error);
    fault->offset = error.position > 0 ? (size_t)error.position : 0;
    /* Jansson puts up to 20 bytes of the text behind " near '". */
    const char *near = strstr(error.text, " near '");
    const size_t said = near ? (size_t)(near - error.text) : strlen(error.text);
    char quoted[QUOTE_BYTES] = "";
    if (near) {
        near += strlen(" near '");
        const size_t n = strlen(near);
        quote_text(quoted, near, n > 0 ? n - 1 : 0);
    }
    snprintf(fault->text, sizeof fault->text, "%.*s%s%s", (int)said, error.text,
             near ? " near " : "", quoted);
    return ERR_INVALID;
}

int json_load_text(const char *bytes, size_t length, json_t **out, struct json_fault *fault,
                   struct err *e)
{
    return load(bytes, length, 0, out, fault, e);
}

int json_load_answer(const char *bytes, size_t length, json_t **out, struct json_fault *fault,
                     struct err *e)
{
    return load(bytes, length, JSON_ALLOW_NUL, out, fault, e);
}

void json_free_text(char *text)
{
    json_watch_install();
    inner_free(text);
}

/* One try: *out is the text with so many digits if it reads back as the same value. */
static void dump_with_digits(const json_t *value, size_t digits, char **out)
{
    char *text =
        json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(digits));
    json_t *back = text ? json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL) : NULL;
    if (back && json_equal(back, value))
        *out = text;
    else
        inner_free(text);
    json_decref(back);
}

/* Doubles need 15 to 17 digits; fewer read better. */
int json_dump_text(const json_t *value, char **out, struct err *e)
{
    *out = NULL;
    json_watch_begin();
    for (size_t digits = 15; digits <= 17 && !*out; digits++)
        dump_with_digits(value, digits, out);
    if (!json_watch_failed() && *out)
        return 0;
    inner_free(*out);
    *out = NULL;
    return ERR_SET(e, ERR_NOMEM, "out of memory while writing JSON");
}
