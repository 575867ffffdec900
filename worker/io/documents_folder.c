/* One document a file. A reference is a job's text, and is trusted as little. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/limits.h"
#include "documents_int.h"

/* No empty part, no "." and no "..": then no part goes up, unless by a link. */
bool documents_folder_is_name(const char *ref)
{
    for (const char *at = ref;; at++) {
        const size_t n = strcspn(at, "/");
        if (n == 0 || (n == 1 && at[0] == '.') || (n == 2 && at[0] == '.' && at[1] == '.'))
            return false;
        at += n;
        if (*at == '\0')
            return true;
    }
}

/* Another time the same call may find it whole. */
static bool may_pass(int number)
{
    return number == EIO || number == EINTR || number == EMFILE || number == ENFILE ||
           number == ENOMEM || number == ESTALE || number == ETIMEDOUT;
}

static int fail_for_now(const char *ref, int number, struct err *e)
{
    return ERR_SET_FLAGS(e, number == ENOMEM ? ERR_NOMEM : ERR_IO, ERR_RETRY,
                         "the document %.80s cannot be read now: %s", ref, strerror(number));
}

static bool is_below(const char *root, const char *path)
{
    const size_t n = strcmp(root, "/") == 0 ? 0 : strlen(root);
    return strncmp(path, root, n) == 0 && path[n] == '/';
}

/* Where the name leads once all links are followed. Whoever may write to the folder could
 * still change a link between this look and the opening; a reference cannot. */
static char *real_path(const char *root, const char *ref, enum find_answer *answer,
                       struct err *why, struct err *e)
{
    char *joined = NULL;
    if (asprintf(&joined, "%s/%s", root, ref) < 0) {
        ERR_SET(e, ERR_NOMEM, "no memory for a document's path");
        return NULL;
    }
    char *path = realpath(joined, NULL);
    free(joined);
    if (path && is_below(root, path))
        return path;
    if (!path && may_pass(errno)) {
        fail_for_now(ref, errno, e);
        return NULL;
    }
    const bool is_missing =
        !path && (errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG);
    *answer = is_missing ? FIND_NOWHERE : FIND_INVALID;
    ERR_SET(why, ERR_INVALID, "%s", path ? "it leads out of the folder" : strerror(errno));
    free(path);
    return NULL;
}

static int read_all(FILE *file, const char *ref, size_t size, struct document *out,
                    struct err *why, struct err *e)
{
    char *bytes = malloc(size + 1);
    if (!bytes)
        return ERR_SET(e, ERR_NOMEM, "no memory for a document");
    errno = 0;
    const size_t got = fread(bytes, 1, size + 1, file); /* one more than there should be */
    const int number = errno;
    int rc;
    if (ferror(file) && may_pass(number))
        rc = fail_for_now(ref, number, e);
    else if (ferror(file))
        rc = ERR_SET(why, ERR_IO, "it cannot be read");
    else if (got != size)
        rc = ERR_SET(why, ERR_IO, "it changes while it is read");
    else
        rc = document_parse_text(bytes, size, out, why);
    free(bytes);
    return rc;
}

static int read_file(const char *path, const char *ref, struct document *out, struct err *why,
                     struct err *e)
{
    struct stat st;
    /* NONBLOCK: opening a FIFO would wait for a writer. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
    int rc;
    if (!file && may_pass(errno))
        rc = fail_for_now(ref, errno, e);
    else if (!file)
        rc = ERR_SET(why, ERR_IO, "it cannot be opened: %s", strerror(errno));
    else if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        rc = ERR_SET(why, ERR_INVALID, "it is not a file");
    else if (st.st_size > (off_t)JOB_BYTES_MAX)
        rc = ERR_SET(why, ERR_LIMIT, "it has %lld bytes; at most %u are allowed",
                     (long long)st.st_size, JOB_BYTES_MAX);
    else
        rc = read_all(file, ref, (size_t)st.st_size, out, why, e);
    if (file)
        fclose(file);
    else if (fd >= 0)
        close(fd);
    return rc;
}

int documents_folder_read(const char *root, const char *ref, enum find_answer *answer,
                          struct document *out, struct err *why, struct err *e)
{
    *answer = FIND_INVALID;
    if (!documents_folder_is_name(ref)) {
        ERR_SET(why, ERR_INVALID, "it is not a name inside the folder");
        return 0;
    }
    struct err lack = {0};
    char *path = real_path(root, ref, answer, why, &lack);
    if (path && (!out || read_file(path, ref, out, why, &lack) == 0))
        *answer = FIND_HERE;
    free(path);
    if (lack.code != 0)
        return ERR_SET_FLAGS(e, lack.code, lack.flags, "%s", lack.text);
    if (why->code == ERR_NOMEM)
        return ERR_SET(e, ERR_NOMEM, "no memory for a document");
    return 0;
}
