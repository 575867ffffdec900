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

static int open_model(const struct settings *s, struct model **out, struct err *e)
{
    const int rc = model_open(s->speculation_model, out, e);
    if (rc != 0)
        err_prefix(e, "speculation.model");
    return rc;
}

int setup_open_drafts(const struct settings *s, const struct model *m,
                      struct engine_options *options, struct setup_drafts *out, struct err *e)
{
    (void)m;
    *out = (struct setup_drafts){0};
    if (options->speculation & SPECULATION_HEADS)
        return ERR_SET(e, ERR_UNSUPPORTED, "%s: heads cannot be read yet",
                       s->speculation_heads);
    options->heads = out->heads;
    if (options->speculation & SPECULATION_MODEL)
        TRY(open_model(s, &out->model, e));
    options->draft_model = out->model;
    return 0;
}

void setup_drop_draft_weights(struct setup_drafts *d)
{
    if (d->model)
        model_drop_weights(d->model);
}

void setup_close_drafts(struct setup_drafts *d)
{
    model_close(d->model);
    *d = (struct setup_drafts){0};
}
