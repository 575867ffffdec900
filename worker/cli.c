#include "cli.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

#include "base/check.h"
#include "base/log.h"

/* ------------------------------------------------------------------ help */

struct common_option {
    unsigned takes; /* 0: every command */
    const char *name;
    char letter;       /* or 0 */
    const char *value; /* NULL: a switch */
    const char *help;
};

enum option_id {
    OPT_HELP,
    OPT_QUIET,
    OPT_INPUT,
    OPT_OUTPUT,
    OPT_JSON,
    OPT_LIMIT,
    OPT_EXIT_EMPTY,
    OPT_RUN,
    OPT_TEXT,
    OPT_SPECIAL,
    OPT_PARTITIONS,
    OPT_PROMPT_TOKENS,
    OPT_ANSWER_TOKENS,
    OPT_LEVER,
    OPT_EXPERIMENT,
    OPT_REPEATS,
    OPT_SWEEP,
    OPT_LIFT,
    OPT_JOBS,
    OPT_HEADS,
    OPT_HEAD_COUNT,
    OPT_DRAFT_VOCAB,
    OPT_EPOCHS,
    OPT_POSITIONS,
    OPT_ALL,
    OPT_CODE,
    OPT_ID,
    OPT_EVERY,
    OPT_AGAIN,
    OPT_BEFORE,
    OPT_YES,
    OPT_SET,
    OPT_CONFIG,
    OPT_BROKERS,
    OPT_TOPIC,
    OPT_GROUP,
    OPT_COUNT
};

static const struct common_option common_options[OPT_COUNT] = {
    [OPT_HELP] = {0, "help", 'h', NULL, "this text"},
    [OPT_QUIET] = {0, "quiet", 'q', NULL, "say nothing but errors"},
    [OPT_INPUT] = {CLI_INPUT, "input", 'i', "FILE", "job lines to read; - is standard input"},
    [OPT_OUTPUT] = {CLI_OUTPUT, "output", 'o', "FILE",
                    "where result lines go; - is standard output"},
    [OPT_JSON] = {CLI_JSON, "json", 0, NULL, "print JSON"},
    [OPT_LIMIT] = {CLI_LIMIT, "limit", 'n', "N", "at most N rows"},
    [OPT_EXIT_EMPTY] = {CLI_EXIT_EMPTY, "exit-when-empty", 0, NULL,
                        "stop when the topic is read to its end"},
    [OPT_RUN] = {CLI_RUN, "run", 0, "RUN",
                 "only this run (default: the latest; db export: all)"},
    [OPT_TEXT] = {CLI_TEXT, "text", 0, "TEXT", "text instead of standard input"},
    [OPT_SPECIAL] = {CLI_SPECIAL, "special", 0, NULL,
                     "read special tokens in the text as such"},
    [OPT_PARTITIONS] = {CLI_PARTITIONS, "partitions", 'p', "N",
                        "partitions of a topic that has to be created"},
    [OPT_PROMPT_TOKENS] = {CLI_PROMPT_TOKENS, "prompt-tokens", 0, "N", "length of the prompts"},
    [OPT_ANSWER_TOKENS] = {CLI_PROMPT_TOKENS, "answer-tokens", 0, "N", "length of the answers"},
    [OPT_LEVER] = {CLI_LEVERS, "lever", 0, "LEVER", "the setting that is off and on in turn"},
    [OPT_EXPERIMENT] = {CLI_LEVERS, "experiment", 0, "NAME",
                        "ready-made jobs instead of a file"},
    [OPT_REPEATS] = {CLI_LEVERS, "repeats", 0, "N", "how often each is measured"},
    [OPT_SWEEP] = {CLI_LEVERS, "sweep", 0, NULL, "measure step budgets instead of off and on"},
    [OPT_LIFT] = {CLI_LIFT, "lift-documents", 0, NULL,
                  "send long documents once, and refer to them"},
    [OPT_JOBS] = {CLI_HEADS, "jobs", 0, "FILE",
                  "database of past runs, file of job lines, or text"},
    [OPT_HEADS] = {CLI_HEADS, "heads", 0, "FILE", "heads that are measured"},
    [OPT_HEAD_COUNT] = {CLI_HEADS, "head-count", 0, "N", "heads that are trained (default 3)"},
    [OPT_DRAFT_VOCAB] = {CLI_HEADS, "draft-vocab", 0, "N",
                         "tokens that they know of at most (default 8192)"},
    [OPT_EPOCHS] = {CLI_HEADS, "epochs", 0, "N", "times that training goes over the texts"},
    [OPT_POSITIONS] = {CLI_HEADS, "positions", 0, "N",
                       "tokens of text at most (default 150000)"},
    [OPT_ALL] = {CLI_HEADS, "all", 0, NULL, "measure on all texts, not only those held out"},
    [OPT_CODE] = {CLI_DLQ, "code", 0, "CODE", "dead letters with this error code"},
    [OPT_ID] = {CLI_DLQ, "id", 0, "JOB", "dead letters of the job with this custom_id"},
    [OPT_EVERY] = {CLI_DLQ, "all", 0, NULL, "all dead letters"},
    [OPT_AGAIN] = {CLI_DLQ, "again", 0, NULL, "also those that were sent again before"},
    [OPT_BEFORE] = {CLI_DLQ, "before", 0, "OFFSET", "dead letters below this offset"},
    [OPT_YES] = {CLI_DLQ, "yes", 0, NULL, "do delete them"},
    [OPT_SET] = {0, "set", 'X', "KEY=VALUE", "a setting (sheaf.KEY) or a librdkafka property"},
    [OPT_CONFIG] = {0, "config", 'F', "FILE",
                    "settings and librdkafka properties, KEY=VALUE a line"},
    [OPT_BROKERS] = {CLI_KAFKA | CLI_BROKERS, NULL, 'b', "HOST:PORT", "the same as --brokers"},
    [OPT_TOPIC] = {CLI_KAFKA, NULL, 't', "TOPIC", "the same as --topic"},
    [OPT_GROUP] = {CLI_KAFKA, NULL, 'G', "GROUP", "the same as --group"},
};

static bool command_has_setting(const struct command *command, const char *key)
{
    const size_t n = strlen(key);
    for (const char *at = command->settings; (at = strstr(at, key)); at += n)
        if ((at == command->settings || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0'))
            return true;
    return false;
}

static void print_option(FILE *out, const struct common_option *o)
{
    char left[64];
    snprintf(left, sizeof left, "%s%c%s%s%s%s%s", o->letter ? "-" : "  ",
             o->letter ? o->letter : ' ',
             o->letter && o->name ? ", "
             : o->letter          ? ""
                                  : " ",
             o->name ? "--" : "", o->name ? o->name : "", o->value ? " " : "",
             o->value ? o->value : "");
    fprintf(out, "  %-30s %s\n", left, o->help);
}

static void flag_name(const char *key, char *out, size_t capacity)
{
    snprintf(out, capacity, "%s", key);
    for (char *c = out; *c; c++)
        if (*c == '.' || *c == '_')
            *c = '-';
}

static const char *default_of(const struct setting *row)
{
    if (row->kind == SETTING_BOOL)
        return strcmp(row->default_text, "0") == 0 ? "off" : "on";
    return *row->default_text ? row->default_text : "none";
}

static void print_setting(FILE *out, const struct setting *row)
{
    char flag[64];
    flag_name(row->key, flag, sizeof flag);
    char left[96];
    snprintf(left, sizeof left, "    --%s %s", flag,
             row->kind == SETTING_S64    ? "N"
             : row->kind == SETTING_BOOL ? "on|off"
                                         : "TEXT");
    char range[64] = "";
    if (row->kind == SETTING_S64)
        snprintf(range, sizeof range, "%lld..%lld, ", (long long)row->min, (long long)row->max);
    fprintf(out, "  %-30s %s (%sdefault %s)\n", left, row->help, range, default_of(row));
}

static void print_command_help(FILE *out, const struct command *command)
{
    fprintf(out, "sheaf %s %s\n\n%s\n\nOptions:\n", command->name, command->usage,
            command->text);
    for (size_t i = 0; i < OPT_COUNT; i++)
        if (common_options[i].takes == 0 || (command->takes & common_options[i].takes))
            print_option(out, &common_options[i]);
    if (!*command->settings)
        return;
    fprintf(out, "\nSettings (also sheaf.KEY=VALUE in a file given with -F):\n");
    for (size_t i = 0; i < settings_count(); i++)
        if (command_has_setting(command, settings_at(i)->key))
            print_setting(out, settings_at(i));
}

static void print_help(FILE *out)
{
    fprintf(out, "sheaf answers bulk RAG jobs: from a file or a Kafka topic to SQLite.\n\n"
                 "  sheaf run -i jobs.jsonl      answer a file\n"
                 "  sheaf stats --db jobs.db     and look at the latencies\n\nCommands:\n");
    for (size_t i = 0; commands[i]; i++)
        fprintf(out, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(out,
            "\nsheaf COMMAND --help tells more; sheaf help settings lists all settings.\n");
}

static int print_help_for(const char *topic)
{
    if (strcmp(topic, "settings") == 0) {
        for (size_t i = 0; i < settings_count(); i++)
            print_setting(stdout, settings_at(i));
        return 0;
    }
    for (size_t i = 0; commands[i]; i++) {
        if (strcmp(commands[i]->name, topic) == 0) {
            print_command_help(stdout, commands[i]);
            return 0;
        }
    }
    fprintf(stderr, "sheaf: there is no command %s\n", topic);
    return EXIT_USAGE;
}

/* ------------------------------------------------------------------ parsing */

enum { LONG_SETTING = 1000, LONG_COMMON = 2000, OPTIONS_MAX = 128 };

struct parser {
    struct cli *cli;
    struct option longs[OPTIONS_MAX];
    size_t n_longs;
    char letters[OPT_COUNT * 2 + 2];
    char flags[OPTIONS_MAX][64]; /* names of settings as flags */
    size_t n_flags;
};

static void add_long(struct parser *p, const char *name, bool has_value, int id)
{
    ASSERT(p->n_longs + 1 < OPTIONS_MAX);
    p->longs[p->n_longs++] = (struct option){
        .name = name, .has_arg = has_value ? required_argument : no_argument, .val = id};
}

static void collect_options(struct parser *p)
{
    const struct command *command = p->cli->command;
    size_t n = 0;
    p->letters[n++] = ':'; /* a missing value is told apart from an unknown option */
    for (size_t i = 0; i < OPT_COUNT; i++) {
        const struct common_option *o = &common_options[i];
        if (o->takes != 0 && !(command->takes & o->takes))
            continue;
        if (o->name)
            add_long(p, o->name, o->value != NULL, LONG_COMMON + (int)i);
        if (o->letter) {
            p->letters[n++] = o->letter;
            if (o->value)
                p->letters[n++] = ':';
        }
    }
    p->letters[n] = '\0';
    for (size_t i = 0; i < settings_count(); i++) {
        if (!command_has_setting(command, settings_at(i)->key))
            continue;
        char *flag = p->flags[p->n_flags++];
        flag_name(settings_at(i)->key, flag, sizeof p->flags[0]);
        add_long(p, flag, true, LONG_SETTING + (int)i);
    }
}

static int parse_number_to(const char *name, const char *text, int64_t max, int64_t *out,
                           struct err *e)
{
    char *end;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end || value < 0 || value > max)
        return ERR_SET(e, ERR_CONFIG, "--%s %s is not a number from 0 to %lld", name, text,
                       (long long)max);
    *out = value;
    return 0;
}

static int parse_number(const char *name, const char *text, int64_t *out, struct err *e)
{
    return parse_number_to(name, text, 1000000000, out, e);
}

static int apply_common(struct cli *cli, enum option_id id, const char *value, struct err *e)
{
    struct settings *s = &cli->settings;
    switch (id) {
    case OPT_QUIET: cli->quiet = true; return 0;
    case OPT_JSON: cli->json = true; return 0;
    case OPT_SPECIAL: cli->special = true; return 0;
    case OPT_EXIT_EMPTY: cli->exit_when_empty = true; return 0;
    case OPT_LIFT: cli->lift_documents = true; return 0;
    case OPT_INPUT: cli->input = value; return 0;
    case OPT_OUTPUT: cli->output = value; return 0;
    case OPT_RUN: cli->run = value; return 0;
    case OPT_TEXT: cli->text = value; return 0;
    case OPT_LIMIT: return parse_number("limit", value, &cli->limit, e);
    case OPT_PARTITIONS: return parse_number("partitions", value, &cli->partitions, e);
    case OPT_PROMPT_TOKENS: return parse_number("prompt-tokens", value, &cli->prompt_tokens, e);
    case OPT_ANSWER_TOKENS: return parse_number("answer-tokens", value, &cli->answer_tokens, e);
    case OPT_LEVER: cli->lever = value; return 0;
    case OPT_EXPERIMENT: cli->experiment = value; return 0;
    case OPT_REPEATS: return parse_number("repeats", value, &cli->repeats, e);
    case OPT_SWEEP: cli->sweep = true; return 0;
    case OPT_JOBS: cli->jobs = value; return 0;
    case OPT_HEADS: cli->heads = value; return 0;
    case OPT_HEAD_COUNT: return parse_number("head-count", value, &cli->head_count, e);
    case OPT_DRAFT_VOCAB: return parse_number("draft-vocab", value, &cli->draft_vocab, e);
    case OPT_EPOCHS: return parse_number("epochs", value, &cli->epochs, e);
    case OPT_POSITIONS: return parse_number("positions", value, &cli->positions, e);
    case OPT_ALL: cli->all_positions = true; return 0;
    case OPT_CODE: cli->code = value; return 0;
    case OPT_ID: cli->id = value; return 0;
    case OPT_EVERY: cli->all = true; return 0;
    case OPT_AGAIN: cli->again = true; return 0;
    case OPT_BEFORE: return parse_number_to("before", value, INT64_MAX, &cli->before, e);
    case OPT_YES: cli->yes = true; return 0;
    case OPT_SET: return settings_set_pair(s, value, e);
    case OPT_CONFIG: return 0; /* read before the flags */
    case OPT_BROKERS: return settings_set(s, settings_find("brokers"), value, e);
    case OPT_TOPIC: return settings_set(s, settings_find("topic"), value, e);
    case OPT_GROUP: return settings_set(s, settings_find("group"), value, e);
    case OPT_HELP:
    case OPT_COUNT: break;
    }
    return 0;
}

static enum option_id option_of_letter(int letter)
{
    for (size_t i = 0; i < OPT_COUNT; i++)
        if (common_options[i].letter == letter)
            return (enum option_id)i;
    return OPT_COUNT;
}

static int usage_error(const struct cli *cli, struct err *e, const char *what, const char *arg)
{
    return ERR_SET(e, ERR_USAGE, "%s %s; usage: sheaf %s %s (sheaf %s --help tells more)", what,
                   arg, cli->command->name, cli->command->usage, cli->command->name);
}

static int apply_option(struct cli *cli, enum option_id id, int c, struct err *e)
{
    if (id != OPT_COUNT)
        return apply_common(cli, id, optarg, e);
    return settings_set(&cli->settings, settings_at((size_t)(c - LONG_SETTING)), optarg, e);
}

/* files_only: the first pass, which reads only -F, so that flags win over files. */
static int parse_pass(struct parser *p, int argc, char **argv, bool files_only, bool *help,
                      struct err *e)
{
    optind = 0;
    opterr = 0;
    int c;
    while ((c = getopt_long(argc, argv, p->letters, p->longs, NULL)) != -1) {
        if (c == '?' || c == ':')
            return usage_error(p->cli, e,
                               c == '?' ? "unknown option" : "a value is missing after",
                               argv[optind - 1]);
        enum option_id id = OPT_COUNT;
        if (c >= LONG_COMMON)
            id = (enum option_id)(c - LONG_COMMON);
        else if (c < LONG_SETTING)
            id = option_of_letter(c);
        if (id == OPT_HELP)
            *help = true;
        if (files_only) {
            if (id == OPT_CONFIG)
                TRY(settings_load_file(&p->cli->settings, optarg, e));
        } else if (apply_option(p->cli, id, c, e) != 0) {
            if (e->code != ERR_NOMEM)
                e->code = ERR_USAGE; /* wrong on the command line, not in a file */
            return e->code;
        }
    }
    p->cli->args = (const char *const *)(argv + optind);
    p->cli->n_args = (size_t)(argc - optind);
    if (p->cli->n_args > p->cli->command->args_max)
        return usage_error(p->cli, e, "one argument too many:", argv[argc - 1]);
    return 0;
}

static int parse(struct cli *cli, int argc, char **argv, bool *help, struct err *e)
{
    struct parser *p = calloc(1, sizeof *p);
    if (!p)
        return ERR_SET(e, ERR_NOMEM, "no memory for the command line");
    p->cli = cli;
    collect_options(p);
    const char *file = getenv("SHEAF_CONFIG");
    int rc = file ? settings_load_file(&cli->settings, file, e) : 0;
    if (rc == 0)
        rc = parse_pass(p, argc, argv, true, help, e);
    if (rc == 0)
        rc = parse_pass(p, argc, argv, false, help, e);
    free(p);
    return rc;
}

/* ------------------------------------------------------------------ running */

int cli_exit_code(const struct err *e)
{
    switch (e->code) {
    case ERR_USAGE: return EXIT_USAGE;
    case ERR_CONFIG: return EX_CONFIG;
    case ERR_FORMAT:
    case ERR_UNSUPPORTED:
    case ERR_INVALID:
    case ERR_CONTEXT:
    case ERR_LIMIT: return EX_DATAERR;
    case ERR_NOTFOUND: return EX_NOINPUT;
    case ERR_BROKER: return EX_UNAVAILABLE;
    case ERR_STATE:
    case ERR_CANCELLED: return EX_TEMPFAIL;
    case ERR_IO:
    case ERR_DB: return EX_IOERR;
    default: return EX_SOFTWARE;
    }
}

int cli_one_input(const struct cli *cli, const char **path, struct err *e)
{
    if (cli->input && cli->n_args == 0)
        *path = cli->input;
    else if (!cli->input && cli->n_args == 1)
        *path = cli->args[0];
    else
        return usage_error(cli, e, "give one", "input file");
    return 0;
}

static int run_command(struct cli *cli, int argc, char **argv)
{
    struct err e = {0};
    bool help = false;
    int code;
    if (settings_init(&cli->settings, &e) != 0) {
        code = EX_SOFTWARE;
    } else if (parse(cli, argc, argv, &help, &e) != 0) {
        code = cli_exit_code(&e);
    } else if (help) {
        print_command_help(stdout, cli->command);
        code = 0;
    } else {
        if (cli->quiet)
            log_set_level(LOG_ERROR);
        code = cli->command->run(cli, &e);
        if (code <= EXIT_SOME_FAILED && (fflush(stdout) != 0 || ferror(stdout))) {
            ERR_SET(&e, ERR_IO, "cannot write to standard output: %s%s", strerror(errno),
                    err_advice(errno));
            code = EX_IOERR;
        }
    }
    if (e.code != 0)
        log_error("%s%s", e.text,
                  e.code == ERR_NOMEM ? "; free some memory and start again" : "");
    settings_fini(&cli->settings);
    return code;
}

enum { NAME_BYTES = 16 };

static size_t smallest(size_t a, size_t b, size_t c)
{
    const size_t ab = a < b ? a : b;
    return ab < c ? ab : c;
}

/* Levenshtein's distance of two short names. */
static size_t distance(const char *a, const char *b)
{
    size_t row[NAME_BYTES + 1];
    const size_t n = strnlen(b, NAME_BYTES);
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 0; a[i] && i < NAME_BYTES; i++) {
        size_t diagonal = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < n; j++) {
            const size_t changed = diagonal + (a[i] != b[j]);
            diagonal = row[j + 1];
            row[j + 1] = smallest(changed, row[j] + 1, diagonal + 1);
        }
    }
    return row[n];
}

static void refuse_command(const char *name)
{
    const struct command *nearest = commands[0];
    for (size_t i = 0; commands[i]; i++)
        if (distance(name, commands[i]->name) < distance(name, nearest->name))
            nearest = commands[i];
    fprintf(stderr,
            "sheaf: there is no command %s; did you mean %s? (sheaf --help lists all)\n", name,
            nearest->name);
}

int cli_main(int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        if (argc < 2) {
            fputs("sheaf answers bulk RAG jobs; sheaf --help lists its commands\n", stderr);
            return EXIT_USAGE;
        }
        print_help(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "version") == 0) {
        printf("sheaf %s\n", SHEAF_VERSION);
        return 0;
    }
    if (strcmp(argv[1], "help") == 0) {
        if (argc > 2)
            return print_help_for(argv[2]);
        print_help(stdout);
        return 0;
    }
    for (size_t i = 0; commands[i]; i++) {
        if (strcmp(commands[i]->name, argv[1]) != 0)
            continue;
        struct cli cli = {.command = commands[i],
                          .limit = -1,
                          .partitions = 4,
                          .prompt_tokens = -1,
                          .answer_tokens = 64,
                          .repeats = 5,
                          .head_count = 3,
                          .draft_vocab = 8192,
                          .epochs = 3,
                          .positions = 150000,
                          .before = -1};
        return run_command(&cli, argc - 1, argv + 1);
    }
    refuse_command(argv[1]);
    return EXIT_USAGE;
}
