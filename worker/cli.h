/*
 * The command line: one table row per subcommand, common options, settings as flags.
 *
 * stdout is data, stderr is talk. Exit codes: 0 done; 1 done, but some jobs failed; 2 usage;
 * the rest as in sysexits.h: 65 bad input data, 66 no input, 69 a service is not there, 70 a
 * bug or a lack of memory, 74 the operating system failed a read or write, 75 try again later,
 * 78 a setting is wrong.
 */
#ifndef SHEAF_CLI_H
#define SHEAF_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/settings.h"

enum { EXIT_SOME_FAILED = 1, EXIT_USAGE = 2 };

/* Which of the common options a command takes. */
enum cli_takes {
    CLI_INPUT = 1 << 0,          /* -i, --input FILE */
    CLI_OUTPUT = 1 << 1,         /* -o, --output FILE */
    CLI_JSON = 1 << 2,           /* --json */
    CLI_LIMIT = 1 << 3,          /* --limit N */
    CLI_EXIT_EMPTY = 1 << 4,     /* --exit-when-empty */
    CLI_KAFKA = 1 << 5,          /* -b, -t, -G, -X, -F */
    CLI_RUN = 1 << 6,            /* --run RUN */
    CLI_TEXT = 1 << 7,           /* --text TEXT */
    CLI_SPECIAL = 1 << 8,        /* --special */
    CLI_PARTITIONS = 1 << 9,     /* --partitions N */
    CLI_PROMPT_TOKENS = 1 << 10, /* --prompt-tokens N, --answer-tokens N */
    CLI_LEVERS = 1 << 11,        /* --lever, --experiment, --repeats, --sweep */
    CLI_LIFT = 1 << 12,          /* --lift-documents */
    CLI_HEADS = 1 << 13,         /* --jobs, --positions and more of sheaf heads */
    CLI_DLQ = 1 << 14,           /* --code, --id and more of sheaf dlq */
};

struct cli {
    const struct command *command;
    struct settings settings;
    bool json, quiet, special, exit_when_empty, lift_documents;
    const char *input, *output, *run, *text;
    int64_t limit;         /* -1: none */
    int64_t partitions;    /* of a topic that is created */
    int64_t prompt_tokens; /* -1: the bench's own */
    int64_t answer_tokens;
    const char *lever, *experiment;
    int64_t repeats;
    bool sweep;
    const char *jobs; /* what heads are trained or measured on */
    const char *heads;
    int64_t head_count, draft_vocab, epochs, positions;
    bool all_positions;
    const char *code, *id; /* which dead letters */
    bool all, again, yes;
    int64_t before;          /* an offset; -1: none */
    const char *const *args; /* what is no option */
    size_t n_args;
};

struct command {
    const char *name;
    const char *summary;  /* one line */
    const char *usage;    /* what follows the name */
    const char *text;     /* a few lines: what it does, examples */
    unsigned takes;       /* enum cli_takes */
    const char *settings; /* keys that apply, space separated */
    size_t args_max;      /* arguments that are no options */
    int (*run)(struct cli *cli,
               struct err *e); /* exit code; e says why when it is not 0 or 1 */
};

extern const struct command *const commands[]; /* NULL at the end */

/* Runs argv; returns the exit code. */
int cli_main(int argc, char **argv);
/* The exit code that goes with an error. */
int cli_exit_code(const struct err *e);
/* The one positional argument, or the -i file; ERR_USAGE when it is missing. */
int cli_one_input(const struct cli *cli, const char **path, struct err *e);

#endif
