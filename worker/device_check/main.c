#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "device_check/check.h"
#include "model/random_model.h"

enum { EXIT_DIFFERS = 1, EXIT_WRONG_USAGE = 2, EXIT_FAILED = 70, NUMBER_MAX = 1 << 30 };

static const char usage[] =
    "usage: sheaf-device-check steps|equal --model FILE [options]\n"
    "       sheaf-device-check random SHAPE TYPE FILE\n"
    "steps: prompts and groups that decode, timed and counted, as lines of JSON\n"
    "equal: answers under all levers, and beside the CPU's; exit code 1: some differ where no\n"
    "       near tie explains it\n"
    "random: a model of a real one's shape (tiny, 135m, 1b, 3b, 8b)\n"
    "  --device NAME         cpu, cuda, cuda-emu (cpu)\n"
    "  --exact               what runs beside a sequence changes none of its bits\n"
    "  --no-graphs           steps are launched kernel by kernel\n"
    "  --prefix-tokens N     of a group, a multiple of 32 (1024)\n"
    "  --own-tokens N        of a sequence, behind the prefix (64)\n"
    "  --groups N            (2)\n"
    "  --group-size N        sequences of a group (8)\n"
    "  --steps N             that decoding is timed over (16)\n"
    "  --repeats N           of each kind of decoding (3)\n"
    "  --step-tokens N       rows of a step at most (4096)\n"
    "  --peak-mib N          size of the copy that is measured first (0: no peaks)\n"
    "  --peak-side N         and of the square product (8192)\n"
    "  --peak-ms N           how long each is measured for (500)\n"
    "  --plant-error         equal has to find a wrong token\n";

/* ------------------------------------------------------------------ options */

enum option_id {
    OPT_DEVICE = 1,
    OPT_MODEL,
    OPT_EXACT,
    OPT_NO_GRAPHS,
    OPT_PLANT,
    OPT_PREFIX,
    OPT_OWN,
    OPT_GROUPS,
    OPT_GROUP_SIZE,
    OPT_STEPS,
    OPT_REPEATS,
    OPT_STEP_TOKENS,
    OPT_PEAK_MIB,
    OPT_PEAK_SIDE,
    OPT_PEAK_MS,
};

static const struct option_number {
    enum option_id option;
    size_t place; /* in struct check_options */
    size_t min;
} numbers[] = {
    {OPT_PREFIX, offsetof(struct check_options, rig.prefix_tokens), KV_PAGE_TOKENS},
    {OPT_OWN, offsetof(struct check_options, rig.own_tokens), 1},
    {OPT_GROUPS, offsetof(struct check_options, rig.n_groups), 1},
    {OPT_GROUP_SIZE, offsetof(struct check_options, rig.group_size), 1},
    {OPT_STEPS, offsetof(struct check_options, rig.n_steps), 1},
    {OPT_REPEATS, offsetof(struct check_options, repeats), 1},
    {OPT_STEP_TOKENS, offsetof(struct check_options, rig.step_tokens), 1},
    {OPT_PEAK_SIDE, offsetof(struct check_options, peaks.product_side), 32},
};

static int parse_number(const char *text, size_t min, size_t *out, struct err *e)
{
    char *end;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end || value < (long long)min || value > NUMBER_MAX)
        return ERR_SET(e, ERR_USAGE, "'%.20s' is no number of %zu or more", text, min);
    *out = (size_t)value;
    return 0;
}

static int take_number(struct check_options *o, enum option_id option, const char *text,
                       struct err *e)
{
    size_t value;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (numbers[i].option == option)
            return parse_number(text, numbers[i].min,
                                (size_t *)(void *)((char *)o + numbers[i].place), e);
    TRY(parse_number(text, 0, &value, e));
    if (option == OPT_PEAK_MIB)
        o->peaks.copy_bytes = value << 20;
    else
        o->peaks.us = (int64_t)value * 1000;
    return 0;
}

static int take(struct check_options *o, int option, const char *text, struct err *e)
{
    switch (option) {
    case OPT_DEVICE: o->rig.device = text; return 0;
    case OPT_MODEL: o->model = text; return 0;
    case OPT_EXACT: o->rig.exact = true; return 0;
    case OPT_NO_GRAPHS: o->rig.graphs = false; return 0;
    case OPT_PLANT: o->plants_error = true; return 0;
    case '?': return ERR_SET(e, ERR_USAGE, "unknown option");
    default: return take_number(o, (enum option_id)option, text, e);
    }
}

static int parse(int argc, char **argv, struct check_options *o, struct err *e)
{
    static const struct option names[] = {
        {"device", 1, NULL, OPT_DEVICE},         {"model", 1, NULL, OPT_MODEL},
        {"exact", 0, NULL, OPT_EXACT},           {"no-graphs", 0, NULL, OPT_NO_GRAPHS},
        {"plant-error", 0, NULL, OPT_PLANT},     {"prefix-tokens", 1, NULL, OPT_PREFIX},
        {"own-tokens", 1, NULL, OPT_OWN},        {"groups", 1, NULL, OPT_GROUPS},
        {"group-size", 1, NULL, OPT_GROUP_SIZE}, {"steps", 1, NULL, OPT_STEPS},
        {"repeats", 1, NULL, OPT_REPEATS},       {"step-tokens", 1, NULL, OPT_STEP_TOKENS},
        {"peak-mib", 1, NULL, OPT_PEAK_MIB},     {"peak-side", 1, NULL, OPT_PEAK_SIDE},
        {"peak-ms", 1, NULL, OPT_PEAK_MS},       {0}};
    int option;
    while ((option = getopt_long(argc, argv, "", names, NULL)) != -1)
        TRY(take(o, option, optarg, e));
    if (o->rig.prefix_tokens % KV_PAGE_TOKENS != 0)
        return ERR_SET(e, ERR_USAGE, "--prefix-tokens is a multiple of %d", KV_PAGE_TOKENS);
    return o->model ? 0 : ERR_SET(e, ERR_USAGE, "--model FILE is missing");
}

/* ------------------------------------------------------------------ verbs */

static int write_random(int argc, char **argv, struct err *e)
{
    const struct random_shape *shape;
    enum quant_type type;
    if (argc != 5)
        return ERR_SET(e, ERR_USAGE, "random takes SHAPE, TYPE and FILE");
    TRY(random_shape_find(argv[2], &shape, e));
    TRY(random_type_find(argv[3], &type, e));
    return random_model_write(argv[4], shape, type, RANDOM_SEED, e);
}

static int run(int argc, char **argv, bool *differs, struct err *e)
{
    struct check_options o = {.rig = {.device = "cpu",
                                      .graphs = true,
                                      .prefix_tokens = 1024,
                                      .own_tokens = 64,
                                      .n_groups = 2,
                                      .group_size = 8,
                                      .n_steps = 16,
                                      .step_tokens = STEP_ROWS_MAX},
                              .repeats = 3,
                              .peaks = {.product_side = 8192, .us = 500000}};
    const char *verb = argc > 1 ? argv[1] : "";
    if (strcmp(verb, "random") == 0)
        return write_random(argc, argv, e);
    const bool is_steps = strcmp(verb, "steps") == 0;
    if (!is_steps && strcmp(verb, "equal") != 0)
        return ERR_SET(e, ERR_USAGE, "steps, equal or random is missing");
    TRY(parse(argc - 1, argv + 1, &o, e));
    return is_steps ? check_steps(&o, e) : check_equal(&o, differs, e);
}

int main(int argc, char **argv)
{
    struct err e = {0};
    bool differs = false;
    const int rc = run(argc, argv, &differs, &e);
    if (rc == 0)
        return differs ? EXIT_DIFFERS : 0;
    fprintf(stderr, "sheaf-device-check: %s\n", e.text);
    if (rc != ERR_USAGE)
        return EXIT_FAILED;
    fputs(usage, stderr);
    return EXIT_WRONG_USAGE;
}
