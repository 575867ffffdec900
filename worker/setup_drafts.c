#include "setup_drafts.h"

#include <string.h>

static const struct {
    const char *name;
    unsigned sources;
    bool if_given; /* only those whose files are; else a file that is not given is an error */
} kinds[] = {
    {"off", SPECULATION_OFF, false},
    {"lookup", SPECULATION_LOOKUP, false},
    {"heads", SPECULATION_HEADS, false},
    {"model", SPECULATION_MODEL, false},
    {"all", SPECULATION_LOOKUP | SPECULATION_HEADS | SPECULATION_MODEL, true},
};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

int setup_choose_speculation(const struct settings *s, unsigned *out, struct err *e)
{
    size_t i = 0;
    while (i < N_KINDS && strcmp(kinds[i].name, s->speculation) != 0)
        i++;
    if (i == N_KINDS)
        return ERR_SET(e, ERR_CONFIG,
                       "speculation=%s is not one of off, lookup, heads, model, all",
                       s->speculation);
    unsigned lacking = 0;
    if (!*s->speculation_heads)
        lacking |= SPECULATION_HEADS;
    if (!*s->speculation_model)
        lacking |= SPECULATION_MODEL;
    lacking &= kinds[i].sources;
    if (lacking && !kinds[i].if_given)
        return ERR_SET(e, ERR_CONFIG, "speculation=%s needs %s", s->speculation,
                       lacking & SPECULATION_HEADS
                           ? "heads; name their file with speculation.heads"
                           : "a draft model; name its file with speculation.model");
    *out = kinds[i].sources & ~lacking;
    return 0;
}

static int open_heads(const struct settings *s, const struct model *m, struct setup_drafts *d,
                      struct err *e)
{
    TRY(heads_open(s->speculation_heads, m, &d->heads, e));
    heads_describe(d->heads, d->text, sizeof d->text);
    return 0;
}

static int open_model(const struct settings *s, struct setup_drafts *d, struct err *e)
{
    const int rc = model_open(s->speculation_model, &d->model, e);
    if (rc != 0)
        err_prefix(e, "speculation.model");
    return rc;
}

int setup_open_drafts(const struct settings *s, const struct model *m,
                      struct engine_options *options, struct setup_drafts *out, struct err *e)
{
    *out = (struct setup_drafts){0};
    if (options->speculation & SPECULATION_HEADS)
        TRY(open_heads(s, m, out, e));
    if (options->speculation & SPECULATION_MODEL)
        TRY(open_model(s, out, e));
    options->heads = out->heads;
    options->draft_model = out->model;
    return 0;
}

void setup_drop_drafts(struct setup_drafts *d)
{
    heads_close(d->heads);
    d->heads = NULL;
    if (d->model)
        model_drop_weights(d->model);
}

void setup_close_drafts(struct setup_drafts *d)
{
    heads_close(d->heads);
    model_close(d->model);
    *d = (struct setup_drafts){0};
}
