/* sheaf db: databases checked, merged, given out as lines, made small. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "cli.h"
#include "io/store_merge.h"
#include "io/store_upkeep.h"

static int usage(struct err *e, const char *rest)
{
    return ERR_SET(e, ERR_USAGE, "usage: sheaf db %s (sheaf db --help tells more)", rest);
}

/* ------------------------------------------------------------------ check */

static void print_fault(void *ctx, const char *sentence)
{
    printf("%s: %s\n", (const char *)ctx, sentence);
}

static int check(const struct cli *cli, struct err *e)
{
    struct store *store = NULL;
    struct store_census census;
    size_t n_faults = 0;
    if (cli->n_args != 2)
        return usage(e, "check FILE");
    const char *path = cli->args[1];
    int rc = store_open(path, STORE_READER, &store, e);
    if (rc == 0)
        rc = store_check(store, print_fault, (void *)path, &n_faults, &census, e);
    store_close(store);
    if (rc == ERR_DB && (e->flags & ERR_FATAL))
        e->code = rc = ERR_FORMAT; /* what is damaged is bad data, not a failed disk */
    if (rc == 0 && n_faults > 0)
        return ERR_SET(e, ERR_FORMAT, "%s is damaged: " STORE_ADVICE, path);
    if (rc == 0)
        printf("%s is whole: %" PRId64 " jobs of %" PRId64 " runs, %" PRId64
               " results not published\n",
               path, census.jobs, census.runs, census.unpublished);
    return rc;
}

/* ------------------------------------------------------------------ merge */

static int merge_all(const struct cli *cli, struct store *into, struct err *e)
{
    for (size_t i = 2; i < cli->n_args; i++) {
        struct merge_counts counts = {0};
        TRY(store_merge(into, cli->args[i], &counts, e));
        log_info("%s: %" PRId64 " jobs added, %" PRId64 " replaced, %" PRId64 " known before",
                 cli->args[i], counts.added, counts.replaced, counts.kept);
    }
    return 0;
}

static int merge(const struct cli *cli, struct err *e)
{
    struct store *into = NULL;
    if (cli->n_args < 3)
        return usage(e, "merge OUT.db IN.db...");
    TRY(store_open(cli->args[1], STORE_OWNER, &into, e));
    const int rc = merge_all(cli, into, e);
    store_close(into);
    return rc;
}

/* ------------------------------------------------------------------ export */

static int print_line(void *ctx, const char *line, size_t length, struct err *e)
{
    (void)ctx;
    if (fwrite(line, 1, length, stdout) == length && putchar('\n') != EOF)
        return 0;
    return ERR_SET(e, ERR_IO, "cannot write to standard output: %s", strerror(errno));
}

static int write_line(void *ctx, const char *line, size_t length, struct err *e)
{
    TRY(file_replace_write(ctx, line, length, e));
    return file_replace_write(ctx, "\n", 1, e);
}

static int export_file(struct store *store, const char *run, const char *path, struct err *e)
{
    struct file_replacement file;
    TRY(file_replace_begin(path, &file, e));
    const int rc = store_each_line(store, run, write_line, &file, e);
    if (rc == 0)
        return file_replace_commit(&file, e);
    file_replace_abandon(&file);
    return rc;
}

static int export_lines(const struct cli *cli, struct err *e)
{
    struct store *store = NULL;
    if (cli->n_args != 2)
        return usage(e, "export FILE [--run RUN] [-o FILE]");
    TRY(store_open(cli->args[1], STORE_READER, &store, e));
    const int rc = cli->output && strcmp(cli->output, "-") != 0
                       ? export_file(store, cli->run, cli->output, e)
                       : store_each_line(store, cli->run, print_line, NULL, e);
    store_close(store);
    return rc;
}

/* ------------------------------------------------------------------ vacuum */

static int vacuum(const struct cli *cli, struct err *e)
{
    struct store *store = NULL;
    int64_t before = 0, after = 0;
    if (cli->n_args != 2)
        return usage(e, "vacuum FILE");
    if (access(cli->args[1], F_OK) != 0)
        return ERR_SET(e, ERR_NOTFOUND, "%s: no such database", cli->args[1]);
    TRY(store_open(cli->args[1], STORE_OWNER, &store, e));
    const int rc = store_vacuum(store, &before, &after, e);
    store_close(store);
    if (rc == 0)
        log_info("%s: %" PRId64 " KiB before, %" PRId64 " KiB now", cli->args[1], before >> 10,
                 after >> 10);
    return rc;
}

static const struct {
    const char *name;
    int (*run)(const struct cli *cli, struct err *e);
} verbs[] = {{"check", check}, {"merge", merge}, {"export", export_lines}, {"vacuum", vacuum}};

static int run(struct cli *cli, struct err *e)
{
    size_t verb = 0;
    while (verb < sizeof verbs / sizeof verbs[0] &&
           (cli->n_args == 0 || strcmp(cli->args[0], verbs[verb].name) != 0))
        verb++;
    const int rc = verb < sizeof verbs / sizeof verbs[0]
                       ? verbs[verb].run(cli, e)
                       : usage(e, "check|merge|export|vacuum ...");
    return rc == 0 ? 0 : cli_exit_code(e);
}

const struct command cmd_db = {
    .name = "db",
    .summary = "check, merge, export, vacuum databases",
    .usage = "check FILE | merge OUT.db IN.db... | export FILE [--run RUN] [-o FILE] | "
             "vacuum FILE",
    .text =
        "check reads all of a database and says what is wrong with it: pages, references,\n"
        "sums, and lines that say something else than their columns (exit code 65).\n"
        "merge puts the jobs of several workers into one database, each once; the inputs are\n"
        "only read, and merging again changes nothing.\n"
        "export prints the stored result lines, of all runs or of one.\n"
        "vacuum makes a file smaller, when no worker uses it.\n\n"
        "Examples:\n"
        "  sheaf db check night.db\n"
        "  sheaf db merge all.db worker1.db worker2.db\n"
        "  sheaf db export all.db --run night -o results.jsonl\n"
        "  sheaf db vacuum night.db",
    .takes = CLI_RUN | CLI_OUTPUT,
    .settings = "",
    .args_max = 1026,
    .run = run,
};
