/* Lines in from files of every kind, and the output file: one line an input. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/limits.h"
#include "io/queue_file.h"
#include "store_make.h"

static void write_file(const char *path, const void *bytes, size_t length)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, length, f), length);
    fclose(f);
}

static const char *read_file(const char *path)
{
    static char bytes[65536];
    FILE *f = fopen(path, "r");
    if (!f)
        return "no file";
    bytes[fread(bytes, 1, sizeof bytes - 1, f)] = '\0';
    fclose(f);
    return bytes;
}

static void lines_are_cut_at_line_feeds_only(void **state)
{
    const struct {
        const char *bytes;
        size_t length;
        const char *expected; /* number:length:bytes, one after the other */
    } cases[] = {
        {"", 0, ""},
        {"a", 1, "1:1:a|"},
        {"a\n", 2, "1:1:a|"},
        {"a\nb", 3, "1:1:a|2:1:b|"},
        {"\n\na\n", 4, "1:0:|2:0:|3:1:a|"},
        {"a\r\nb\r\n", 6, "1:2:a\r|2:2:b\r|"},
        {"a\rb\n", 4, "1:3:a\rb|"},
        {"\xef\xbb\xbf{}\n", 6, "1:5:\xef\xbb\xbf{}|"},
        {"a\xe2\x80\xa8"
         "b\n",
         6,
         "1:5:a\xe2\x80\xa8"
         "b|"},
        {" \t\n", 3, "1:2: \t|"},
    };
    const char *path = path_in(state, "in.jsonl");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err e = {0};
        struct file_source *f;
        struct file_line line;
        char seen[256] = "";
        write_file(path, cases[i].bytes, cases[i].length);
        assert_int_equal(file_source_open(path, &f, &e), 0);
        while (assert_int_equal(file_source_next(f, &line, &e), 0), line.bytes) {
            const size_t at = strlen(seen);
            snprintf(seen + at, sizeof seen - at, "%d:%zu:%.*s|", (int)line.number, line.length,
                     (int)line.length, line.bytes);
            assert_int_equal(line.size, line.length);
        }
        assert_string_equal(seen, cases[i].expected);
        assert_int_equal(file_source_next(f, &line, &e), 0); /* the end stays the end */
        assert_null(line.bytes);
        int64_t done, total;
        file_source_progress(f, &done, &total);
        assert_int_equal(done, cases[i].length);
        assert_int_equal(total, cases[i].length);
        file_source_close(f);
    }
}

static void a_nul_is_part_of_the_line(void **state)
{
    const char *path = path_in(state, "in.jsonl");
    struct err e = {0};
    struct file_source *f;
    struct file_line line;
    write_file(path, "a\0b\nc\n", 6);
    assert_int_equal(file_source_open(path, &f, &e), 0);
    assert_int_equal(file_source_next(f, &line, &e), 0);
    assert_int_equal(line.length, 3);
    assert_memory_equal(line.bytes, "a\0b", 3);
    file_source_close(f);
}

/* Lines around the chunk size and the limit, each followed by a short one. */
static void long_lines_are_counted_and_their_neighbours_kept(void **state)
{
    const size_t lengths[] = {(64 << 10) - 1,    64 << 10,          (64 << 10) + 1,
                              JOB_BYTES_MAX - 1, JOB_BYTES_MAX,     JOB_BYTES_MAX + 1,
                              JOB_BYTES_MAX + 2, JOB_BYTES_MAX * 3u};
    const size_t n = sizeof lengths / sizeof lengths[0];
    const char *path = path_in(state, "in.jsonl");
    char *fill = malloc(JOB_BYTES_MAX * 3u);
    memset(fill, 'x', JOB_BYTES_MAX * 3u);
    FILE *out = fopen(path, "w");
    for (size_t i = 0; i < n; i++) {
        fwrite(fill, 1, lengths[i], out);
        fprintf(out, "\nafter %zu\n", i);
    }
    fclose(out);
    free(fill);
    struct err e = {0};
    struct file_source *f;
    struct file_line line;
    assert_int_equal(file_source_open(path, &f, &e), 0);
    for (size_t i = 0; i < n; i++) {
        char after[32];
        assert_int_equal(file_source_next(f, &line, &e), 0);
        assert_int_equal(line.size, lengths[i]);
        assert_int_equal(line.length,
                         lengths[i] <= JOB_BYTES_MAX ? lengths[i] : JOB_BYTES_MAX + 1u);
        assert_int_equal(line.bytes[line.length - 1], 'x');
        snprintf(after, sizeof after, "after %zu", i);
        assert_int_equal(file_source_next(f, &line, &e), 0);
        assert_int_equal(line.length, strlen(after));
        assert_memory_equal(line.bytes, after, strlen(after));
        assert_int_equal(line.number, 2 * i + 2);
    }
    file_source_close(f);
}

static void a_pipe_is_read_to_its_end(void **state)
{
    (void)state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const int keep = dup(STDIN_FILENO);
    dup2(ends[0], STDIN_FILENO);
    assert_int_equal(write(ends[1], "a\nb", 3), 3);
    close(ends[1]);
    struct err e = {0};
    struct file_source *f;
    struct file_line line;
    int64_t done, total;
    assert_int_equal(file_source_open("-", &f, &e), 0);
    assert_int_equal(file_source_next(f, &line, &e), 0);
    assert_int_equal(file_source_next(f, &line, &e), 0);
    assert_memory_equal(line.bytes, "b", 1);
    file_source_progress(f, &done, &total);
    assert_int_equal(total, -1);
    assert_int_equal(done, 3);
    file_source_close(f);
    dup2(keep, STDIN_FILENO);
    close(keep);
    close(ends[0]);
}

static void an_input_that_cannot_be_read_is_an_error(void **state)
{
    struct err e = {0};
    struct file_source *f;
    assert_int_equal(file_source_open(path_in(state, "missing"), &f, &e), ERR_NOTFOUND);
    assert_non_null(strstr(e.text, "missing"));
    err_clear(&e);
    assert_int_equal(file_source_open(*state, &f, &e), ERR_INVALID);
}

/* A database, an output file and a few stored answers. */
struct bench {
    struct store *store;
    struct file_sink *sink;
};

static struct bench begin(void **state, const char *run_id, const char *out, bool overwrite,
                          int expected)
{
    struct bench b = {0};
    struct err e = {0};
    struct store_run run = made_run;
    run.run_id = run_id;
    if (store_open(path_in(state, "a.db"), STORE_OWNER, &b.store, &e) != 0 ||
        store_begin_run(b.store, &run, &e) != 0)
        fail_msg("%s", e.text);
    const int code =
        file_sink_open(path_in(state, out), "in.jsonl", b.store, overwrite, &b.sink, &e);
    if (code != expected)
        fail_msg("%d: %s", code, e.text);
    return b;
}

static void end(struct bench *b)
{
    file_sink_close(b->sink);
    store_close(b->store);
}

static void store_line(struct bench *b, const char *run_id, int n, const char *text)
{
    struct made m;
    struct err e = {0};
    make_result(&m, "in.jsonl", true, n);
    snprintf(m.line, sizeof m.line, "%s", text);
    /* The payload follows from the text: another text is an edited input. */
    memset(m.job.payload_sha256, text[0], 64);
    if (put_made(b->store, run_id, &m, &e) != 0)
        fail_msg("%s", e.text);
}

static void write_line(struct bench *b, int n, const char *text)
{
    struct err e = {0};
    const struct job_source source = {
        .topic = (char *)"in.jsonl", .offset = n, .is_file = true};
    const struct job_source *sources[] = {&source};
    if (file_sink_write(b->sink, sources, &text, 1, &e) != 0)
        fail_msg("%s", e.text);
}

static void lines_come_out_in_the_order_of_completion(void **state)
{
    struct bench b = begin(state, "r", "out", false, 0);
    const int order[] = {3, 1, 2};
    for (int i = 0; i < 3; i++) {
        char text[] = "answer 0";
        text[7] = (char)('0' + order[i]);
        store_line(&b, "r", order[i], text);
        write_line(&b, order[i], text);
    }
    struct stat st;
    assert_int_equal(stat(path_in(state, "out"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_string_equal(read_file(path_in(state, "out")), "answer 3\nanswer 1\nanswer 2\n");
    assert_int_equal(file_sink_bytes(b.sink), 27);
    end(&b);
}

/* What a kill between two steps leaves behind, and what opening makes of it. */
static void opening_repairs_what_a_kill_left(void **state)
{
    const struct {
        const char *name, *tail; /* bytes after the marked lines */
    } cases[] = {
        {"stored only", ""},
        {"half a line written", "tw"},
        {"the line written, not marked", "two\n"},
        {"the line written and half the next", "two\nthr"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char out[32], run_id[32];
        snprintf(out, sizeof out, "out%zu", i);
        snprintf(run_id, sizeof run_id, "run%zu", i);
        struct bench b = begin(state, run_id, out, false, 0);
        store_line(&b, run_id, 1, "one");
        write_line(&b, 1, "one");
        store_line(&b, run_id, 2, "two");
        end(&b);
        FILE *f = fopen(path_in(state, out), "a");
        fputs(cases[i].tail, f);
        fclose(f);
        b = begin(state, run_id, out, false, 0);
        assert_string_equal(read_file(path_in(state, out)), "one\ntwo\n");
        end(&b);
        b = begin(state, run_id, out, false, 0);
        assert_string_equal(read_file(path_in(state, out)), "one\ntwo\n");
        end(&b);
    }
}

static void a_lost_output_is_written_again_from_the_database(void **state)
{
    struct bench b = begin(state, "r", "out", false, 0);
    for (int n = 1; n <= 600; n++) { /* more than one replay batch */
        char text[32];
        snprintf(text, sizeof text, "%d", n);
        store_line(&b, "r", n, text);
        if (n <= 3)
            write_line(&b, n, text);
    }
    end(&b);
    unlink(path_in(state, "out"));
    b = begin(state, "r", "out", false, 0);
    end(&b);
    char expected[8192] = "";
    for (int n = 1; n <= 600; n++)
        snprintf(expected + strlen(expected), 8, "%d\n", n);
    assert_string_equal(read_file(path_in(state, "out")), expected);
}

static void bytes_of_others_are_not_overwritten_unless_told(void **state)
{
    write_file(path_in(state, "out"), "precious\n", 9);
    struct bench b = begin(state, "r", "out", false, ERR_STATE);
    assert_null(b.sink);
    end(&b);
    assert_string_equal(read_file(path_in(state, "out")), "precious\n");
    b = begin(state, "r", "out", true, 0);
    store_line(&b, "r", 1, "one");
    write_line(&b, 1, "one");
    end(&b);
    assert_string_equal(read_file(path_in(state, "out")), "one\n");
    /* Shorter than what was written, and not empty: somebody edited it. */
    write_file(path_in(state, "out"), "on\n", 3);
    b = begin(state, "r", "out", false, ERR_STATE);
    end(&b);
    /* Another run does not know the file. */
    b = begin(state, "other", "out", false, ERR_STATE);
    end(&b);
    assert_string_equal(read_file(path_in(state, "out")), "on\n");
}

static void another_output_of_the_same_run_gets_every_line(void **state)
{
    struct bench b = begin(state, "r", "out", false, 0);
    store_line(&b, "r", 1, "one");
    write_line(&b, 1, "one");
    end(&b);
    b = begin(state, "r", "out2", false, 0);
    end(&b);
    assert_string_equal(read_file(path_in(state, "out2")), "one\n");
}

static void an_edited_input_has_only_its_new_answer_in_the_file(void **state)
{
    struct err e = {0};
    struct bench b = begin(state, "r", "out", false, 0);
    for (int n = 1; n <= 3; n++) {
        const char text[] = {(char)('a' + n), '\0'};
        store_line(&b, "r", n, text);
        write_line(&b, n, text);
    }
    assert_int_equal(file_sink_finish(b.sink, &e), 0);
    assert_string_equal(read_file(path_in(state, "out")), "b\nc\nd\n");
    store_line(&b, "r", 2, "NEW");
    write_line(&b, 2, "NEW");
    assert_string_equal(read_file(path_in(state, "out")), "b\nc\nd\nNEW\n");
    assert_int_equal(file_sink_finish(b.sink, &e), 0);
    assert_string_equal(read_file(path_in(state, "out")), "b\nNEW\nd\n");
    store_line(&b, "r", 1, "ANEW");
    end(&b); /* killed before it finished: the next opening does it */
    b = begin(state, "r", "out", false, 0);
    assert_string_equal(read_file(path_in(state, "out")), "ANEW\nNEW\nd\n");
    end(&b);
}

static void an_input_that_is_gone_takes_its_answer_along(void **state)
{
    struct err e = {0};
    struct bench b = begin(state, "r", "out", false, 0);
    for (int n = 1; n <= 4; n++) {
        const char text[] = {(char)('a' + n), '\0'};
        store_line(&b, "r", n, text);
        write_line(&b, n, text);
    }
    assert_int_equal(store_drop_lines(b.store, "in.jsonl", 2, 2, &e), 0);
    assert_int_equal(store_drop_lines(b.store, "in.jsonl", 4, INT64_MAX, &e), 0);
    assert_int_equal(store_drop_lines(b.store, "in.jsonl", 4, INT64_MAX, &e), 0);
    assert_int_equal(file_sink_finish(b.sink, &e), 0);
    assert_string_equal(read_file(path_in(state, "out")), "b\nd\n");
    end(&b);
}

static void outputs_that_are_no_files_are_refused(void **state)
{
    assert_int_equal(mkfifo(path_in(state, "fifo"), 0600), 0);
    struct bench b = begin(state, "r", "fifo", false, ERR_INVALID);
    end(&b);
    b = begin(state, "r", ".", false, ERR_IO);
    end(&b);
    b = begin(state, "r", "no/folder", false, ERR_IO);
    end(&b);
}

static void a_file_in_use_is_refused(void **state)
{
    struct err e = {0};
    struct file_sink *second;
    struct bench b = begin(state, "r", "out", false, 0);
    assert_int_equal(
        file_sink_open(path_in(state, "out"), "in.jsonl", b.store, true, &second, &e),
        ERR_STATE);
    end(&b);
}

/* In a child: stdout is swapped for a file there. */
static void stdout_gets_each_known_line_when_its_input_is_read_again(void **state)
{
    for (int round = 0; round < 2; round++) {
        const pid_t pid = fork();
        if (pid == 0) {
            struct err e = {0};
            struct bench b = {0};
            const int fd = open(path_in(state, "stdout"), O_RDWR | O_CREAT | O_TRUNC, 0600);
            dup2(fd, STDOUT_FILENO);
            if (store_open(path_in(state, "a.db"), STORE_OWNER, &b.store, &e) != 0 ||
                store_begin_run(b.store, &made_run, &e) != 0 ||
                file_sink_open("-", "in.jsonl", b.store, false, &b.sink, &e) != 0)
                _exit(1);
            if (round == 1)
                write_line(&b, 1, "one"); /* the mark of the first process is gone */
            store_line(&b, "night", round + 1, round ? "two" : "one");
            write_line(&b, round + 1, round ? "two" : "one");
            end(&b);
            _exit(0);
        }
        int status;
        waitpid(pid, &status, 0);
        assert_int_equal(status, 0);
        assert_string_equal(read_file(path_in(state, "stdout")),
                            round ? "one\ntwo\n" : "one\n");
    }
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(lines_are_cut_at_line_feeds_only),
        IN_FOLDER(a_nul_is_part_of_the_line),
        IN_FOLDER(long_lines_are_counted_and_their_neighbours_kept),
        IN_FOLDER(a_pipe_is_read_to_its_end),
        IN_FOLDER(an_input_that_cannot_be_read_is_an_error),
        IN_FOLDER(lines_come_out_in_the_order_of_completion),
        IN_FOLDER(opening_repairs_what_a_kill_left),
        IN_FOLDER(a_lost_output_is_written_again_from_the_database),
        IN_FOLDER(bytes_of_others_are_not_overwritten_unless_told),
        IN_FOLDER(another_output_of_the_same_run_gets_every_line),
        IN_FOLDER(an_edited_input_has_only_its_new_answer_in_the_file),
        IN_FOLDER(an_input_that_is_gone_takes_its_answer_along),
        IN_FOLDER(outputs_that_are_no_files_are_refused),
        IN_FOLDER(a_file_in_use_is_refused),
        IN_FOLDER(stdout_gets_each_known_line_when_its_input_is_read_again),
    };
    return cmocka_run_group_tests_name("queue_file", tests, NULL, NULL);
}
