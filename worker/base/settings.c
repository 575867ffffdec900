#include "base/settings.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

/* The row's place in struct settings stands beside the public part. */
struct row {
    struct setting setting;
    size_t offset;
};

#define DEFAULT_S64(value)  #value
#define DEFAULT_BOOL(value) #value
#define DEFAULT_TEXT(value) value
#define SETTING(kind_, field_, key_, value_, min_, max_, help_)                                \
    {{.kind = SETTING_##kind_,                                                                 \
      .key = key_,                                                                             \
      .default_text = DEFAULT_##kind_(value_),                                                 \
      .min = min_,                                                                             \
      .max = max_,                                                                             \
      .help = help_},                                                                          \
     offsetof(struct settings, field_)},
static const struct row rows[] = {
#include "schema/settings.def"
};
#undef SETTING

enum { ROWS_COUNT = sizeof rows / sizeof rows[0], LINE_BYTES = 4096 };

size_t settings_count(void)
{
    return ROWS_COUNT;
}

static bool is_flag_of(const char *name, const char *key)
{
    for (; *name && *key; name++, key++) {
        const char wanted = *key == '.' || *key == '_' ? '-' : *key;
        if (*name != wanted && *name != *key)
            return false;
    }
    return *name == *key;
}

const struct setting *settings_at(size_t index)
{
    ASSERT(index < ROWS_COUNT);
    return &rows[index].setting;
}

const struct setting *settings_find(const char *name)
{
    if (strncmp(name, "sheaf.", 6) == 0)
        name += 6;
    for (size_t i = 0; i < ROWS_COUNT; i++)
        if (is_flag_of(name, rows[i].setting.key))
            return &rows[i].setting;
    return NULL;
}

static void *field_of(struct settings *s, const struct setting *setting)
{
    const struct row *row = (const struct row *)(const void *)setting;
    return (char *)s + row->offset;
}

static int set_integer(struct settings *s, const struct setting *row, const char *value,
                       struct err *e)
{
    char *end;
    errno = 0;
    const long long number = strtoll(value, &end, 10);
    if (errno != 0 || end == value || *end != '\0')
        return ERR_SET(e, ERR_CONFIG, "%s=%s is not a whole number", row->key, value);
    if (number < row->min || number > row->max)
        return ERR_SET(e, ERR_CONFIG, "%s=%s is outside %lld..%lld", row->key, value,
                       (long long)row->min, (long long)row->max);
    *(int64_t *)field_of(s, row) = number;
    return 0;
}

static int set_bool(struct settings *s, const struct setting *row, const char *value,
                    struct err *e)
{
    static const char *const words[] = {"0", "1", "false", "true", "off", "on", "no", "yes"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(value, words[i]) != 0)
            continue;
        *(bool *)field_of(s, row) = i % 2 == 1;
        return 0;
    }
    return ERR_SET(e, ERR_CONFIG, "%s=%s is not one of on, off", row->key, value);
}

int settings_set(struct settings *s, const struct setting *row, const char *value,
                 struct err *e)
{
    switch (row->kind) {
    case SETTING_S64: return set_integer(s, row, value, e);
    case SETTING_BOOL: return set_bool(s, row, value, e);
    case SETTING_TEXT: break;
    }
    char *text = strdup(value);
    if (!text)
        return ERR_SET(e, ERR_NOMEM, "no memory for %s", row->key);
    char **field = field_of(s, row);
    free(*field);
    *field = text;
    return 0;
}

int settings_init(struct settings *s, struct err *e)
{
    *s = (struct settings){0};
    for (size_t i = 0; i < ROWS_COUNT; i++) {
        const int rc = settings_set(s, &rows[i].setting, rows[i].setting.default_text, e);
        if (rc != 0) {
            settings_fini(s);
            return rc;
        }
    }
    return 0;
}

void settings_fini(struct settings *s)
{
    for (size_t i = 0; i < ROWS_COUNT; i++)
        if (rows[i].setting.kind == SETTING_TEXT)
            free(*(char **)field_of(s, &rows[i].setting));
    for (size_t i = 0; i < s->n_props; i++)
        free(s->props[i]);
    free(s->props);
    *s = (struct settings){0};
}

int settings_add_prop(struct settings *s, const char *key, const char *value, struct err *e)
{
    char **props = realloc(s->props, (s->n_props + 3) * sizeof props[0]);
    if (!props)
        return ERR_SET(e, ERR_NOMEM, "no memory for property %s", key);
    s->props = props;
    char *key_copy = strdup(key);
    char *value_copy = strdup(value);
    if (!key_copy || !value_copy) {
        free(key_copy);
        free(value_copy);
        return ERR_SET(e, ERR_NOMEM, "no memory for property %s", key);
    }
    props[s->n_props++] = key_copy;
    props[s->n_props++] = value_copy;
    props[s->n_props] = NULL;
    return 0;
}

static char *trim(char *text)
{
    while (*text == ' ' || *text == '\t')
        text++;
    size_t n = strlen(text);
    while (n > 0 && strchr(" \t\r\n", text[n - 1]))
        text[--n] = '\0';
    return text;
}

int settings_set_pair(struct settings *s, const char *pair, struct err *e)
{
    char line[LINE_BYTES];
    const int length = snprintf(line, sizeof line, "%s", pair);
    if (length < 0 || (size_t)length >= sizeof line)
        return ERR_SET(e, ERR_CONFIG, "a setting is longer than %d bytes", LINE_BYTES - 1);
    char *equals = strchr(line, '=');
    if (!equals)
        return ERR_SET(e, ERR_CONFIG, "'%.80s' is not key=value", pair);
    *equals = '\0';
    const char *key = trim(line);
    if (*key == '\0')
        return ERR_SET(e, ERR_CONFIG, "a value without a key is not key=value");
    const char *value = trim(equals + 1);
    if (strncmp(key, "sheaf.", 6) != 0)
        return settings_add_prop(s, key, value, e);
    const struct setting *row = settings_find(key);
    if (!row)
        return ERR_SET(e, ERR_CONFIG, "there is no setting %s (sheaf help settings lists them)",
                       key);
    return settings_set(s, row, value, e);
}

int settings_load_file(struct settings *s, const char *path, struct err *e)
{
    FILE *file = fopen(path, "r");
    if (!file)
        return ERR_SET(e, ERR_CONFIG, "cannot open the settings file %s: %s", path,
                       strerror(errno));
    char line[LINE_BYTES];
    int rc = 0;
    for (int number = 1; rc == 0 && fgets(line, sizeof line, file); number++) {
        if (!strchr(line, '\n') && !feof(file)) {
            rc = ERR_SET(e, ERR_CONFIG, "%s line %d is longer than %d bytes", path, number,
                         LINE_BYTES - 1);
            break;
        }
        const char *text = trim(line);
        if (*text == '\0' || *text == '#')
            continue;
        rc = settings_set_pair(s, text, e);
        if (rc != 0)
            err_prefix(e, "%s line %d", path, number);
    }
    if (rc == 0 && ferror(file)) /* a directory opens, but cannot be read */
        rc = ERR_SET(e, ERR_CONFIG, "cannot read the settings file %s: %s", path,
                     strerror(errno));
    fclose(file);
    return rc;
}
