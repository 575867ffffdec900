/* sheaf stats: counts, failures and latencies of a run. */
#include <stdlib.h>

#include "cli.h"
#include "report/report.h"

static int run(struct cli *cli, struct err *e)
{
    struct store *store = NULL;
    const char *db = *cli->settings.db ? cli->settings.db : "sheaf.db";
    if (store_open(db, STORE_READER, &store, e) != 0)
        return cli_exit_code(e);
    const int rc = report_stats(store, cli->run, cli->json, stdout, e);
    store_close(store);
    return rc == 0 ? 0 : cli_exit_code(e);
}

const struct command cmd_stats = {
    .name = "stats",
    .summary = "counts and latencies of a run",
    .usage = "[--db FILE] [--run RUN]",
    .text = "Prints the run's counts, token rates, failures by code, and p50, p90, p95, p99 of "
            "queue,\n"
            "time to first token, time per token and end to end. May be used while a worker "
            "runs.\n\n"
            "Examples:\n"
            "  sheaf stats --db night.db\n"
            "  sheaf stats --db night.db --json",
    .takes = CLI_JSON | CLI_RUN,
    .settings = "db",
    .args_max = 0,
    .run = run,
};
