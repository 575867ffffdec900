/*
 * The command line: one table row per subcommand, common options, settings as flags.
 *
 * stdout is data, stderr is talk. Exit codes, those from 65 on as in sysexits.h:
 *
 *     0   done
 *     1   done, but some jobs failed
 *     2   the command line is wrong
 *     65  an input is broken (a model, a file), or more than there is room for
 *     66  an input is not there
 *     69  Kafka is not there, or refuses
 *     70  a lack of memory, or a bug
 *     74  a disk or the database failed, also after minutes of patience; what is stored is safe
 *     75  not now: another process owns it, it belongs to another run, or it was stopped early
 *     78  a setting is wrong
 *
 * After 69, 70, 74 and 75 the same command, once the cause is gone, goes on where it was: no
 * answer is lost, none is given twice.
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
    CLI_BROKERS = 1 << 14,       /* -b alone */
    CLI_DLQ = 1 << 15,           /* --code, --id and more of sheaf dlq */
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
