/* sheaf heads: Medusa heads trained, measured, shown. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "heads_eval.h"
#include "heads_table.h"
#include "heads_train.h"
#include "setup.h"

static int train(const struct cli *cli, const struct model *m, struct err *e)
{
    if (!cli->jobs || !cli->output || strcmp(cli->output, "-") == 0 || cli->n_args > 1)
        return ERR_SET(e, ERR_USAGE,
                       "usage: sheaf heads train --jobs FILE -o heads.gguf (sheaf heads --help "
                       "tells more)");
    return heads_train(cli, m, e);
}

static int eval(const struct cli *cli, const struct model *m, struct err *e)
{
    if (!cli->jobs || !cli->heads || cli->n_args > 1)
        return ERR_SET(e, ERR_USAGE,
                       "usage: sheaf heads eval --heads heads.gguf --jobs FILE (sheaf heads "
                       "--help tells more)");
    return heads_eval(cli, m, e);
}

static int show(const struct cli *cli, const struct model *m, struct err *e)
{
    const char *path = cli->n_args == 2 ? cli->args[1] : cli->heads;
    if (!path || (cli->n_args == 2 && cli->heads))
        return ERR_SET(e, ERR_USAGE, "usage: sheaf heads show FILE");
    struct heads *heads = NULL;
    TRY(heads_open(path, m, &heads, e));
    struct heads_table_part part = {.name = "stated"};
    for (size_t i = 0; i < heads->n_heads; i++)
        memcpy(part.accuracies[i], heads->heads[i].accuracies, sizeof part.accuracies[i]);
    const int rc = heads_table_print(heads, &part, 1, cli->json, e);
    heads_close(heads);
    return rc;
}

static const struct {
    const char *name;
    int (*run)(const struct cli *cli, const struct model *m, struct err *e);
} verbs[] = {{"train", train}, {"eval", eval}, {"show", show}};

static int run(struct cli *cli, struct err *e)
{
    size_t verb = 0;
    while (verb < sizeof verbs / sizeof verbs[0] &&
           (cli->n_args == 0 || strcmp(cli->args[0], verbs[verb].name) != 0))
        verb++;
    if (verb == sizeof verbs / sizeof verbs[0]) {
        ERR_SET(e, ERR_USAGE,
                "usage: sheaf heads train|eval|show ... (sheaf heads --help tells "
                "more)");
        return EXIT_USAGE;
    }
    struct model *m = NULL;
    int rc = setup_open_model(&cli->settings, &m, e);
    if (rc == 0)
        rc = verbs[verb].run(cli, m, e);
    model_close(m);
    return rc == 0 ? 0 : cli_exit_code(e);
}

const struct command cmd_heads = {
    .name = "heads",
    .summary = "train Medusa heads on your own jobs, and measure them",
    .usage = "train --jobs FILE -o FILE | eval --heads FILE --jobs FILE | show FILE",
    .text =
        "Heads guess the tokens behind the next one, and speculation=heads verifies what they\n"
        "guess. train makes them for the model from your own documents and answers: --jobs is\n"
        "the database of past runs (job lines are read again from the files it names, or from\n"
        "--input), a file of job lines, or a text file. Some texts are held out and measured\n"
        "on. The same texts, options and seed give the same file; a stopped training goes on\n"
        "when the same command is given again, from OUTPUT.state.\n\n"
        "Examples:\n"
        "  sheaf heads train --jobs night.db -o heads.gguf\n"
        "  sheaf heads eval --heads heads.gguf --jobs tonight.jsonl --all\n"
        "  sheaf heads show heads.gguf",
    .takes = CLI_HEADS | CLI_INPUT | CLI_OUTPUT | CLI_JSON,
    .settings = "model chat_template context threads kv.type activations seed strict "
                "max_tokens documents documents.mb",
    .args_max = 2,
    .run = run,
};
