/* sheaf run: jobs from a file, answers to a file and a database. No broker. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "cli.h"
#include "setup.h"
#include "signals.h"

struct run_paths {
    const char *input;
    char *output;
    char *db;
    char *run_id;
};

/* "night/jobs.jsonl" -> "night/jobs" */
static int stem_length(const char *input)
{
    const char *slash = strrchr(input, '/');
    const char *dot = strrchr(input, '.');
    if (!dot || (slash && dot < slash) || dot == input)
        return (int)strlen(input);
    return (int)(dot - input);
}

static char *with_suffix(const char *input, const char *suffix)
{
    const char *base = strcmp(input, "-") == 0 ? "stdin" : input;
    char *path = NULL;
    return asprintf(&path, "%.*s%s", stem_length(base), base, suffix) < 0 ? NULL : path;
}

static char *base_name(const char *input)
{
    const char *slash = strrchr(input, '/');
    return strdup(slash ? slash + 1 : input);
}

static void free_paths(struct run_paths *p)
{
    free(p->output);
    free(p->db);
    free(p->run_id);
}

static bool is_same_file(const char *a, const char *b)
{
    struct stat first, second;
    return strcmp(a, "-") != 0 && strcmp(b, "-") != 0 && stat(a, &first) == 0 &&
           stat(b, &second) == 0 && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}

static int choose_paths(const struct cli *cli, struct run_paths *p, struct err *e)
{
    const struct settings *s = &cli->settings;
    TRY(cli_one_input(cli, &p->input, e));
    p->output = cli->output ? strdup(cli->output) : with_suffix(p->input, ".results.jsonl");
    p->db = *s->db ? strdup(s->db) : with_suffix(p->input, ".db");
    p->run_id = *s->run_id ? strdup(s->run_id) : base_name(p->input);
    if (!p->output || !p->db || !p->run_id)
        return ERR_SET(e, ERR_NOMEM, "no memory for the paths of the run");
    if (is_same_file(p->input, p->output))
        return ERR_SET(e, ERR_USAGE, "%s is the input; give another file with -o", p->output);
    if (strcmp(p->input, "-") != 0 && access(p->input, R_OK) != 0)
        return ERR_SET(e, ERR_NOTFOUND, "cannot read %s; give a file of job lines with -i",
                       p->input);
    return 0;
}

static int run(struct cli *cli, struct err *e)
{
    signals_install();
    struct run_paths paths = {0};
    struct setup setup = {0};
    struct transport transport = {0};
    struct pipeline_totals totals = {0};
    int code = 0;
    int rc = choose_paths(cli, &paths, e);
    if (rc == 0)
        rc = setup_open(&setup, &cli->settings, paths.db, paths.run_id, cli->quiet, e);
    if (rc != 0) {
        free_paths(&paths);
        return cli_exit_code(e);
    }
    rc = setup_open_documents(&cli->settings, NULL, &setup.documents, e);
    if (rc == 0)
        rc = transport_open_files(paths.input, paths.output, 2 * (size_t)cli->settings.batch,
                                  &setup.store, &transport, e);
    if (rc == 0) {
        code = setup_run(&setup, &cli->settings, &transport, cli->quiet, &totals, e);
        transport.close(transport.ctx);
    } else {
        setup_abandon_run(&setup);
        code = cli_exit_code(e);
    }
    if (e->code == 0 && !cli->quiet)
        log_info("answers in %s, metrics in %s (sheaf stats --db %s)", paths.output, paths.db,
                 paths.db);
    setup_close(&setup);
    free_paths(&paths);
    return code;
}

const struct command cmd_run = {
    .name = "run",
    .summary = "answer the jobs of a file",
    .usage = "[-i] FILE [-o FILE] [--db FILE]",
    .text =
        "Answers every job line of FILE. Answers go to FILE.results.jsonl in order of\n"
        "completion, one line for each input line, and with their metrics to FILE.db. Started\n"
        "again after a kill it goes on where it was and repeats no answer. Jobs may refer to\n"
        "documents in the file or folder of --documents.\n\n"
        "Examples:\n"
        "  sheaf run -i jobs.jsonl\n"
        "  sheaf run -i jobs.jsonl -o answers.jsonl --db night.db --batch 32\n"
        "  sheaf run -i jobs.jsonl --documents handbook/\n"
        "  generate-jobs | sheaf run -i - -o - --db night.db > answers.jsonl",
    .takes = CLI_INPUT | CLI_OUTPUT,
    .settings = SETUP_SETTINGS,
    .args_max = 1,
    .run = run,
};
