/*
 * Damaged files: one byte of every 512 is changed in a database and in its log, the log is cut
 * at every frame, taken from another database, or its index is deleted. Whatever comes of it
 * is one of: refused with a sentence that says what to do; found by the check; the right
 * content; for a log, the content after an earlier commit. What no check can find is a
 * changed byte in text that is stored once only; it is counted, and what is stored twice (ids,
 * answers, statuses, tokens, sources) must be right there.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "io/store_upkeep.h"
#include "store_make.h"

enum { JOBS = 6, STRIDE = 512, WAL_HEADER = 32, FRAME_HEADER = 24, PAGE = 4096 };

/* Nothing here outlives the machine: SQLite's syncs cost time and are left out. Its own calls
 * find these before libc's. */
int fsync(int fd)
{
    (void)fd;
    return 0;
}

int fdatasync(int fd)
{
    (void)fd;
    return 0;
}

/* ------------------------------------------------------------------ files */

struct bytes {
    unsigned char *data;
    size_t n;
};

static struct bytes read_file(const char *path)
{
    struct bytes b = {malloc(8 << 20), 0};
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    b.n = fread(b.data, 1, 8 << 20, f);
    fclose(f);
    return b;
}

static void write_file(const char *path, const unsigned char *data, size_t n)
{
    unlink(path);
    if (n == 0)
        return;
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
}

/* A database of these bytes as "x.db", without what the last one left. */
static const char *place(void **state, struct bytes db, struct bytes wal)
{
    const char *path = path_in(state, "x.db");
    unlink(path_in(state, "x.db-shm"));
    unlink(path_in(state, "x.db.lock"));
    write_file(path_in(state, "x.db-wal"), wal.data, wal.n);
    write_file(path, db.data, db.n);
    return path;
}

/* ------------------------------------------------------------------ content */

static const char told_twice[] =
    "SELECT group_concat(x, char(10)) FROM (SELECT quote(custom_id) || quote(result_id) || "
    "quote(status) || quote(answer) || quote(prompt_tokens) || quote(cached_tokens) || "
    "quote(completion_tokens) || quote(topic) || quote(partition) || quote(offset) AS x "
    "FROM v_jobs ORDER BY job_id)";
static const char everything[] =
    "SELECT group_concat(x, char(10)) FROM (SELECT quote(custom_id) || quote(run_id) || "
    "quote(result_id) || quote(status) || quote(answer) || quote(question) || "
    "quote(prompt_tokens) || quote(cached_tokens) || quote(completion_tokens) || "
    "quote(topic) || quote(partition) || quote(offset) || quote(payload_sha256) || "
    "quote(worker_id) || quote(e2e_ms) || quote(ttft_ms) || quote(queue_ms) || "
    "quote(finished_at) || quote(stored_at) || quote(published_at) || quote(prefix_group) || "
    "(SELECT quote(line) FROM outbox b WHERE b.job_id = v.job_id) || "
    "(SELECT quote(doc_id) || bytes FROM job_documents d WHERE d.job_id = v.job_id) AS x "
    "FROM v_jobs v ORDER BY job_id)";

/* NULL: SQLite refused to read it. "": nothing is there. */
static char *content(struct store *s, const char *sql)
{
    sqlite3_stmt *st = NULL;
    char *text = NULL;
    if (sqlite3_prepare_v2(store_handle(s), sql, -1, &st, NULL) == SQLITE_OK &&
        sqlite3_step(st) == SQLITE_ROW) {
        const char *found = (const char *)sqlite3_column_text(st, 0);
        text = strdup(found ? found : "");
    }
    sqlite3_finalize(st);
    return text;
}

/* The content after each commit, the first one without jobs. */
struct truth {
    char *all[JOBS + 1], *twice[JOBS + 1];
    size_t n;
};

static void note_truth(struct truth *t, struct store *s)
{
    t->all[t->n] = content(s, everything);
    t->twice[t->n] = content(s, told_twice);
    assert_non_null(t->all[t->n]);
    t->n++;
}

static void truth_fini(struct truth *t)
{
    for (size_t i = 0; i < t->n; i++) {
        free(t->all[i]);
        free(t->twice[i]);
    }
}

static bool is_one_of(const char *text, char *const *texts, size_t first, size_t n)
{
    for (size_t i = first; text && i < n; i++)
        if (strcmp(text, texts[i]) == 0)
            return true;
    return false;
}

static void put_jobs(struct store *s, int first, int n, struct truth *t)
{
    static struct made m;
    struct err e = {0};
    for (int i = first; i < first + n; i++) {
        struct buf line = {0};
        make_result(&m, "jobs", false, i);
        snprintf(m.result.id, sizeof m.result.id, "batch_req_%032d", i);
        assert_int_equal(result_emit(&m.result, &line, &e), 0);
        const struct result *results[] = {&m.result};
        const char *lines[] = {buf_str(&line)};
        if (store_put(s, "night", results, lines, 1, &e) != 0)
            fail_msg("%s", e.text);
        buf_fini(&line);
        if (t)
            note_truth(t, s);
    }
}

static struct store *open_run(const char *path)
{
    struct err e = {0};
    struct store *s = NULL;
    if (store_open(path, STORE_OWNER, &s, &e) != 0 || store_begin_run(s, &made_run, &e) != 0)
        fail_msg("%s", e.text);
    return s;
}

/* ------------------------------------------------------------------ outcomes */

struct tally {
    int refused, found, right, earlier, silent;
};

static void ignore(void *ctx, const char *sentence)
{
    (void)ctx;
    (void)sentence;
}

static void says_what_to_do(const struct err *e)
{
    if (!strstr(e->text, "keep the file") || !strstr(e->text, "sheaf sink --db new.db"))
        fail_msg("the sentence gives no advice: %s", e->text);
}

/* is_log: an earlier commit is right too, for SQLite takes a log up to its first bad frame. */
static void judge(struct store *s, const struct truth *t, bool is_log, size_t at,
                  struct tally *tally)
{
    struct store_census census;
    struct err e = {0};
    size_t n_faults = 0;
    const int code = store_check(s, ignore, NULL, &n_faults, &census, &e);
    char *all = content(s, everything), *twice = content(s, told_twice);
    if (code != 0 || n_faults > 0 || !all) {
        tally->found++;
    } else if (is_one_of(all, t->all, t->n - 1, t->n)) {
        tally->right++;
    } else if (is_log && (is_one_of(all, t->all, 0, t->n) || !*all)) {
        tally->earlier++;
    } else if (is_one_of(twice, t->twice, t->n - 1, t->n)) {
        tally->silent++;
    } else {
        fail_msg("byte %zu: wrong content that no check found:\n%s", at, twice);
    }
    free(all);
    free(twice);
}

static void try_as(enum store_mode mode, const char *path, const struct truth *t, bool is_log,
                   size_t at, struct tally *tally)
{
    struct store *s = NULL;
    struct err e = {0};
    const int code = store_open(path, mode, &s, &e);
    if (code == 0) {
        judge(s, t, is_log, at, tally);
    } else {
        tally->refused++;
        if (code == ERR_DB)
            says_what_to_do(&e);
        else
            assert_int_equal(code, ERR_STATE); /* of another program, of another schema */
    }
    store_close(s);
}

static void try_both(const char *path, const struct truth *t, bool is_log, size_t at,
                     struct tally *tally)
{
    try_as(STORE_READER, path, t, is_log, at, tally);
    try_as(STORE_OWNER, path, t, is_log, at, tally);
}

static void say(const char *what, const struct tally *t)
{
    print_message("%s: %d refused, %d found by the check, %d right, %d of an earlier commit, "
                  "%d not noticed\n",
                  what, t->refused, t->found, t->right, t->earlier, t->silent);
}

/* ------------------------------------------------------------------ the damages */

/* A closed database, all in one file. */
static struct bytes make_closed(void **state, struct truth *t)
{
    struct store *s = open_run(path_in(state, "a.db"));
    put_jobs(s, 1, JOBS, NULL);
    note_truth(t, s);
    store_close(s);
    return read_file(path_in(state, "a.db"));
}

/* One whose last commits are in the log, as a kill leaves it. */
static void make_killed(void **state, struct truth *t, struct bytes *db, struct bytes *wal)
{
    struct store *s = open_run(path_in(state, "a.db"));
    sqlite3_wal_checkpoint_v2(store_handle(s), NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
    note_truth(t, s);
    put_jobs(s, 1, JOBS, t);
    *db = read_file(path_in(state, "a.db"));
    *wal = read_file(path_in(state, "a.db-wal"));
    store_close(s);
}

static void a_changed_byte_of_the_database_is_found_or_harmless(void **state)
{
    struct truth t = {0};
    struct tally tally = {0};
    struct bytes db = make_closed(state, &t);
    assert_int_equal(db.n % PAGE, 0);
    for (size_t i = 0; i < db.n / STRIDE; i++) {
        const size_t at = i * STRIDE + i * 137 % STRIDE;
        db.data[at] ^= (unsigned char)(1u << i % 8);
        try_both(place(state, db, (struct bytes){0}), &t, false, at, &tally);
        db.data[at] ^= (unsigned char)(1u << i % 8);
    }
    say("database", &tally);
    assert_true(tally.refused + tally.found > 20); /* the damage is real */
    assert_true(tally.right > 20);                 /* much of a file is free space */
    truth_fini(&t);
    free(db.data);
}

static void a_changed_byte_of_the_log_ends_it_at_a_commit(void **state)
{
    struct truth t = {0};
    struct tally tally = {0};
    struct bytes db, wal;
    make_killed(state, &t, &db, &wal);
    for (size_t i = 0; i < wal.n / STRIDE; i++) {
        const size_t at = i * STRIDE + i * 137 % STRIDE;
        wal.data[at] ^= (unsigned char)(1u << i % 8);
        try_as(i % 2 ? STORE_READER : STORE_OWNER, place(state, db, wal), &t, true, at, &tally);
        wal.data[at] ^= (unsigned char)(1u << i % 8);
    }
    say("log", &tally);
    assert_true(tally.earlier > 20);
    assert_int_equal(tally.silent + tally.found, 0);
    truth_fini(&t);
    free(db.data);
    free(wal.data);
}

static void a_cut_log_ends_at_a_commit(void **state)
{
    struct truth t = {0};
    struct tally tally = {0};
    struct bytes db, wal;
    make_killed(state, &t, &db, &wal);
    for (size_t n = 0; n <= wal.n; n += n ? FRAME_HEADER + PAGE : WAL_HEADER) {
        for (size_t more = 0; more <= 100 && n + more <= wal.n; more += 100)
            try_as(more ? STORE_READER : STORE_OWNER,
                   place(state, db, (struct bytes){wal.data, n + more}), &t, true, n, &tally);
    }
    say("cut log", &tally);
    assert_true(tally.earlier > 20 && tally.right > 0);
    assert_int_equal(tally.silent + tally.found, 0);
    truth_fini(&t);
    free(db.data);
    free(wal.data);
}

static void a_log_without_its_index_is_read_whole(void **state)
{
    struct truth t = {0};
    struct tally tally = {0};
    struct bytes db, wal;
    make_killed(state, &t, &db, &wal);
    try_both(place(state, db, wal), &t, true, 0, &tally); /* place leaves no -shm */
    assert_int_equal(tally.right, 2);
    truth_fini(&t);
    free(db.data);
    free(wal.data);
}

static void a_log_of_another_database_is_refused(void **state)
{
    struct truth t = {0};
    struct store *s = NULL;
    struct err e = {0};
    struct bytes db = make_closed(state, &t);
    /* the other one was never closed: its log holds all of it */
    struct store *other = open_run(path_in(state, "b.db"));
    put_jobs(other, 100, 3, NULL);
    struct bytes wal = read_file(path_in(state, "b.db-wal"));
    for (int mode = 0; mode < 2; mode++) {
        const char *path = place(state, db, wal);
        e = (struct err){0};
        assert_int_equal(store_open(path, mode ? STORE_OWNER : STORE_READER, &s, &e), ERR_DB);
        assert_non_null(strstr(e.text, "belongs to another database"));
        says_what_to_do(&e);
    }
    /* the database itself is as it was */
    try_both(place(state, db, (struct bytes){0}), &t, false, 0, &(struct tally){0});
    store_close(other);
    truth_fini(&t);
    free(db.data);
    free(wal.data);
}

/* The same, but the other one was closed before: its log has only what changed since. */
static void a_late_log_of_another_database_is_found(void **state)
{
    struct truth t = {0};
    struct tally tally = {0};
    struct bytes db = make_closed(state, &t);
    struct store *other = open_run(path_in(state, "b.db"));
    put_jobs(other, 100, JOBS, NULL);
    sqlite3_wal_checkpoint_v2(store_handle(other), NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL,
                              NULL);
    for (int i = 0; i < 4; i++) {
        put_jobs(other, 200 + i, 1, NULL);
        struct bytes wal = read_file(path_in(state, "b.db-wal"));
        try_both(place(state, db, wal), &t, false, 0, &tally);
        free(wal.data);
    }
    say("log of another", &tally);
    assert_int_equal(tally.right + tally.silent, 0);
    store_close(other);
    truth_fini(&t);
    free(db.data);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_changed_byte_of_the_database_is_found_or_harmless),
        TEST(a_changed_byte_of_the_log_ends_it_at_a_commit),
        TEST(a_cut_log_ends_at_a_commit),
        TEST(a_log_without_its_index_is_read_whole),
        TEST(a_log_of_another_database_is_refused),
        TEST(a_late_log_of_another_database_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
