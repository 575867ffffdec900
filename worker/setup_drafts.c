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
    {"all", SPECULATION_LOOKUP | SPECULATION_HEADS, true},
};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

int setup_choose_speculation(const struct settings *s, unsigned *out, struct err *e)
{
    size_t i = 0;
    while (i < N_KINDS && strcmp(kinds[i].name, s->speculation) != 0)
        i++;
    if (i == N_KINDS)
        return ERR_SET(e, ERR_CONFIG, "speculation=%s is not one of off, lookup, heads, all",
                       s->speculation);
    *out = kinds[i].sources;
    if ((*out & SPECULATION_HEADS) && !*s->speculation_heads) {
        if (!kinds[i].if_given)
            return ERR_SET(e, ERR_CONFIG,
                           "speculation=%s needs heads; name their file with speculation.heads",
                           s->speculation);
        *out &= ~(unsigned)SPECULATION_HEADS;
    }
    return 0;
}

int setup_open_drafts(const struct settings *s, const struct model *m,
                      struct engine_options *options, struct setup_drafts *out, struct err *e)
{
    *out = (struct setup_drafts){0};
    if (!(options->speculation & SPECULATION_HEADS))
        return 0;
    TRY(heads_open(s->speculation_heads, m, &out->heads, e));
    heads_describe(out->heads, out->text, sizeof out->text);
    options->heads = out->heads;
    return 0;
}

void setup_close_drafts(struct setup_drafts *d)
{
    heads_close(d->heads);
    *d = (struct setup_drafts){0};
}
