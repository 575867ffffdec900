/* sheaf sink: a result topic into one database. */
#include "base/log.h"
#include "cli.h"
#include "signals.h"
#include "sink.h"

static void say_totals(const struct cli *cli, const struct sink_totals *t)
{
    if (!cli->quiet)
        log_info("%llu results stored, %llu replaced, %llu known before, %llu records were no "
                 "results",
                 (unsigned long long)t->counts.stored, (unsigned long long)t->counts.replaced,
                 (unsigned long long)t->counts.repeated, (unsigned long long)t->refused);
}

static int run(struct cli *cli, struct err *e)
{
    const struct settings *s = &cli->settings;
    struct store *store = NULL;
    struct sink_totals totals;
    if (!*s->db) {
        ERR_SET(e, ERR_USAGE,
                "give the database that collects the results: sheaf sink --db "
                "all.db (sheaf sink --help tells more)");
        return EXIT_USAGE;
    }
    signals_install();
    if (store_open(s->db, STORE_OWNER, &store, e) != 0)
        return cli_exit_code(e);
    const struct kafka_options kafka = {.brokers = s->brokers,
                                        .group = s->group,
                                        .results_topic = s->results_topic,
                                        .props = (const char *const *)s->props};
    const struct sink_options options = {.kafka = &kafka,
                                         .topic = s->results_topic,
                                         .exit_when_empty = cli->exit_when_empty,
                                         .quiet = cli->quiet};
    const int rc = sink_run(&options, store, &totals, e);
    store_close(store);
    if (rc == 0)
        say_totals(cli, &totals);
    return rc == 0 ? 0 : cli_exit_code(e);
}

const struct command cmd_sink = {
    .name = "sink",
    .summary = "collect the results of all workers in one database",
    .usage = "--db FILE [-b HOST:PORT] [--results-topic TOPIC] [--exit-when-empty]",
    .text = "Reads the result topic into a database of the same tables and views as a "
            "worker's, so\n"
            "that sheaf stats and sheaf results show what all workers did. How far it read is "
            "kept\n"
            "in the transaction that stores what it read: each result is there once, whenever "
            "it is\n"
            "killed. It reads committed results only, and needs no consumer group. Answers of\n"
            "workers come with their metrics; the questions stay in the workers' databases.\n"
            "A new file rebuilds a lost database from the topic.\n\n"
            "Examples:\n"
            "  sheaf sink --db all.db -b localhost:9092\n"
            "  sheaf sink --db all.db --results-topic night.results --exit-when-empty",
    .takes = CLI_BROKERS | CLI_EXIT_EMPTY,
    .settings = "db brokers results_topic group",
    .args_max = 0,
    .run = run,
};
