/*
 * Settings: one row each in schema/settings.def.
 *
 * Precedence: flags, then the file named with -F (or SHEAF_CONFIG), then defaults. The file is
 * lines of key=value, '#' comments; keys with the prefix "sheaf." are rows of settings.def,
 * all others go to librdkafka unchanged, so an existing kcat.conf or client.properties works
 * as it is.
 */
#ifndef SHEAF_SETTINGS_H
#define SHEAF_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum setting_kind { SETTING_S64, SETTING_BOOL, SETTING_TEXT };

struct setting {
    enum setting_kind kind;
    const char *key; /* "prefill.chunk_tokens" */
    const char *default_text;
    int64_t min, max;
    const char *help;
};

struct settings {
#define FIELD_S64(field)                                 int64_t field;
#define FIELD_BOOL(field)                                bool field;
#define FIELD_TEXT(field)                                char *field;
#define SETTING(kind, field, key, value, min, max, help) FIELD_##kind(field)
#include "schema/settings.def"
#undef SETTING
    /* librdkafka properties in order: key, value, key, value, ..., NULL. Owned. */
    char **props;
    size_t n_props;
};

size_t settings_count(void);
const struct setting *settings_at(size_t index);
/* By key ("kv.mb"), key with prefix ("sheaf.kv.mb") or flag ("kv-mb"); NULL: none. */
const struct setting *settings_find(const char *name);

int settings_init(struct settings *s, struct err *e);
void settings_fini(struct settings *s);

/* Parses and range-checks a value for a row. */
int settings_set(struct settings *s, const struct setting *row, const char *value,
                 struct err *e);
int settings_add_prop(struct settings *s, const char *key, const char *value, struct err *e);
/* "key=value" as given to -X: "sheaf." keys are ours, others librdkafka's. */
int settings_set_pair(struct settings *s, const char *pair, struct err *e);
int settings_load_file(struct settings *s, const char *path, struct err *e);

#endif
