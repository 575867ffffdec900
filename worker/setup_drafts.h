/* What drafts come from, by the settings, and the files that this takes. */
#ifndef SHEAF_SETUP_DRAFTS_H
#define SHEAF_SETUP_DRAFTS_H

#include "base/settings.h"
#include "engine/engine.h"
#include "model/heads.h"

/* Bits of enum speculation; ERR_CONFIG when the setting is unknown or its file is not given. */
int setup_choose_speculation(const struct settings *s, unsigned *out, struct err *e);

/* Opened files, which the engine's options point to; to be closed after the engine. */
struct setup_drafts {
    struct heads *heads; /* or NULL */
    char text[128];      /* what is used of the heads, "" when nothing is */
    struct model *model; /* or NULL */
};

int setup_open_drafts(const struct settings *s, const struct model *m,
                      struct engine_options *options, struct setup_drafts *out, struct err *e);
/* After engine_open: gives back what it has packed. */
void setup_drop_drafts(struct setup_drafts *d);
void setup_close_drafts(struct setup_drafts *d);

#endif
