/*
 * The power fails at every call that SQLite and the output file make, and of what was not
 * synced any part is gone. Whatever is left opens as a whole database: it holds every answer
 * that store_put had returned for, and marks none that is not in the output file; a run over it
 * ends with one line an input. The twin leaves the syncs out, and must lose answers.
 *
 * SHEAF_TEST_SEED draws anew, SHEAF_TEST_IMAGES tries more.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <fcntl.h>
#include <sqlite3.h>

#include "base/rng.h"
#include "disk_tape.h"
#include "io/queue_file.h"
#include "store_make.h"

enum {
    BATCHES = 6,
    BATCH_LINES = 2,
    LINES = BATCHES * BATCH_LINES,
    IMAGES = 600, /* drawn ones, of each test */
    UNSAFE_IMAGES = 300,
    FINISH_EVERY = 16, /* so many images are finished by a run, the others only looked at */
    FEW_PAGES = 6,     /* of a log that is often moved into the database */
    TEXT_BYTES = 4096,
};

/* A sanitizer makes an image dear: every fifth call then. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STRIDE = 5 };
#else
enum { STRIDE = 1 };
#endif

static uint64_t seed = 1;
static size_t n_images = IMAGES;

/* After how many calls the store and the file had told that they hold a batch. */
static size_t stored_at[BATCHES], written_at[BATCHES];

static void path_of(char *out, const char *folder, const char *name)
{
    snprintf(out, TEXT_BYTES, "%s/%s", folder, name);
}

static void must(int code, const struct err *e)
{
    if (code != 0)
        fail_msg("%s", e->text);
}

static void run_sql(struct store *s, const char *sql)
{
    if (sql)
        assert_int_equal(sqlite3_exec(store_handle(s), sql, NULL, NULL, NULL), SQLITE_OK);
}

static void work_batch(struct store *s, struct file_sink *sink, int batch)
{
    struct made m[BATCH_LINES];
    const struct result *results[BATCH_LINES];
    const char *lines[BATCH_LINES];
    const struct job_source *sources[BATCH_LINES];
    struct err e = {0};
    for (int i = 0; i < BATCH_LINES; i++) {
        results[i] = make_result(&m[i], "in.jsonl", true, batch * BATCH_LINES + i + 1);
        lines[i] = m[i].line;
        sources[i] = &m[i].job.source;
    }
    char *line = NULL;
    bool published;
    must(store_find(s, sources[0], m[0].job.payload_sha256, &line, &published, &e), &e);
    free(line);
    if (line)
        return; /* resumed: stored, and written when the file was opened */
    must(store_put(s, "night", results, lines, BATCH_LINES, &e), &e);
    stored_at[batch] = disk_tape_length();
    must(file_sink_write(sink, sources, lines, BATCH_LINES, &e), &e);
    written_at[batch] = disk_tape_length();
}

/* A whole run, or what is left of one. */
static void work(const char *folder, const char *pragma)
{
    char path[TEXT_BYTES];
    struct store *s;
    struct file_sink *sink;
    struct err e = {0};
    path_of(path, folder, "a.db");
    must(store_open(path, STORE_OWNER, &s, &e), &e);
    run_sql(s, pragma);
    must(store_begin_run(s, &made_run, &e), &e);
    path_of(path, folder, "out.jsonl");
    must(file_sink_open(path, "in.jsonl", s, false, &sink, &e), &e);
    for (int batch = 0; batch < BATCHES; batch++)
        work_batch(s, sink, batch);
    must(file_sink_finish(sink, &e), &e);
    must(store_end_run(s, "night", "completed", NULL, &e), &e);
    file_sink_close(sink);
    store_close(s);
}

/* ------------------------------------------------------------------ looking at an image */

static void ask(sqlite3 *db, const char *sql, char *answer)
{
    sqlite3_stmt *st = NULL;
    if (sqlite3_prepare_v2(db, sql, -1, &st, NULL) != SQLITE_OK)
        snprintf(answer, TEXT_BYTES, "%s", sqlite3_errmsg(db));
    else if (sqlite3_step(st) != SQLITE_ROW)
        snprintf(answer, TEXT_BYTES, "no row: %s", sqlite3_errmsg(db));
    else
        snprintf(answer, TEXT_BYTES, "%s", (const char *)sqlite3_column_text(st, 0));
    sqlite3_finalize(st);
}

static long count(sqlite3 *db, const char *sql)
{
    char answer[TEXT_BYTES];
    ask(db, sql, answer);
    return strtol(answer, NULL, 10);
}

static size_t read_output(const char *folder, char *bytes)
{
    char path[TEXT_BYTES];
    path_of(path, folder, "out.jsonl");
    FILE *file = fopen(path, "rb");
    const size_t n = file ? fread(bytes, 1, TEXT_BYTES - 1, file) : 0;
    if (file)
        fclose(file);
    bytes[n] = '\0';
    return n;
}

static long count_lines(const char *bytes, size_t length)
{
    long n = 0;
    for (size_t i = 0; i < length; i++)
        n += bytes[i] == '\n';
    return n;
}

static long acknowledged(const size_t at[BATCHES], size_t length)
{
    long n = 0;
    for (int batch = 0; batch < BATCHES; batch++)
        n += at[batch] <= length ? BATCH_LINES : 0;
    return n;
}

/* The lines that are marked are in the file, one each, before the length that is kept. */
static bool marks_hold(sqlite3 *db, const char *folder)
{
    char bytes[TEXT_BYTES];
    const size_t length = read_output(folder, bytes);
    const size_t good = (size_t)count(db, "SELECT coalesce(sum(bytes), 0) FROM sinks");
    const long marked = count(db, "SELECT count(*) FROM outbox WHERE published_at IS NOT NULL");
    return good <= length && count_lines(bytes, good) == marked;
}

struct verdict {
    size_t images, torn, lost, unwritten;
};

/* In a database whose making the power cut ended there is nothing yet. */
static void look_at(const char *folder, size_t length, struct verdict *v)
{
    char path[TEXT_BYTES], answer[TEXT_BYTES];
    sqlite3 *db;
    path_of(path, folder, "a.db");
    if (access(path, F_OK) != 0)
        return;
    assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
    ask(db, "PRAGMA integrity_check", answer);
    v->torn += strcmp(answer, "ok") != 0;
    const bool is_made =
        count(db, "SELECT count(*) FROM sqlite_schema WHERE name = 'sinks'") == 1;
    const long stored =
        is_made ? count(db, "SELECT count(*) FROM jobs JOIN outbox USING (job_id)") : 0;
    v->lost += stored < acknowledged(stored_at, length);
    const long marked =
        is_made ? count(db, "SELECT count(*) FROM outbox WHERE published_at IS NOT NULL") : 0;
    v->unwritten +=
        marked < acknowledged(written_at, length) || (is_made && !marks_hold(db, folder));
    sqlite3_close(db);
}

static void finish(const char *folder)
{
    char bytes[TEXT_BYTES], line[64];
    work(folder, NULL);
    assert_int_equal(count_lines(bytes, read_output(folder, bytes)), LINES);
    for (int n = 1; n <= LINES; n++) {
        snprintf(line, sizeof line, "{\"custom_id\":\"q-%d\"}\n", n);
        assert_non_null(strstr(bytes, line));
    }
}

static void empty_folder(const char *folder)
{
    static const char *const names[] = {"a.db",         "a.db-wal",  "a.db-shm",
                                        "a.db-journal", "a.db.lock", "out.jsonl"};
    char path[TEXT_BYTES];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        path_of(path, folder, names[i]);
        unlink(path);
    }
}

/* In the folder of the run itself, whose path the database knows. */
static void try_image(const char *folder, size_t length, enum disk_tape_rest rest,
                      uint64_t draw, bool finishes, struct verdict *v)
{
    empty_folder(folder);
    disk_tape_image(length, rest, draw, folder);
    look_at(folder, length, v);
    if (finishes)
        finish(folder);
    v->images++;
}

/* Every call in turn with all and with nothing of what was not synced, and drawn images. */
static struct verdict try_images(const char *pragma, size_t n_drawn, bool finishes)
{
    void *folder;
    struct verdict v = {0};
    size_t stored[BATCHES], written[BATCHES];
    make_folder(&folder);
    disk_tape_begin(folder);
    work(folder, pragma);
    disk_tape_end();
    const size_t length = disk_tape_length();
    memcpy(stored, stored_at, sizeof stored);
    memcpy(written, written_at, sizeof written);
    for (size_t i = 0; i <= length || i < n_drawn; i += STRIDE) {
        const bool is_finished = finishes && i % FINISH_EVERY == 0;
        memcpy(stored_at, stored, sizeof stored); /* a run that finishes an image sets them */
        memcpy(written_at, written, sizeof written);
        if (i <= length) {
            try_image(folder, i, DISK_TAPE_ALL, 0, is_finished, &v);
            try_image(folder, i, DISK_TAPE_NONE, 0, false, &v);
        }
        memcpy(stored_at, stored, sizeof stored);
        memcpy(written_at, written, sizeof written);
        if (i < n_drawn)
            try_image(folder, i % (length + 1), DISK_TAPE_SOME, rng_bits(seed, i, 0),
                      is_finished, &v);
    }
    remove_folder(&folder);
    print_message("seed %llu: %zu images of %zu calls with %zu syncs\n",
                  (unsigned long long)seed, v.images, length, disk_tape_syncs(length));
    return v;
}

static void expect_nothing_lost(const char *pragma)
{
    const struct verdict v = try_images(pragma, n_images, true);
    assert_int_equal(v.torn, 0);
    assert_int_equal(v.lost, 0);
    assert_int_equal(v.unwritten, 0);
}

static void a_power_cut_loses_no_answer(void **state)
{
    (void)state;
    expect_nothing_lost(NULL);
}

static void nor_while_the_log_moves_into_the_database(void **state)
{
    char pragma[64];
    (void)state;
    snprintf(pragma, sizeof pragma, "PRAGMA wal_autocheckpoint = %d", FEW_PAGES);
    expect_nothing_lost(pragma);
}

static void without_syncs_answers_are_lost(void **state)
{
    (void)state;
    const struct verdict v = try_images(
        "PRAGMA synchronous = OFF; PRAGMA wal_autocheckpoint = 6", UNSAFE_IMAGES, false);
    assert_true(v.torn > 0);
    assert_true(v.lost > 0);
    assert_true(v.unwritten > 0);
}

int main(void)
{
    const char *given = getenv("SHEAF_TEST_SEED"), *wanted = getenv("SHEAF_TEST_IMAGES");
    if (given)
        seed = strtoull(given, NULL, 10);
    if (wanted)
        n_images = strtoull(wanted, NULL, 10);
    if (access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_power_cut_loses_no_answer),
        cmocka_unit_test(nor_while_the_log_moves_into_the_database),
        cmocka_unit_test(without_syncs_answers_are_lost),
    };
    return cmocka_run_group_tests_name("power_faults", tests, NULL, NULL);
}
