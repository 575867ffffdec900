/*
 * Every write, sync and cut that SQLite and the output file do fails in turn, once and for
 * good, or is the last thing the process does; then every allocation of SQLite. After each, the
 * database must be whole, no line may be marked that is not in the file, and a run without
 * faults must end with exactly one line an input.
 *
 * The system calls are taken over by defining them here: the program's own definitions come
 * before libc's for SQLite too.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "io/queue_file.h"
#include "store_make.h"

enum fault { FAULT_NONE, FAULT_ONCE, FAULT_FOR_GOOD, FAULT_KILL_BEFORE, FAULT_KILL_HALFWAY };

static struct {
    enum fault fault;
    int error;
    int countdown; /* the call that makes it 0 is the one */
    int calls;
} plan;

enum { EXIT_KILLED = 77, BATCHES = 3, BATCH_LINES = 2, LINES = BATCHES * BATCH_LINES };

/* True: the call fails with errno. */
static bool strikes(int fd, const void *bytes, size_t n, off_t at)
{
    plan.calls++;
    if (plan.fault == FAULT_NONE || --plan.countdown > 0)
        return false;
    if (plan.countdown < 0 && plan.fault != FAULT_FOR_GOOD)
        return false;
    if (plan.fault == FAULT_KILL_HALFWAY && n > 1)
        syscall(SYS_pwrite64, fd, bytes, n / 2, at);
    if (plan.fault == FAULT_KILL_BEFORE || plan.fault == FAULT_KILL_HALFWAY)
        _exit(EXIT_KILLED);
    errno = plan.error;
    return true;
}

ssize_t pwrite(int fd, const void *bytes, size_t n, off_t at)
{
    return strikes(fd, bytes, n, at) ? -1 : syscall(SYS_pwrite64, fd, bytes, n, at);
}

ssize_t pwrite64(int fd, const void *bytes, size_t n, off64_t at)
{
    return strikes(fd, bytes, n, at) ? -1 : syscall(SYS_pwrite64, fd, bytes, n, at);
}

int fdatasync(int fd)
{
    return strikes(fd, NULL, 0, 0) ? -1 : (int)syscall(SYS_fdatasync, fd);
}

int fsync(int fd)
{
    return strikes(fd, NULL, 0, 0) ? -1 : (int)syscall(SYS_fsync, fd);
}

int ftruncate(int fd, off_t length)
{
    return strikes(fd, NULL, 0, 0) ? -1 : (int)syscall(SYS_ftruncate, fd, length);
}

int ftruncate64(int fd, off64_t length)
{
    return strikes(fd, NULL, 0, 0) ? -1 : (int)syscall(SYS_ftruncate, fd, length);
}

/* SQLite's allocator with a countdown of its own. */
static sqlite3_mem_methods real_memory;
static int memory_countdown; /* 0: off */
static bool memory_for_good;
static int memory_strikes;

static bool memory_fails(void)
{
    if (memory_countdown == 0)
        return false;
    if (memory_countdown > 1) {
        memory_countdown--;
        return false;
    }
    memory_strikes++;
    if (!memory_for_good)
        memory_countdown = 0;
    return true;
}

static void *failing_malloc(int n)
{
    return memory_fails() ? NULL : real_memory.xMalloc(n);
}

static void *failing_realloc(void *p, int n)
{
    return memory_fails() ? NULL : real_memory.xRealloc(p, n);
}

/* One more try where the error says that it can help. */
#define AGAIN(code, call)                                                                      \
    do {                                                                                       \
        struct err first = {0};                                                                \
        e = &first;                                                                            \
        (code) = (call);                                                                       \
        if ((code) != 0 && (first.flags & ERR_RETRY)) {                                        \
            err_clear(&first);                                                                 \
            (code) = (call);                                                                   \
        }                                                                                      \
        *last = first;                                                                         \
        if ((code) != 0)                                                                       \
            goto out;                                                                          \
    } while (0)

static int work_batches(struct store *s, struct file_sink *sink, struct err *last)
{
    struct err *e;
    int code = 0;
    for (int batch = 0; batch < BATCHES; batch++) {
        struct made m[BATCH_LINES];
        const struct result *results[BATCH_LINES];
        const char *lines[BATCH_LINES];
        const struct job_source *sources[BATCH_LINES];
        for (int i = 0; i < BATCH_LINES; i++) {
            results[i] = make_result(&m[i], "in.jsonl", true, batch * BATCH_LINES + i + 1);
            lines[i] = m[i].line;
            sources[i] = &m[i].job.source;
        }
        char *line = NULL;
        bool published;
        AGAIN(code, store_find(s, sources[0], m[0].job.payload_sha256, &line, &published, e));
        free(line);
        if (line)
            continue; /* resumed: stored, and written when the file was opened */
        AGAIN(code, store_put(s, "night", results, lines, BATCH_LINES, e));
        AGAIN(code, file_sink_write(sink, sources, lines, BATCH_LINES, e));
    }
    AGAIN(code, file_sink_finish(sink, e));
    AGAIN(code, store_end_run(s, "night", "completed", NULL, e));
out:
    return code;
}

/* A whole run, or what is left of one. */
static int work(const char *folder, struct err *last)
{
    char db[4200], out_path[4200];
    struct store *s = NULL;
    struct file_sink *sink = NULL;
    struct err *e;
    int code = 0;
    snprintf(db, sizeof db, "%s/a.db", folder);
    snprintf(out_path, sizeof out_path, "%s/out.jsonl", folder);
    AGAIN(code, store_open(db, STORE_OWNER, &s, e));
    AGAIN(code, store_begin_run(s, &made_run, e));
    AGAIN(code, file_sink_open(out_path, "in.jsonl", s, false, &sink, e));
    code = work_batches(s, sink, last);
out:
    file_sink_close(sink);
    store_close(s);
    return code;
}

static void ask(const char *folder, const char *sql, char *answer, size_t size)
{
    char path[4200];
    sqlite3 *db;
    sqlite3_stmt *st;
    snprintf(path, sizeof path, "%s/a.db", folder);
    assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
    if (sqlite3_prepare_v2(db, sql, -1, &st, NULL) != SQLITE_OK)
        snprintf(answer, size, "%s", sqlite3_errmsg(db));
    else if (sqlite3_step(st) != SQLITE_ROW)
        snprintf(answer, size, "no row: %s", sqlite3_errmsg(db));
    else
        snprintf(answer, size, "%s", (const char *)sqlite3_column_text(st, 0));
    sqlite3_finalize(st);
    sqlite3_close(db);
}

static size_t read_output(const char *folder, char *bytes, size_t size)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/out.jsonl", folder);
    const int fd = open(path, O_RDONLY);
    if (fd < 0)
        return 0;
    const ssize_t n = read(fd, bytes, size - 1);
    close(fd);
    bytes[n] = '\0';
    return (size_t)n;
}

static int count_lines(const char *bytes, size_t length)
{
    int n = 0;
    for (size_t i = 0; i < length; i++)
        n += bytes[i] == '\n';
    return n;
}

/* Right after the fault. The database may be empty when creating it failed. */
static void check_wreck(const char *folder)
{
    char answer[256], bytes[4096];
    snprintf(bytes, sizeof bytes, "%s/a.db", folder);
    if (access(bytes, F_OK) != 0)
        return;
    ask(folder, "PRAGMA integrity_check", answer, sizeof answer);
    assert_string_equal(answer, "ok");
    ask(folder, "SELECT count(*) FROM sqlite_schema WHERE name = 'sinks'", answer,
        sizeof answer);
    if (strcmp(answer, "1") != 0)
        return;
    ask(folder, "SELECT coalesce(sum(bytes), 0) FROM sinks", answer, sizeof answer);
    const size_t good = strtoul(answer, NULL, 10);
    assert_true(read_output(folder, bytes, sizeof bytes) >= good);
    ask(folder, "SELECT count(*) FROM outbox WHERE published_at IS NOT NULL", answer,
        sizeof answer);
    assert_int_equal(count_lines(bytes, good), strtol(answer, NULL, 10));
    ask(folder,
        "SELECT count(*) FROM outbox LEFT JOIN jobs USING (job_id) WHERE run_id IS NULL",
        answer, sizeof answer);
    assert_string_equal(answer, "0");
}

static void check_finished(const char *folder)
{
    char answer[256], bytes[4096];
    const size_t length = read_output(folder, bytes, sizeof bytes);
    assert_int_equal(count_lines(bytes, length), LINES);
    for (int n = 1; n <= LINES; n++) {
        char line[64];
        snprintf(line, sizeof line, "{\"custom_id\":\"q-%d\"}\n", n);
        assert_non_null(strstr(bytes, line));
    }
    ask(folder, "PRAGMA integrity_check", answer, sizeof answer);
    assert_string_equal(answer, "ok");
    ask(folder, "SELECT jobs || ',' || unpublished || ',' || status FROM v_runs", answer,
        sizeof answer);
    assert_string_equal(answer, "6,0,completed");
    ask(folder, "SELECT bytes FROM sinks", answer, sizeof answer);
    assert_int_equal(strtoul(answer, NULL, 10), length);
}

static void finish_without_faults(const char *folder)
{
    struct err e = {0};
    if (work(folder, &e) != 0)
        fail_msg("%s", e.text);
    check_finished(folder);
}

/* The fault happens in a child. False: the run has fewer calls than that. */
static bool try_fault(enum fault fault, int error, int n)
{
    void *folder;
    make_folder(&folder);
    const pid_t pid = fork();
    if (pid == 0) {
        struct err e = {0};
        plan.fault = fault;
        plan.error = error;
        plan.countdown = n;
        const int code = work(folder, &e);
        if (plan.countdown > 0)
            _exit(2); /* was not reached */
        /* Once is survived by the one retry, or the error is not one to retry. */
        _exit(code == 0 ? 0 : (fault == FAULT_ONCE && (e.flags & ERR_RETRY)) ? 3 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    const int code = WEXITSTATUS(status);
    if (code != 0 && code != 1 && code != 2 && code != EXIT_KILLED)
        fail_msg("call %d: the child ended with %d", n, code);
    if (code == 0 && fault == FAULT_ONCE)
        check_finished(folder);
    check_wreck(folder);
    finish_without_faults(folder);
    remove_folder(&folder);
    return code != 2;
}

/* A sanitizer makes each fork dear: every fifth call then, another fifth for each fault. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STRIDE = 5 };
#else
enum { STRIDE = 1 };
#endif

static void every_call(enum fault fault, int error)
{
    int n = 1 + ((int)fault + error) % STRIDE;
    while (try_fault(fault, error, n))
        n += STRIDE;
    print_message("%d calls\n", n - 1);
    assert_true(n > 40); /* else the shim is not in SQLite's way */
}

static void a_full_disk_for_a_moment(void **state)
{
    (void)state;
    every_call(FAULT_ONCE, ENOSPC);
}

static void a_full_disk_for_good(void **state)
{
    (void)state;
    every_call(FAULT_FOR_GOOD, ENOSPC);
}

static void an_io_error_for_a_moment(void **state)
{
    (void)state;
    every_call(FAULT_ONCE, EIO);
}

static void an_io_error_for_good(void **state)
{
    (void)state;
    every_call(FAULT_FOR_GOOD, EIO);
}

static void a_kill_before_a_call(void **state)
{
    (void)state;
    every_call(FAULT_KILL_BEFORE, 0);
}

static void a_kill_in_the_middle_of_a_write(void **state)
{
    (void)state;
    every_call(FAULT_KILL_HALFWAY, 0);
}

/* The first 100 one by one, then every 59th: they repeat the same paths. A sanitizer takes
 * every STRIDEth of these. */
static void every_allocation(bool for_good)
{
    for (int n = 1;; n += (n < 100 ? 1 : 59) * STRIDE) {
        void *folder;
        struct err e = {0};
        make_folder(&folder);
        memory_for_good = for_good;
        memory_strikes = 0;
        memory_countdown = n;
        const int code = work(folder, &e);
        const bool reached = memory_strikes > 0;
        memory_countdown = 0;
        if (code != 0)
            assert_int_equal(e.code, code);
        else
            check_finished(folder);
        check_wreck(folder);
        finish_without_faults(folder);
        remove_folder(&folder);
        if (!reached)
            break;
    }
}

static void no_memory_for_a_moment(void **state)
{
    (void)state;
    every_allocation(false);
}

static void no_memory_for_good(void **state)
{
    (void)state;
    every_allocation(true);
}

int main(void)
{
    sqlite3_mem_methods memory;
    sqlite3_config(SQLITE_CONFIG_GETMALLOC, &real_memory);
    memory = real_memory;
    memory.xMalloc = failing_malloc;
    memory.xRealloc = failing_realloc;
    if (sqlite3_config(SQLITE_CONFIG_MALLOC, &memory) != SQLITE_OK)
        return 1;
    /* Without it every test would wait for the disk at each sync. */
    if (access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_disk_for_a_moment),
        cmocka_unit_test(a_full_disk_for_good),
        cmocka_unit_test(an_io_error_for_a_moment),
        cmocka_unit_test(an_io_error_for_good),
        cmocka_unit_test(a_kill_before_a_call),
        cmocka_unit_test(a_kill_in_the_middle_of_a_write),
        cmocka_unit_test(no_memory_for_a_moment),
        cmocka_unit_test(no_memory_for_good),
    };
    return cmocka_run_group_tests_name("store_faults", tests, NULL, NULL);
}
