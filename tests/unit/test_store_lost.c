/* Ranges that a topic lost: entered once, also when they are met again, or have grown. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "io/store_lost.h"
#include "store_make.h"

static void note(struct store *s, const char *topic, int32_t partition, int64_t first,
                 int64_t last)
{
    struct err e = {0};
    const struct store_lost lost = {topic, partition, first, last, "retention"};
    if (store_note_lost(s, &lost, &e) != 0)
        fail_msg("%s", e.text);
}

static void expect(struct store *s, const char *wanted)
{
    sqlite3_stmt *st;
    assert_int_equal(sqlite3_prepare_v2(
                         store_handle(s),
                         "SELECT group_concat(topic || '/' || partition || ' ' || first_offset"
                         " || '-' || last_offset, ', ')"
                         " FROM (SELECT * FROM lost_ranges ORDER BY lost_id)",
                         -1, &st, NULL),
                     SQLITE_OK);
    assert_int_equal(sqlite3_step(st), SQLITE_ROW);
    assert_string_equal((const char *)sqlite3_column_text(st, 0), wanted);
    sqlite3_finalize(st);
}

static void what_is_lost_is_noted_once(void **state)
{
    const char *path = path_in(state, "lost.db");
    struct store *s;
    assert_int_equal(store_open(path, STORE_OWNER, &s, NULL), 0);
    note(s, "t", 0, 50, 69);
    note(s, "t", 0, 50, 69);
    expect(s, "t/0 50-69");
    note(s, "t", 0, 50, 80); /* more is gone at the next start */
    expect(s, "t/0 50-69, t/0 70-80");
    note(s, "t", 0, 60, 75);
    note(s, "t", 0, 80, 80);
    expect(s, "t/0 50-69, t/0 70-80");
    note(s, "t", 1, 50, 69);
    note(s, "u", 0, 60, 60);
    note(s, "t", 0, 90, 90);
    expect(s, "t/0 50-69, t/0 70-80, t/1 50-69, u/0 60-60, t/0 90-90");
    store_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_lost_is_noted_once)};
    return cmocka_run_group_tests_name("store_lost", tests, make_folder, remove_folder);
}
