/*
 * What the parsing files share. Functions return 0, ERR_NOMEM, or ERR_INVALID after they put
 * an error into the job; the caller forwards either (TRY). json_t pointers are borrowed.
 *
 * A path names a field in errors and warnings ("messages[1].role", "params.top_p"); for OpenAI
 * lines it starts inside the body, as OpenAI's own errors do.
 */
#ifndef SHEAF_JOBS_INT_H
#define SHEAF_JOBS_INT_H

#include <jansson.h>

#include "job_parse.h"

enum {
    PATH_BYTES = 128,
    QUOTE_TEXT_BYTES = 40,                  /* job text in an error message */
    QUOTE_BYTES = 4 * QUOTE_TEXT_BYTES + 8, /* the same with escapes, quotes and NUL */
};

/* One job being parsed. */
struct parse {
    struct job *job;
    const struct job_parse_options *options;
    struct err *e;
    int64_t max_tokens, max_completion_tokens; /* as given; 0 = not given */
    bool has_max_tokens, has_max_completion_tokens;
};

/* json_load.c */
struct json_fault {
    const char *code;
    size_t offset;
    char text[JSON_ERROR_TEXT_LENGTH + QUOTE_BYTES];
};
/* Text that json_scan_text passed -> new reference; ERR_INVALID fills fault. */
int json_load_text(const char *bytes, size_t length, json_t **out, struct json_fault *fault,
                   struct err *e);
/* The same of what we wrote ourselves: strings may hold NUL, as answers of a model do. */
int json_load_answer(const char *bytes, size_t length, json_t **out, struct json_fault *fault,
                     struct err *e);
/* The shortest text that reads back as the same value (doubles included). */
int json_dump_text(const json_t *value, char **out, struct err *e);
void json_free_text(char *text); /* a text of json_dump_text; accepts NULL */
/* Builders' failures: from json_watch_begin on, json_watch_failed tells whether Jansson ran out
 * of memory on this thread. */
void json_watch_begin(void);
bool json_watch_failed(void);

/* job.c: what a job is called that gives itself no name; NULL: no memory. */
char *job_place_name(const struct job_source *source);

/* parse_value.c: single values, errors and warnings */
int parse_nomem(const struct parse *p);
int parse_fail(struct parse *p, const char *code, const char *path, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
int parse_fail_type(struct parse *p, const char *path, const char *wanted, const json_t *value);
int parse_unsupported(struct parse *p, const char *path, const char *why);
int parse_warn_ignored(struct parse *p, const char *path); /* strict: unsupported_parameter */
int parse_warn_unknown(struct parse *p, const char *path); /* strict: unknown_parameter */
/* prefix + a key of the job, escaped and cut; for unknown fields. */
void parse_path(char path[PATH_BYTES], const char *prefix, const char *key);
bool parse_is_absent(const json_t *value); /* NULL or null: OpenAI treats both alike */
int parse_string(struct parse *p, const json_t *value, const char *path, size_t bytes_min,
                 size_t bytes_max, char **out, size_t *length);
int parse_integer(struct parse *p, const json_t *value, const char *path, int64_t min,
                  int64_t max, int64_t *out);
int parse_bool(struct parse *p, const json_t *value, const char *path, bool *out);
/* New array of ids of [0, 2^31); at most n_max of them. */
int parse_ids(struct parse *p, const json_t *value, const char *path, size_t n_max,
              int32_t **out, size_t *n);
/* A value for an error message: strings escaped, cut and in quotes. */
void parse_quote(char out[QUOTE_BYTES], const json_t *value);
void quote_text(char out[QUOTE_BYTES], const char *bytes, size_t length);

/* parse_params.c */
/* Handles a sampling or output option; *known false: not one. */
int parse_param(struct parse *p, const char *key, const json_t *value, const char *path,
                bool *known);
/* Rules over several options, and the defaults; after all of them were read. */
int parse_params_finish(struct parse *p, const char *prefix);

/* parse_content.c */
int parse_messages(struct parse *p, const json_t *value, const char *path);
int parse_documents(struct parse *p, const json_t *value, const char *path);
int parse_prediction(struct parse *p, const json_t *value, const char *path); /* OpenAI's */
/* Appends one message; takes content also when it fails. */
int parse_add_message_take(struct parse *p, enum job_role role, char *content, size_t length);

/* parse_native.c, parse_openai.c */
int parse_native(struct parse *p, const json_t *root);
int parse_openai_line(struct parse *p, const json_t *root); /* {custom_id, body, ...} */
int parse_openai_body(struct parse *p, const json_t *body, bool is_line);
int parse_metadata(struct parse *p, const json_t *value, const char *path);
int parse_cache_salt(struct parse *p, const json_t *value, const char *path);
/* custom_id of a line or a bare body. */
int parse_custom_id(struct parse *p, const json_t *value);

#endif
