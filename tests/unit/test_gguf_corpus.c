/* What the fuzzer kept, replayed: no file of tests/fixtures/gguf crashes the reader. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gguf_builder.h"
#include "gguf_visit.h"

#define CORPUS SHEAF_TEST_DATA "/fixtures/gguf"

static void the_kept_corpus_crashes_nothing(void **state)
{
    (void)state;
    DIR *folder = opendir(CORPUS);
    assert_non_null(folder);
    size_t n_accepted = 0, n_refused = 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        char path[1024];
        if (entry->d_name[0] == '.' || strcmp(entry->d_name, "README.md") == 0)
            continue;
        snprintf(path, sizeof path, CORPUS "/%s", entry->d_name);
        struct gguf_bytes file = gguf_bytes_read(path);
        uint64_t sum;
        if (gguf_visit_bytes(file.data, file.size, &sum) == 0)
            n_accepted++;
        else
            n_refused++;
        free(file.data);
    }
    closedir(folder);
    /* The corpus is there, and reaches both ends of the reader. */
    assert_true(n_accepted >= 5);
    assert_true(n_refused >= 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_kept_corpus_crashes_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
