/* sheaf results: the answers of a run. */
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli.h"
#include "report/report.h"

static int terminal_width(void)
{
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

static int print_results(struct cli *cli, struct store *store, struct err *e)
{
    char *latest = NULL;
    if (!cli->run)
        TRY(report_latest_run(store, &latest, e));
    const struct report_results_options options = {
        .run_id = cli->run ? cli->run : latest,
        .custom_id = cli->n_args > 0 ? cli->args[0] : NULL,
        .limit = cli->limit < 0 ? 0 : cli->limit,
        .form = cli->json         ? REPORT_JSON
                : cli->n_args > 0 ? REPORT_TEXT
                                  : REPORT_TABLE,
        .width = terminal_width(),
    };
    size_t n = 0;
    int rc = report_results(store, &options, stdout, &n, e);
    if (rc == 0 && n == 0 && cli->n_args > 0)
        rc = ERR_SET(e, ERR_NOTFOUND, "run %s has no job %s", options.run_id, cli->args[0]);
    free(latest);
    return rc;
}

static int run(struct cli *cli, struct err *e)
{
    struct store *store = NULL;
    const char *db = *cli->settings.db ? cli->settings.db : "sheaf.db";
    if (store_open(db, STORE_READER, &store, e) != 0)
        return cli_exit_code(e);
    const int rc = print_results(cli, store, e);
    store_close(store);
    return rc == 0 ? 0 : cli_exit_code(e);
}

const struct command cmd_results = {
    .name = "results",
    .summary = "the answers of a run",
    .usage = "[--db FILE] [--run RUN] [CUSTOM_ID]",
    .text =
        "Prints a row for each job in the order of the input, or one job's question and whole\n"
        "answer. May be used while a worker runs.\n\n"
        "Examples:\n"
        "  sheaf results --db night.db --limit 20\n"
        "  sheaf results --db night.db question-17\n"
        "  sheaf results --db night.db --json",
    .takes = CLI_JSON | CLI_RUN | CLI_LIMIT,
    .settings = "db",
    .args_max = 1,
    .run = run,
};
