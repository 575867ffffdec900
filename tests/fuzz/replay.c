/* Runs a fuzz target over every file under the folders given, and over no bytes at all. Each
 * input lies on the heap in exactly its size, so that a sanitizer sees a read past its end. */
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "fuzz.h"

enum { OPEN_FOLDERS = 16 };

static size_t n_files;

static int replay_file(const char *path, const struct stat *info, int kind, struct FTW *place)
{
    (void)place;
    if (kind != FTW_F)
        return 0;
    const size_t size = (size_t)info->st_size;
    uint8_t *bytes = malloc(size ? size : 1);
    FILE *file = fopen(path, "rb");
    if (!bytes || !file || fread(bytes, 1, size, file) != size) {
        fprintf(stderr, "cannot read %s\n", path);
        return 1;
    }
    fclose(file);
    LLVMFuzzerTestOneInput(bytes, size);
    free(bytes);
    n_files++;
    return 0;
}

int main(int argc, char **argv)
{
    uint8_t nothing = 0;
    LLVMFuzzerTestOneInput(&nothing, 0);
    for (int i = 1; i < argc; i++) {
        if (nftw(argv[i], replay_file, OPEN_FOLDERS, FTW_PHYS) != 0) {
            fprintf(stderr, "cannot walk %s\n", argv[i]);
            return 1;
        }
    }
    printf("%zu files\n", n_files);
    return n_files > 0 ? 0 : 1;
}
