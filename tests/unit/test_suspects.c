/* What a process that dies leaves about the jobs in its hands, and what the next one makes of
 * it. The processes are real: children that crash, are killed, or end in order. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "crash_signals.h"
#include "store_make.h"
#include "suspects.h"

enum { SLOTS = 4 };
#define SHA_1 "1111111111111111111111111111111111111111111111111111111111111111"
#define SHA_2 "2222222222222222222222222222222222222222222222222222222222222222"

enum ending {
    ENDS,
    ENDS_MARKED,
    CRASHES,
    ABORTS,
    OVERFLOWS,
    IS_KILLED,
    IS_SENT_SEGV,
    IS_MARKED
};

static struct job_source source_of(const char *topic, int64_t offset)
{
    return (struct job_source){
        .topic = (char *)(uintptr_t)topic, .partition = 3, .offset = offset};
}

/* 4 GiB of stack. */
static int overflow(const volatile char *above, int n)
{
    volatile char here[4096];
    here[0] = above ? above[0] : 0;
    return n == 0 ? here[0] : overflow(here, n - 1) + here[0];
}

static void end(struct running *r, enum ending ending)
{
    static const volatile uintptr_t nowhere = 8;
    switch (ending) {
    case ENDS:
    case ENDS_MARKED:
        if (ending == ENDS_MARKED)
            running_mark_crashed(r, RUNNING_ENGINE);
        crash_signals_remove();
        running_close(r);
        break;
    case CRASHES: *(volatile int *)nowhere = 0; break;
    case ABORTS: raise(SIGABRT); break;
    case OVERFLOWS: overflow(NULL, 1 << 20); break;
    case IS_KILLED: kill(getpid(), SIGKILL); break;
    case IS_SENT_SEGV:
        for (;;)
            pause(); /* the parent does it */
    case IS_MARKED: running_mark_crashed(r, RUNNING_ENGINE); raise(SIGABRT);
    }
    _exit(0);
}

/* Jobs 10 (intake), 20 (delivery) and 30, 31 (engine); 32 has left the engine. */
static void work_and_end(const char *db_path, enum running_hand hand, enum ending ending)
{
    struct running *r;
    static const int handled_by_cmocka[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    for (size_t i = 0; i < sizeof handled_by_cmocka / sizeof handled_by_cmocka[0]; i++)
        sigaction(handled_by_cmocka[i], &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    setrlimit(RLIMIT_STACK, &(struct rlimit){1 << 20, 1 << 20});
    if (running_open(db_path, SLOTS, &r, NULL) != 0)
        _exit(1);
    crash_signals_install(r);
    crash_signals_name_thread(hand);
    static const struct {
        size_t slot;
        int64_t offset;
    } jobs[] = {{RUNNING_INTAKE, 10},
                {RUNNING_DELIVERY, 20},
                {RUNNING_ENGINE, 32},
                {RUNNING_ENGINE + 3, 31},
                {RUNNING_ENGINE + 1, 30}};
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        const struct job_source source = source_of("jobs", jobs[i].offset);
        running_put(r, jobs[i].slot, &source, SHA_1);
    }
    running_clear(r, RUNNING_ENGINE);
    end(r, ending);
}

/* Returns the signal that ended it, or 0. */
static int live_and_die(const char *db_path, enum running_hand hand, enum ending ending)
{
    char path[5000];
    struct stat st;
    int status = 0;
    snprintf(path, sizeof path, "%s-running", db_path);
    const pid_t pid = fork();
    if (pid == 0)
        work_and_end(db_path, hand, ending);
    if (ending == IS_SENT_SEGV) {
        struct running_last last = {0};
        while (last.n < 4) { /* until it has put all its names down */
            running_last_fini(&last);
            assert_int_equal(running_read(db_path, &last, NULL), 0);
        }
        running_last_fini(&last);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 07777, 0600);
        kill(pid, SIGSEGV);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static struct suspicion judge(const struct suspects *s, int64_t offset, const char *sha256)
{
    const struct job_source source = source_of("jobs", offset);
    return suspects_judge(s, &source, sha256);
}

static struct store *open_store(const char *path)
{
    struct store *s = NULL;
    struct err e = {0};
    if (store_open(path, STORE_OWNER, &s, &e) != 0)
        fail_msg("%s", e.text);
    return s;
}

static void load(struct suspects *s, const char *path, struct store *store)
{
    struct err e = {0};
    if (suspects_open(s, path, store, &e) != 0)
        fail_msg("%s", e.text);
}

/* Of the intake's, the delivery's and the engine's jobs after one such ending. */
static void check_ending(const char *path, enum running_hand hand, enum ending ending,
                         int number, const int64_t strikes[3], const int64_t deaths[3])
{
    static const int64_t offsets[] = {10, 20, 30, 31};
    struct store *store = open_store(path);
    struct suspects s;
    assert_int_equal(live_and_die(path, hand, ending), number);
    load(&s, path, store);
    for (size_t i = 0; i < 4; i++) {
        const struct suspicion found = judge(&s, offsets[i], SHA_1);
        assert_int_equal(found.strikes, strikes[i < 2 ? i : 2]);
        assert_int_equal(found.deaths, deaths[i < 2 ? i : 2]);
    }
    assert_int_equal(judge(&s, 32, SHA_1).deaths + judge(&s, 32, SHA_1).strikes, 0);
    suspects_fini(&s);
    store_close(store);
}

static const int64_t none[3], all[3] = {1, 1, 1};

static void an_orderly_end_leaves_nothing(void **state)
{
    const char *path = path_in(state, "a.db");
    check_ending(path, RUNNING_ENGINE, ENDS, 0, none, none);
    assert_int_equal(access(path_in(state, "a.db-running"), F_OK), -1);
}

static void a_crash_strikes_the_jobs_in_the_hand_that_crashed(void **state)
{
    static const int64_t intake[3] = {1, 0, 0}, delivery[3] = {0, 1, 0}, engine[3] = {0, 0, 1},
                         not_intake[3] = {0, 1, 1}, not_delivery[3] = {1, 0, 1},
                         not_engine[3] = {1, 1, 0};
    check_ending(path_in(state, "a.db"), RUNNING_ENGINE, CRASHES, SIGSEGV, engine, not_engine);
    check_ending(path_in(state, "b.db"), RUNNING_INTAKE, CRASHES, SIGSEGV, intake, not_intake);
    check_ending(path_in(state, "c.db"), RUNNING_DELIVERY, ABORTS, SIGABRT, delivery,
                 not_delivery);
    check_ending(path_in(state, "d.db"), RUNNING_DELIVERY, IS_MARKED, SIGABRT, engine,
                 not_engine); /* the watchdog says whose fault it was */
}

static void an_orderly_end_after_the_device_failed_strikes_what_the_engine_had(void **state)
{
    static const int64_t engine[3] = {0, 0, 1}, not_engine[3] = {1, 1, 0};
    check_ending(path_in(state, "a.db"), RUNNING_ENGINE, ENDS_MARKED, 0, engine, not_engine);
}

static void running_out_of_stack_is_a_crash_too(void **state)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    static const int64_t engine[3] = {0, 0, 1}, not_engine[3] = {1, 1, 0};
    check_ending(path_in(state, "a.db"), RUNNING_ENGINE, OVERFLOWS, SIGSEGV, engine,
                 not_engine);
#else
    (void)state;
#endif
}

static void being_killed_is_nobodys_strike(void **state)
{
    check_ending(path_in(state, "a.db"), RUNNING_ENGINE, IS_KILLED, SIGKILL, none, all);
    check_ending(path_in(state, "b.db"), RUNNING_ENGINE, IS_SENT_SEGV, SIGSEGV, none, all);
}

static void what_was_read_is_gone_and_counted_once(void **state)
{
    const char *path = path_in(state, "a.db");
    struct store *store = open_store(path);
    struct suspects s;
    live_and_die(path, RUNNING_ENGINE, IS_KILLED);
    for (int i = 0; i < 2; i++) {
        load(&s, path, store);
        assert_int_equal(judge(&s, 30, SHA_1).deaths, 1);
        suspects_fini(&s);
        assert_int_equal(access(path_in(state, "a.db-running"), F_OK), -1);
    }
    store_close(store);
}

static void verdicts_follow_what_was_counted(void **state)
{
    static const struct {
        int64_t strikes, deaths;
        enum verdict verdict;
    } cases[] = {
        {0, 1, VERDICT_CLEAN},   {0, 2, VERDICT_ALONE},      {0, 9, VERDICT_ALONE},
        {0, 10, VERDICT_POISON}, {1, 0, VERDICT_ALONE},      {2, 9, VERDICT_ALONE},
        {3, 0, VERDICT_POISON},  {4, 0, VERDICT_UNREADABLE}, {0, 11, VERDICT_UNREADABLE},
    };
    enum { N = sizeof cases / sizeof cases[0] };
    const char *path = path_in(state, "a.db");
    struct store *store = open_store(path);
    struct store_crash crashes[N];
    for (int i = 0; i < N; i++)
        crashes[i] = (struct store_crash){.topic = (char *)(uintptr_t) "jobs",
                                          .partition = 3,
                                          .offset = i,
                                          .payload_sha256 = SHA_1,
                                          .strikes = cases[i].strikes,
                                          .deaths = cases[i].deaths};
    assert_int_equal(store_add_crashes(store, crashes, N, NULL), 0);
    struct suspects s;
    load(&s, path, store);
    for (int i = 0; i < N; i++) {
        assert_int_equal(judge(&s, i, SHA_1).verdict, cases[i].verdict);
        assert_int_equal(judge(&s, i, SHA_2).verdict, VERDICT_CLEAN); /* another payload */
        const struct job_source other = source_of("other", i);
        assert_int_equal(suspects_judge(&s, &other, SHA_1).verdict, VERDICT_CLEAN);
    }
    assert_int_equal(suspects_judge(NULL, &(struct job_source){0}, SHA_1).verdict,
                     VERDICT_CLEAN);
    suspects_fini(&s);
    store_close(store);
}

static void three_crashes_of_the_reader_make_a_job_unreadable(void **state)
{
    const char *path = path_in(state, "a.db");
    struct store *store = open_store(path);
    static const enum verdict verdicts[] = {VERDICT_ALONE, VERDICT_ALONE, VERDICT_UNREADABLE};
    for (int i = 0; i < 3; i++) {
        struct suspects s;
        live_and_die(path, RUNNING_INTAKE, CRASHES);
        load(&s, path, store);
        assert_int_equal(judge(&s, 10, SHA_1).verdict, verdicts[i]);
        suspects_fini(&s);
    }
    store_close(store);
}

static void an_answer_takes_the_suspicion_away(void **state)
{
    const char *path = path_in(state, "a.db");
    struct store *store = open_store(path);
    struct made m;
    make_result(&m, "jobs", false, 30);
    m.job.source.partition = 3;
    memcpy(m.job.payload_sha256, SHA_1, sizeof SHA_1);
    assert_int_equal(store_begin_run(store, &made_run, NULL), 0);
    struct suspects s;
    live_and_die(path, RUNNING_ENGINE, CRASHES);
    load(&s, path, store);
    suspects_fini(&s);
    assert_int_equal(put_made(store, "night", &m, NULL), 0);
    load(&s, path, store);
    assert_int_equal(judge(&s, 30, SHA_1).strikes, 0);
    assert_int_equal(judge(&s, 31, SHA_1).strikes, 1);
    suspects_fini(&s);
    store_close(store);
}

/* Every prefix, and every byte replaced: names or none, never a crash. */
static void a_damaged_file_is_read_without_harm(void **state)
{
    const char *path = path_in(state, "a.db");
    store_close(open_store(path));
    live_and_die(path, RUNNING_ENGINE, IS_KILLED);
    const char *running = path_in(state, "a.db-running");
    static char bytes[6 * 4224 + 64];
    int fd = open(running, O_RDWR);
    const ssize_t n = read(fd, bytes, sizeof bytes);
    assert_true(n > 4224);
    for (ssize_t i = 0; i < n; i += i < 400 ? 1 : 97) {
        struct running_last last;
        const char damaged = (char)~bytes[i];
        assert_int_equal(pwrite(fd, &damaged, 1, i), 1);
        assert_int_equal(running_read(path, &last, NULL), 0);
        assert_true(last.n <= 6);
        running_last_fini(&last);
        assert_int_equal(pwrite(fd, &bytes[i], 1, i), 1);
    }
    for (ssize_t i = n; i >= 0; i -= i < 400 ? 1 : 97) {
        struct running_last last;
        assert_int_equal(ftruncate(fd, i), 0);
        assert_int_equal(running_read(path, &last, NULL), 0);
        assert_true(last.n <= 4);
        running_last_fini(&last);
    }
    close(fd);
}

static void the_log_names_what_the_engine_has(void **state)
{
    const char *path = path_in(state, "a.db");
    store_close(open_store(path));
    struct running *r;
    char text[200];
    assert_int_equal(running_open(path, 12, &r, NULL), 0);
    running_describe(r, text, sizeof text);
    assert_string_equal(text, "none that is known");
    for (int i = 0; i < 11; i++) {
        const struct job_source source = source_of("t", i);
        running_put(r, RUNNING_ENGINE + (size_t)i, &source, SHA_1);
    }
    running_clear(r, RUNNING_ENGINE + 1);
    running_describe(r, text, sizeof text);
    assert_string_equal(text,
                        "t-3-0, t-3-2, t-3-3, t-3-4, t-3-5, t-3-6, t-3-7, t-3-8 and 2 more");
    char small[8];
    running_describe(r, small, sizeof small); /* cut, not overrun */
    assert_int_equal(strlen(small), 7);
    running_close(r);
}

int main(void)
{
#define WITH_FOLDER(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        WITH_FOLDER(an_orderly_end_leaves_nothing),
        WITH_FOLDER(a_crash_strikes_the_jobs_in_the_hand_that_crashed),
        WITH_FOLDER(an_orderly_end_after_the_device_failed_strikes_what_the_engine_had),
        WITH_FOLDER(running_out_of_stack_is_a_crash_too),
        WITH_FOLDER(being_killed_is_nobodys_strike),
        WITH_FOLDER(what_was_read_is_gone_and_counted_once),
        WITH_FOLDER(verdicts_follow_what_was_counted),
        WITH_FOLDER(three_crashes_of_the_reader_make_a_job_unreadable),
        WITH_FOLDER(an_answer_takes_the_suspicion_away),
        WITH_FOLDER(a_damaged_file_is_read_without_harm),
        WITH_FOLDER(the_log_names_what_the_engine_has),
    };
    return cmocka_run_group_tests_name("suspects", tests, NULL, NULL);
}
