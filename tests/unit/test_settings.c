/* Settings: keys, ranges, files, and what is passed on to librdkafka. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/settings.h"

static int load_bytes(struct settings *s, const void *bytes, size_t n, char *path,
                      struct err *e)
{
    strcpy(path, "/tmp/sheaf-settings-XXXXXX");
    const int fd = mkstemp(path);
    if (fd < 0 || write(fd, bytes, n) != (ssize_t)n)
        abort();
    close(fd);
    const int rc = settings_load_file(s, path, e);
    unlink(path);
    return rc;
}

static int load_text(struct settings *s, const char *text, struct err *e)
{
    char path[64];
    return load_bytes(s, text, strlen(text), path, e);
}

static void every_row_is_found_by_key_prefix_and_flag_and_has_a_valid_default(void **state)
{
    (void)state;
    struct settings s;
    assert_int_equal(settings_init(&s, NULL), 0);
    for (size_t i = 0; i < settings_count(); i++) {
        const struct setting *row = settings_at(i);
        char name[128];
        assert_ptr_equal(settings_find(row->key), row);
        snprintf(name, sizeof name, "sheaf.%s", row->key);
        assert_ptr_equal(settings_find(name), row);
        snprintf(name, sizeof name, "%s", row->key);
        for (char *c = name; *c; c++)
            *c = *c == '.' || *c == '_' ? '-' : *c;
        assert_ptr_equal(settings_find(name), row);
        strcat(name, "x");
        assert_null(settings_find(name));
        assert_true(strlen(row->help) > 0);
    }
    assert_null(settings_find(""));
    assert_null(settings_find("sheaf."));
    assert_null(settings_find("kv"));
    assert_null(settings_find("kv..mb"));
    assert_int_equal(s.batch, 16);
    assert_string_equal(s.kv_type, "bf16");
    assert_false(s.strict);
    assert_null(s.props);
    settings_fini(&s);
}

struct value {
    const char *pair;
    int64_t batch; /* -1: ERR_CONFIG */
};

static void numbers_are_whole_and_in_range(void **state)
{
    (void)state;
    static const struct value values[] = {
        {"sheaf.batch=1", 1},
        {"sheaf.batch=256", 256},
        {" sheaf.batch\t= 7 ", 7},
        {"sheaf.batch=007", 7},
        {"sheaf.batch=0", -1},
        {"sheaf.batch=257", -1},
        {"sheaf.batch=-1", -1},
        {"sheaf.batch=", -1},
        {"sheaf.batch=1.5", -1},
        {"sheaf.batch=1e1", -1},
        {"sheaf.batch=0x10", -1},
        {"sheaf.batch=7 8", -1},
        {"sheaf.batch=9223372036854775808", -1},
        {"sheaf.batch=99999999999999999999999", -1},
    };
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        struct settings s;
        struct err e = {0};
        assert_int_equal(settings_init(&s, NULL), 0);
        const int rc = settings_set_pair(&s, values[i].pair, &e);
        if (rc != (values[i].batch < 0 ? ERR_CONFIG : 0))
            fail_msg("%s gives %d", values[i].pair, rc);
        assert_int_equal(s.batch, rc == 0 ? values[i].batch : 16);
        if (rc != 0)
            assert_non_null(strstr(e.text, "batch="));
        settings_fini(&s);
    }
}

static void seeds_go_up_to_the_greatest_int64(void **state)
{
    (void)state;
    struct settings s;
    assert_int_equal(settings_init(&s, NULL), 0);
    assert_int_equal(settings_set_pair(&s, "sheaf.seed=9223372036854775807", NULL), 0);
    assert_true(s.seed == INT64_MAX);
    settings_fini(&s);
}

static void switches_take_eight_words(void **state)
{
    (void)state;
    static const char *const on[] = {"1", "true", "on", "yes"};
    static const char *const off[] = {"0", "false", "off", "no"};
    static const char *const bad[] = {"", "2", "TRUE", "y", "on off"};
    struct settings s;
    assert_int_equal(settings_init(&s, NULL), 0);
    const struct setting *row = settings_find("strict");
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(settings_set(&s, row, on[i], NULL), 0);
        assert_true(s.strict);
        assert_int_equal(settings_set(&s, row, off[i], NULL), 0);
        assert_false(s.strict);
    }
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(settings_set(&s, row, bad[i], NULL), ERR_CONFIG);
    settings_fini(&s);
}

static void a_file_holds_ours_and_librdkafkas_settings(void **state)
{
    (void)state;
    struct settings s;
    struct err e = {0};
    assert_int_equal(settings_init(&s, NULL), 0);
    const int rc = load_text(&s,
                             "# a comment\r\n"
                             "\n"
                             "   \t\n"
                             "  # another\n"
                             "bootstrap.servers=a:1,b:2\r\n"
                             "sheaf.kv.mb=12\n"
                             "sasl.password = p=q#r \n"
                             "sheaf.run_id=\n"
                             "sheaf.model=/a b/c.gguf\n"
                             "batch=3\n" /* without the prefix it is not ours */
                             "sheaf.kv.mb=13",
                             &e);
    if (rc != 0)
        fail_msg("%s", e.text);
    assert_int_equal(s.kv_mb, 13);
    assert_string_equal(s.model, "/a b/c.gguf");
    assert_string_equal(s.run_id, "");
    assert_int_equal(s.batch, 16);
    static const char *const want[] = {
        "bootstrap.servers", "a:1,b:2", "sasl.password", "p=q#r", "batch", "3"};
    assert_int_equal(s.n_props, 6);
    for (size_t i = 0; i < 6; i++)
        assert_string_equal(s.props[i], want[i]);
    assert_null(s.props[6]);
    settings_fini(&s);
}

struct bad_file {
    const char *text;
    const char *where, *what;
};

static void a_files_errors_name_file_and_line_and_never_a_password(void **state)
{
    (void)state;
    static const struct bad_file files[] = {
        {"\n#\nsheaf.batch=0\n", " line 3", "outside 1..256"},
        {"sheaf.nothing=1\n", " line 1", "there is no setting sheaf.nothing"},
        {"a=b\nno equals sign\n", " line 2", "is not key=value"},
        {"a=b\n\n\n=value\n", " line 4", "is not key=value"},
        {"sheaf.=1", " line 1", "there is no setting"},
        {"sasl.password=secret\nsheaf.strict=maybe\n", " line 2", "strict=maybe"},
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        struct settings s;
        struct err e = {0};
        char path[64];
        assert_int_equal(settings_init(&s, NULL), 0);
        const char *text = files[i].text;
        const int rc = load_bytes(&s, text, strlen(text), path, &e);
        if (rc != ERR_CONFIG)
            fail_msg("file %zu gives %d", i, rc);
        assert_non_null(strstr(e.text, path));
        if (!strstr(e.text, files[i].where) || !strstr(e.text, files[i].what))
            fail_msg("file %zu: %s", i, e.text);
        assert_null(strstr(e.text, "secret"));
        settings_fini(&s);
    }
}

static void lines_have_a_longest_length(void **state)
{
    (void)state;
    static char text[6000];
    char path[64];
    for (size_t n = 4090; n < 4100; n++) {
        struct settings s;
        struct err e = {0};
        assert_int_equal(settings_init(&s, NULL), 0);
        memset(text, 'v', n);
        memcpy(text, "k=", 2);
        text[n] = '\n';
        const int rc = load_bytes(&s, text, n + 1, path, &e);
        assert_int_equal(rc, n <= 4094 ? 0 : ERR_CONFIG);
        if (rc == 0)
            assert_int_equal(strlen(s.props[1]), n - 2);
        else
            assert_non_null(strstr(e.text, "line 1"));
        settings_fini(&s);
    }
}

static void what_is_no_text_file_is_refused(void **state)
{
    (void)state;
    struct settings s;
    struct err e = {0};
    char path[64];
    assert_int_equal(settings_init(&s, NULL), 0);
    assert_int_equal(settings_load_file(&s, "/nonexistent/x", &e), ERR_CONFIG);
    assert_non_null(strstr(e.text, "/nonexistent/x"));
    err_clear(&e);
    assert_int_equal(settings_load_file(&s, "/tmp", &e), ERR_CONFIG);
    assert_non_null(strstr(e.text, "/tmp"));
    err_clear(&e);
    assert_int_equal(load_bytes(&s, "a=b\0c=d\n", 8, path, &e), ERR_CONFIG);
    settings_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_is_found_by_key_prefix_and_flag_and_has_a_valid_default),
        cmocka_unit_test(numbers_are_whole_and_in_range),
        cmocka_unit_test(seeds_go_up_to_the_greatest_int64),
        cmocka_unit_test(switches_take_eight_words),
        cmocka_unit_test(a_file_holds_ours_and_librdkafkas_settings),
        cmocka_unit_test(a_files_errors_name_file_and_line_and_never_a_password),
        cmocka_unit_test(lines_have_a_longest_length),
        cmocka_unit_test(what_is_no_text_file_is_refused),
    };
    return cmocka_run_group_tests_name("settings", tests, NULL, NULL);
}
