/* sheaf model: what a model file holds; its tokenizer by hand. */
#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "cli.h"
#include "model/random_model.h"
#include "setup.h"

static int read_all(FILE *in, struct buf *out, struct err *e)
{
    char chunk[65536];
    size_t n;
    while ((n = fread(chunk, 1, sizeof chunk, in)) > 0)
        buf_append(out, chunk, n);
    if (ferror(in))
        return ERR_SET(e, ERR_IO, "cannot read standard input: %s", strerror(errno));
    return buf_ok(out) ? 0 : ERR_SET(e, ERR_NOMEM, "no memory for the text");
}

/* ------------------------------------------------------------------ info */

/* The texts of the tokens that end an answer, comma separated. */
static void list_ends(const struct model *m, struct buf *out)
{
    for (int32_t id = 0; (size_t)id < tokenizer_vocab_size(m->tokenizer); id++) {
        if (!tokenizer_is_end(m->tokenizer, id))
            continue;
        const struct gguf_str text = tokenizer_token_text(m->tokenizer, id);
        buf_printf(out, "%s%.*s (%d)", out->length ? ", " : "", (int)text.length, text.data,
                   id);
    }
}

static json_t *describe(const struct model *m)
{
    const struct model_config *c = &m->config;
    struct buf ends = {0};
    list_ends(m, &ends);
    json_t *root = json_pack(
        "{s:s, s:s, s:s, s:I, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:b, s:s, s:s, "
        "s:s}",
        "name", m->name, "architecture", model_arch_name(c->arch), "quant", m->quant,
        "file_bytes", (json_int_t)m->file_bytes, "sha256", m->sha256, "layers",
        (json_int_t)c->n_layers, "dim", (json_int_t)c->dim, "heads", (json_int_t)c->n_heads,
        "kv_heads", (json_int_t)c->n_kv_heads, "head_dim", (json_int_t)c->head_dim, "ffn_dim",
        (json_int_t)c->ffn_dim, "vocabulary", (json_int_t)c->n_vocab, "context",
        (json_int_t)c->context, "rope_base", c->rope_base, "tied", m->tied, "tokenizer",
        tokenizer_kind(m->tokenizer), "chat_template", template_name(m->template_family),
        "end_tokens", buf_str(&ends));
    buf_fini(&ends);
    return root;
}

static void print_pairs(const json_t *root)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)root, key, value)
    {
        if (json_is_string(value)) {
            printf("%-14s %s\n", key, json_string_value(value));
            continue;
        }
        char *text = json_dumps(value, JSON_ENCODE_ANY);
        printf("%-14s %s\n", key, text ? text : "?");
        free(text);
    }
}

static int info(const struct cli *cli, const struct model *m, struct err *e)
{
    json_t *root = describe(m);
    if (!root)
        return ERR_SET(e, ERR_NOMEM, "no memory for the description");
    if (cli->json) {
        json_dumpf(root, stdout, JSON_INDENT(2));
        putchar('\n');
    } else {
        print_pairs(root);
    }
    json_decref(root);
    return 0;
}

/* ------------------------------------------------------------------ tokenizer */

static int tokenize(const struct cli *cli, const struct model *m, struct err *e)
{
    struct buf text = {0};
    int rc = 0;
    if (cli->text)
        buf_append_str(&text, cli->text);
    else
        rc = read_all(stdin, &text, e);
    struct token_list ids = {0};
    const struct token_span span = {
        .text = buf_str(&text), .length = text.length, .special = cli->special};
    if (rc == 0)
        rc = tokenizer_encode(m->tokenizer, &span, 1, false, &ids, e);
    for (size_t i = 0; rc == 0 && i < ids.length; i++)
        printf("%s%d", i ? " " : "", ids.ids[i]);
    if (rc == 0)
        putchar('\n');
    token_list_fini(&ids);
    buf_fini(&text);
    return rc;
}

static int parse_ids(const char *text, const struct model *m, struct token_list *ids,
                     struct err *e)
{
    for (;;) {
        while (isspace((unsigned char)*text) || *text == ',')
            text++;
        if (*text == '\0')
            return 0;
        char *end;
        errno = 0;
        const long id = strtol(text, &end, 10);
        if (errno != 0 || end == text || id < 0 ||
            (size_t)id >= tokenizer_vocab_size(m->tokenizer))
            return ERR_SET(e, ERR_INVALID, "'%.20s' is not a token id below %zu", text,
                           tokenizer_vocab_size(m->tokenizer));
        TRY(token_list_append(ids, (int32_t)id, e));
        text = end;
    }
}

static int detokenize(const struct cli *cli, const struct model *m, struct err *e)
{
    struct buf input = {0}, text = {0};
    struct token_list ids = {0};
    int rc = 0;
    if (cli->text)
        buf_append_str(&input, cli->text);
    else
        rc = read_all(stdin, &input, e);
    if (rc == 0)
        rc = parse_ids(buf_str(&input), m, &ids, e);
    if (rc == 0)
        rc = tokenizer_decode(m->tokenizer, ids.ids, ids.length, &text, e);
    if (rc == 0)
        fwrite(buf_str(&text), 1, text.length, stdout);
    token_list_fini(&ids);
    buf_fini(&text);
    buf_fini(&input);
    return rc;
}

/* ------------------------------------------------------------------ random */

static int write_random(const struct cli *cli, struct err *e)
{
    const struct random_shape *shape;
    enum quant_type type;
    if (cli->n_args != 4)
        return ERR_SET(e, ERR_USAGE, "usage: sheaf model random SHAPE TYPE FILE");
    TRY(random_shape_find(cli->args[1], &shape, e));
    TRY(random_type_find(cli->args[2], &type, e));
    return random_model_write(cli->args[3], shape, type, RANDOM_SEED, e);
}

/* ------------------------------------------------------------------ command */

struct verb {
    const char *name;
    int (*run)(const struct cli *cli, const struct model *m, struct err *e);
};

static const struct verb verbs[] = {
    {"info", info}, {"tokenize", tokenize}, {"detokenize", detokenize}};

static int run(struct cli *cli, struct err *e)
{
    const struct verb *verb = NULL;
    if (cli->n_args > 0 && strcmp(cli->args[0], "random") == 0)
        return write_random(cli, e) == 0 ? 0 : cli_exit_code(e);
    for (size_t i = 0; cli->n_args > 0 && i < sizeof verbs / sizeof verbs[0]; i++)
        if (strcmp(cli->args[0], verbs[i].name) == 0)
            verb = &verbs[i];
    if (!verb || cli->n_args > 2) {
        ERR_SET(
            e, ERR_USAGE,
            "usage: sheaf model info|tokenize|detokenize [FILE], or random SHAPE TYPE FILE");
        return EXIT_USAGE;
    }
    if (cli->n_args == 2 &&
        settings_set(&cli->settings, settings_find("model"), cli->args[1], e) != 0)
        return cli_exit_code(e);
    struct model *m = NULL;
    int rc = setup_open_model(&cli->settings, &m, e);
    if (rc == 0)
        rc = verb->run(cli, m, e);
    model_close(m);
    return rc == 0 ? 0 : cli_exit_code(e);
}

const struct command cmd_model = {
    .name = "model",
    .summary = "describe a model file, try its tokenizer, make a random one",
    .usage = "info|tokenize|detokenize [FILE] | random SHAPE TYPE FILE",
    .text =
        "info prints what the file holds; tokenize turns text (standard input or --text) into\n"
        "token ids, detokenize ids into text. Without FILE: the model of the settings.\n\n"
        "random writes a model of a real one's shape (tiny, 135m, 1b, 3b, 8b) and random "
        "weights\n"
        "(F32, BF16, Q8_0, Q4_0), for measuring speed where no weights are at hand.\n\n"
        "Examples:\n"
        "  sheaf model info\n"
        "  echo 'The mill was built in 1786.' | sheaf model tokenize\n"
        "  echo 504 3714 436 3203 | sheaf model detokenize\n"
        "  sheaf model random 1b q8_0 random-1b.gguf",
    .takes = CLI_JSON | CLI_TEXT | CLI_SPECIAL,
    .settings = "model",
    .args_max = 4,
    .run = run,
};
