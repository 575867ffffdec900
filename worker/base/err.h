/*
 * Errors as values.
 *
 * Every function that can fail returns int: 0, or a negative enum err_code. What happened is
 * told in a struct err that the caller owns (usually on its stack) and may leave NULL. The
 * first error wins: a later err_set on the same struct changes nothing, so that cleanup code
 * cannot hide the cause.
 */
#ifndef SHEAF_ERR_H
#define SHEAF_ERR_H

#include <stdarg.h>
#include <stdbool.h>

enum err_code {
    ERR_NOMEM = -1,       /* an allocation failed */
    ERR_IO = -2,          /* the operating system refused a read, write or open */
    ERR_FORMAT = -3,      /* bytes from outside break their format */
    ERR_UNSUPPORTED = -4, /* well formed, but not something Sheaf does */
    ERR_LIMIT = -5,       /* larger than a limit of limits.h or of the memory plan */
    ERR_INVALID = -6,     /* a value outside its range */
    ERR_NOTFOUND = -7,    /* a name, file or row that is not there */
    ERR_STATE = -8,       /* not possible now (closed, locked by another process, ...) */
    ERR_CONTEXT = -9,     /* a prompt does not fit the context */
    ERR_BROKER = -10,     /* Kafka said no, or did not answer */
    ERR_DB = -11,         /* SQLite said no */
    ERR_CONFIG = -12,     /* a setting or flag is wrong */
    ERR_CANCELLED = -13,  /* stopped on request */
    ERR_USAGE = -14,      /* the command line is not one of ours */
};

/* What the caller should do about it; flags may be combined. */
enum err_flag {
    ERR_JOB = 1,   /* only this job fails; its result says why */
    ERR_RETRY = 2, /* back off and try the same thing again */
    ERR_FATAL = 4, /* stop the process; commit nothing more */
};

enum { ERR_TEXT_BYTES = 512 };

struct err {
    int code; /* 0 = no error yet */
    unsigned flags;
    const char *file; /* where it was set, for the log */
    int line;
    char text[ERR_TEXT_BYTES]; /* one sentence for a person, no trailing newline */
};

/* Records the error unless one is recorded already; e may be NULL. Returns code. */
int err_set(struct err *e, int code, unsigned flags, const char *file, int line,
            const char *format, ...) __attribute__((format(printf, 6, 7)));

/* Puts "what: " in front of a recorded text ("jobs.jsonl line 7: ..."); no error, no change. */
void err_prefix(struct err *e, const char *format, ...) __attribute__((format(printf, 2, 3)));

void err_clear(struct err *e);

/* A short stable name for a code: "format", "io", ... */
const char *err_name(int code);

/* What a person can do about an errno of a file or folder: "; make room there", to be put
 * behind a sentence about it; "" when there is no more to say. */
const char *err_advice(int error);

/* Sets the error and yields its code: return ERR_SET(e, ERR_IO, "cannot open %s", path); */
#define ERR_SET(e, code, ...) err_set((e), (code), 0, __FILE__, __LINE__, __VA_ARGS__)
#define ERR_SET_FLAGS(e, code, flags, ...)                                                     \
    err_set((e), (code), (flags), __FILE__, __LINE__, __VA_ARGS__)

/* Forwards a failure to the caller. */
#define TRY(expression)                                                                        \
    do {                                                                                       \
        const int try_code = (expression);                                                     \
        if (try_code != 0)                                                                     \
            return try_code;                                                                   \
    } while (0)

/* The same for functions with a cleanup part: sets code and jumps to out. */
#define TRY_OUT(code, expression)                                                              \
    do {                                                                                       \
        (code) = (expression);                                                                 \
        if ((code) != 0)                                                                       \
            goto out;                                                                          \
    } while (0)

#endif
