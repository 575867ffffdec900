/*
 * KV files when things go wrong: system calls that fail or are the last thing a worker does,
 * full disks, folders of others, several workers in one folder, and the bound of its size.
 *
 * The system calls of writing are taken over by defining them here.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "engine/kv_folder.h"
#include "kv_make.h"

enum { EXIT_KILLED = 77 };

static struct {
    atomic_int countdown; /* the call that makes it 0 fails, or kills */
    bool kills;
    int error;
} plan;

/* True: the call fails with errno. */
static bool strikes(void)
{
    if (atomic_load(&plan.countdown) <= 0 || atomic_fetch_sub(&plan.countdown, 1) != 1)
        return false;
    if (plan.kills)
        _exit(EXIT_KILLED);
    errno = plan.error;
    return true;
}

ssize_t write(int fd, const void *bytes, size_t n)
{
    if (fd > STDERR_FILENO && strikes())
        return -1;
    return syscall(SYS_write, fd, bytes, n);
}

static pthread_mutex_t stuck = PTHREAD_MUTEX_INITIALIZER; /* while held, no sync comes back */

int fsync(int fd)
{
    pthread_mutex_lock(&stuck);
    pthread_mutex_unlock(&stuck);
    return strikes() ? -1 : (int)syscall(SYS_fsync, fd);
}

static atomic_int strays_taken; /* so many renames find their file removed */

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    if (atomic_load(&strays_taken) > 0) {
        atomic_fetch_sub(&strays_taken, 1);
        unlinkat(from_fd, from, 0);
    }
    return strikes() ? -1 : (int)syscall(SYS_renameat, from_fd, from, to_fd, to);
}

static int set_up(void **state)
{
    struct kv_world *w = malloc(sizeof *w);
    assert_non_null(w);
    make_world(w, KV_BF16);
    *state = w;
    return 0;
}

static int tear_down(void **state)
{
    drop_world(*state);
    free(*state);
    return 0;
}

static bool has_file(const struct kv_world *w, size_t n_pages)
{
    char path[192];
    path_of(w, NULL, n_pages, path);
    return access(path, F_OK) == 0;
}

/* ------------------------------------------------------------------ failing calls */

/* A file is written with two writes, a sync and a rename: calls 1 to 4. */
static void a_failing_call_is_said_once_and_ends_saving(void **state)
{
    (void)state;
    for (int call = 1; call <= 4; call++) {
        struct kv_world w;
        struct said said;
        make_world(&w, KV_BF16);
        plan.error = ENOSPC;
        listen_begin(&said);
        atomic_store(&plan.countdown, call);
        save_pages(&w, 7, 8);
        reopen_world(&w); /* the writer is through */
        const char *text = listen_end(&said);
        assert_int_equal(count_of(text, "No space left on device"), 1);
        assert_int_equal(each_entry(w.folder, NULL), 0);
        save_pages(&w, 7, 8); /* the twin: without a fault it is saved */
        reopen_world(&w);
        assert_int_equal(load_pages(&w, 7, 0, 8), 8);
        drop_world(&w);
    }
}

/* Two files are in the writer's hands, the third has to wait and then is given up. */
static void behind_a_disk_that_hangs_saving_is_given_up_and_counted(void **state)
{
    struct kv_world *w = *state;
    pthread_mutex_lock(&stuck);
    assert_int_equal(kv_disk_save(w->disk, NULL, w->tokens, 0, w->pages, 20, 0), 16);
    assert_int_equal(kv_disk_counters(w->disk).files_given_up, 0); /* it may come again */
    assert_int_equal(kv_disk_save(w->disk, NULL, w->tokens, 16, w->pages, 20, 1000), 16);
    assert_int_equal(kv_disk_counters(w->disk).files_given_up, 1);
    pthread_mutex_unlock(&stuck);
    assert_int_equal(kv_disk_save(w->disk, NULL, w->tokens, 16, w->pages, 20, LONG_WAIT_US),
                     20);
    assert_int_equal(kv_disk_counters(w->disk).files_given_up, 1);
    reopen_world(w);
    assert_int_equal(each_entry(w->folder, NULL), 3);
}

static void after_a_failure_nothing_more_is_saved_but_loading_goes_on(void **state)
{
    struct kv_world *w = *state;
    save_pages(w, 7, 8);
    reopen_world(w);
    struct said said;
    listen_begin(&said);
    plan.error = EIO;
    atomic_store(&plan.countdown, 1);
    save_pages(w, 7, 20); /* [8, 16) fails; [16, 20) is not tried */
    assert_int_equal(kv_disk_save(w->disk, "x", w->tokens, 0, w->pages, 20, LONG_WAIT_US), 20);
    assert_int_equal(load_pages(w, 7, 0, 20), 8);
    close_world(w);
    assert_int_equal(count_of(listen_end(&said), "\n"), 1);
    open_world(w);
    assert_int_equal(each_entry(w->folder, NULL), 1);
}

static void a_killed_worker_leaves_nothing_that_harms(void **state)
{
    (void)state;
    for (int call = 1; call <= 4; call++) {
        struct kv_world w;
        make_world(&w, KV_BF16);
        close_world(&w); /* a thread does not live on in the child */
        const pid_t child = fork();
        if (child == 0) {
            open_world(&w);
            plan.kills = true;
            atomic_store(&plan.countdown, call);
            save_pages(&w, 7, 8);
            close_world(&w);
            _exit(0);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_KILLED);
        assert_int_equal(each_entry(w.folder, NULL), 1); /* the temporary file */
        assert_false(has_file(&w, 8));
        open_world(&w);
        assert_int_equal(each_entry(w.folder, NULL), 0);
        assert_int_equal(load_pages(&w, 7, 0, 8), 0);
        drop_world(&w);
    }
}

static void the_file_of_a_living_writer_is_no_stray(void **state)
{
    struct kv_world *w = *state;
    char path[192];
    snprintf(path, sizeof path, "%s/tmp-1-0", w->folder);
    write_file(path, "half", 4);
    const int fd = open(path, O_RDWR);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    reopen_world(w);
    assert_int_equal(each_entry(w->folder, NULL), 1);
    close(fd);
    reopen_world(w);
    assert_int_equal(each_entry(w->folder, NULL), 0);
}

static void
a_file_taken_for_a_stray_is_written_again_and_the_second_time_ends_saving(void **state)
{
    struct kv_world *w = *state;
    atomic_store(&strays_taken, 1);
    save_pages(w, 7, 8);
    reopen_world(w);
    assert_int_equal(atomic_load(&strays_taken), 0);
    assert_int_equal(load_pages(w, 7, 0, 8), 8);
    struct said said;
    listen_begin(&said);
    atomic_store(&strays_taken, 2);
    save_pages(w, 7, 16); /* its second file */
    close_world(w);
    const char *text = listen_end(&said);
    assert_int_equal(count_of(text, "No such file or directory"), 1);
    assert_int_equal(each_entry(w->folder, NULL), 1);
    open_world(w);
}

/* ------------------------------------------------------------------ the folder */

/* SIGXFSZ would end the program, were it not for the writer's signal mask. */
static void a_file_size_limit_is_a_full_disk(void **state)
{
    struct kv_world *w = *state;
    save_pages(w, 7, 2);
    reopen_world(w);
    struct rlimit before, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 20000; /* less than 8 pages of 8 kB */
    struct said said;
    listen_begin(&said);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    save_pages(w, 7, 16);
    kv_disk_save(w->disk, "x", w->tokens, 0, w->pages, 16, LONG_WAIT_US);
    assert_int_equal(load_pages(w, 7, 0, 2), 2);
    close_world(w);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    const char *text = listen_end(&said);
    assert_int_equal(count_of(text, "File too large"), 1);
    assert_int_equal(count_of(text, "\n"), 1);
    assert_int_equal(each_entry(w->folder, NULL), 1);
    open_world(w);
}

static void a_folder_that_goes_away_ends_saving(void **state)
{
    struct kv_world *w = *state;
    struct said said;
    listen_begin(&said);
    assert_int_equal(rmdir(w->folder), 0);
    save_pages(w, 7, 20);
    assert_int_equal(load_pages(w, 7, 0, 20), 0);
    close_world(w);
    const char *text = listen_end(&said);
    assert_int_equal(count_of(text, "No such file or directory"), 1);
    assert_int_equal(count_of(text, "\n"), 1);
    open_world(w); /* and makes it again */
    struct stat st;
    assert_int_equal(stat(w->folder, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
}

static void expect_refused(struct kv_world *w, int code, const char *text)
{
    struct kv_disk *disk = NULL;
    struct err e = {0};
    assert_int_equal(kv_disk_open(&w->options, w->pool, &disk, &e), code);
    assert_null(disk);
    if (!strstr(e.text, text))
        fail_msg("expected '%s': %s", text, e.text);
}

static void a_folder_that_cannot_be_or_is_open_to_others_is_refused(void **state)
{
    struct kv_world *w = *state;
    assert_int_equal(chmod(w->folder, 0770), 0);
    expect_refused(w, ERR_CONFIG, "others may write");
    assert_int_equal(chmod(w->folder, 0702), 0);
    expect_refused(w, ERR_CONFIG, "others may write");
    assert_int_equal(chmod(w->folder, 0755), 0);
    reopen_world(w);
    if (geteuid() == 0) {
        assert_int_equal(chown(w->folder, 65534, 65534), 0);
        expect_refused(w, ERR_CONFIG, "others may write");
        assert_int_equal(chown(w->folder, 0, 0), 0);
    }
    char path[192];
    snprintf(path, sizeof path, "%s/a file", w->folder);
    write_file(path, "", 0);
    w->options.folder = path;
    expect_refused(w, ERR_IO, "Not a directory");
    snprintf(path, sizeof path, "%s/missing/folder", w->folder);
    expect_refused(w, ERR_IO, "No such file or directory");
    w->options.folder = w->folder;
    w->options.bytes_max = 1 << 16;
    expect_refused(w, ERR_CONFIG, "kv.disk_mb is less than one file");
}

/* For root every folder can be written to, so another user tries. */
static void in_a_folder_that_only_reads_files_are_loaded(void **state)
{
    struct kv_world *w = *state;
    save_pages(w, 7, 8);
    close_world(w);
    char path[192];
    path_of(w, NULL, 8, path);
    const bool is_root = geteuid() == 0;
    if (is_root)
        assert_int_equal(chown(w->folder, 65534, 65534) + chown(path, 65534, 65534), 0);
    assert_int_equal(chmod(w->folder, 0500), 0);
    if (is_root)
        assert_int_equal(seteuid(65534), 0);
    open_world(w);
    struct said said;
    listen_begin(&said);
    const size_t n = load_pages(w, 7, 0, 8);
    save_pages(w, 7, 20);
    close_world(w);
    const char *text = listen_end(&said);
    if (is_root)
        assert_int_equal(seteuid(0) + chown(w->folder, 0, 0), 0);
    assert_int_equal(chmod(w->folder, 0700), 0);
    assert_int_equal(n, 8);
    assert_int_equal(count_of(text, "Permission denied"), 1);
    assert_int_equal(count_of(text, "\n"), 1);
    open_world(w);
}

/* ------------------------------------------------------------------ the bound */

static void age(const struct kv_world *w, size_t n_pages, int hours)
{
    char path[192];
    path_of(w, NULL, n_pages, path);
    struct timeval times[2];
    gettimeofday(&times[0], NULL);
    times[0].tv_sec -= hours * 3600;
    times[1] = times[0];
    assert_int_equal(utimes(path, times), 0);
}

static void save_document(struct kv_world *w, int32_t first_token)
{
    w->tokens[0] = first_token;
    save_pages(w, (uint64_t)first_token, 8);
    reopen_world(w);
}

static bool has_document(struct kv_world *w, int32_t first_token)
{
    w->tokens[0] = first_token;
    return has_file(w, 8);
}

static void the_least_recently_used_file_goes_first(void **state)
{
    struct kv_world *w = *state;
    for (int32_t i = 1; i <= 3; i++) {
        save_document(w, i);
        age(w, 8, 4 - i);
    }
    w->options.bytes_max = 3 * (64 + 3) * 1024; /* three files of 8 pages of 8 kB and a head */
    reopen_world(w);
    assert_true(has_document(w, 1) && has_document(w, 2) && has_document(w, 3));
    w->tokens[0] = 1;
    assert_int_equal(load_pages(w, 1, 0, 8), 8); /* now the latest */
    save_document(w, 4);
    assert_true(has_document(w, 1) && has_document(w, 3) && has_document(w, 4));
    assert_false(has_document(w, 2));
    save_document(w, 5);
    assert_true(has_document(w, 1) && has_document(w, 4) && has_document(w, 5));
    assert_false(has_document(w, 3));
    w->options.bytes_max = (64 + 4) * 1024;
    reopen_world(w); /* a smaller bound holds from the start */
    assert_int_equal(each_entry(w->folder, NULL), 1);
    assert_true(has_document(w, 5));
}

static void a_prefix_loses_its_end_first(void **state)
{
    struct kv_world *w = *state;
    save_pages(w, 7, 20);
    w->options.bytes_max = 150 * 1024;
    reopen_world(w);
    assert_true(has_file(w, 8) && has_file(w, 16));
    assert_false(has_file(w, 20));
    w->options.bytes_max = 80 * 1024;
    reopen_world(w);
    assert_true(has_file(w, 8));
    assert_false(has_file(w, 16));
}

static void what_is_saved_again_or_in_memory_counts_as_used(void **state)
{
    struct kv_world *w = *state;
    save_pages(w, 7, 20);
    reopen_world(w);
    for (size_t end = 8; end <= 24; end += 8)
        age(w, end < 20 ? end : 20, 100);
    const time_t now = time(NULL);
    struct stat st;
    char path[192];
    size_t n;
    kv_disk_find(w->disk, NULL, w->tokens, 8, 20, &n);
    path_of(w, NULL, 8, path);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_mtime >= now - 3600);
    age(w, 20, 100);
    save_pages(w, 7, 20);
    path_of(w, NULL, 20, path);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_mtime >= now - 3600);
}

static void files_of_other_names_are_left_alone(void **state)
{
    struct kv_world *w = *state;
    char path[192];
    static const char *const names[] = {"notes.txt", "0123.kv", "x.kv"};
    static char zeros[300 * 1024];
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", w->folder, names[i]);
        write_file(path, zeros, sizeof zeros);
    }
    w->options.bytes_max = 80 * 1024;
    reopen_world(w);
    save_document(w, 1);
    save_document(w, 2);
    assert_int_equal(each_entry(w->folder, NULL), 4);
    assert_true(has_document(w, 2));
}

/* ------------------------------------------------------------------ two workers */

static void one_worker_finds_what_another_saves_and_bears_what_it_removes(void **state)
{
    struct kv_world *w = *state;
    struct kv_world other = *w;
    open_world(&other);
    save_pages(w, 7, 16);
    reopen_world(w);
    assert_int_equal(load_pages(&other, 7, 0, 16), 16);
    size_t n;
    const struct kv_piece *pieces = kv_disk_find(other.disk, NULL, w->tokens, 0, 16, &n);
    assert_int_equal(n, 2);
    char path[192];
    path_of(w, NULL, 8, path);
    assert_int_equal(unlink(path), 0);
    struct said said;
    listen_begin(&said);
    const size_t got = kv_disk_read(other.disk, &pieces[0], 0, other.pages);
    assert_string_equal(listen_end(&said), "");
    assert_int_equal(got, 0);
    assert_int_equal(kv_disk_counters(other.disk).files_bad, 0);
    assert_int_equal(kv_disk_read(other.disk, &pieces[1], 8, other.pages), 8);
    close_world(&other);
}

struct racer {
    struct kv_world world;
    size_t n_bad_bits, n_loaded;
};

/* asserts are for the test's own thread: the racer counts. */
static void *race(void *context)
{
    struct racer *r = context;
    struct kv_world *w = &r->world;
    for (int32_t round = 0; round < 60; round++) {
        w->tokens[0] = round % 5;
        size_t n;
        const struct kv_piece *pieces = kv_disk_find(w->disk, NULL, w->tokens, 0, 16, &n);
        for (size_t i = 0; i < n; i++) {
            const size_t first = pieces[i].first_page;
            const size_t got = kv_disk_read(w->disk, &pieces[i], first, w->pages + first);
            r->n_loaded += got;
            for (size_t k = first; k < first + got; k++)
                r->n_bad_bits += !page_is(w->pool, &w->options.shape, w->pages[k],
                                          (uint64_t)round % 5 * 100 + k);
        }
        for (size_t k = 0; k < 16; k++)
            fill_page(w->pool, &w->options.shape, w->pages[k], (uint64_t)round % 5 * 100 + k);
        kv_disk_save(w->disk, NULL, w->tokens, 0, w->pages, 16, LONG_WAIT_US);
    }
    return NULL;
}

static void two_workers_in_a_folder_that_is_too_small_do_not_hurt_each_other(void **state)
{
    struct kv_world *w = *state;
    w->options.bytes_max = 5 * 70 * 1024;
    reopen_world(w);
    static struct racer racers[2];
    pthread_t threads[2];
    struct said said;
    listen_begin(&said);
    for (int i = 0; i < 2; i++) {
        racers[i] = (struct racer){.world = *w};
        open_world(&racers[i].world);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    struct kv_disk_counters c[2];
    for (int i = 0; i < 2; i++) {
        c[i] = kv_disk_counters(racers[i].world.disk);
        close_world(&racers[i].world);
    }
    const char *text = listen_end(&said);
    assert_string_equal(text, "");
    assert_int_equal(racers[0].n_bad_bits + racers[1].n_bad_bits, 0);
    assert_int_equal(c[0].files_bad + c[1].files_bad, 0);
    assert_true(racers[0].n_loaded + racers[1].n_loaded > 0);
    assert_true(c[0].files_removed + c[1].files_removed > 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failing_call_is_said_once_and_ends_saving),
        TEST(behind_a_disk_that_hangs_saving_is_given_up_and_counted),
        TEST(after_a_failure_nothing_more_is_saved_but_loading_goes_on),
        cmocka_unit_test(a_killed_worker_leaves_nothing_that_harms),
        TEST(the_file_of_a_living_writer_is_no_stray),
        TEST(a_file_taken_for_a_stray_is_written_again_and_the_second_time_ends_saving),
        TEST(a_file_size_limit_is_a_full_disk),
        TEST(a_folder_that_goes_away_ends_saving),
        TEST(a_folder_that_cannot_be_or_is_open_to_others_is_refused),
        TEST(in_a_folder_that_only_reads_files_are_loaded),
        TEST(the_least_recently_used_file_goes_first),
        TEST(a_prefix_loses_its_end_first),
        TEST(what_is_saved_again_or_in_memory_counts_as_used),
        TEST(files_of_other_names_are_left_alone),
        TEST(one_worker_finds_what_another_saves_and_bears_what_it_removes),
        TEST(two_workers_in_a_folder_that_is_too_small_do_not_hurt_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
