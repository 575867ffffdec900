/* What drafts come from, by the settings, and the files that this takes. */
#ifndef SHEAF_SETUP_DRAFTS_H
#define SHEAF_SETUP_DRAFTS_H

#include "base/settings.h"
#include "engine/engine.h"
#include "model/heads.h"

/* Bits of enum speculation; ERR_CONFIG when the setting is unknown or its file is not given. */
int setup_choose_speculation(const struct settings *s, unsigned *out, struct err *e);

/* Opened files, which the engine's options point to; to be closed after engine_open. */
struct setup_drafts {
    struct heads *heads; /* or NULL */
    char text[128];      /* what is used of them, "" when nothing is */
};

int setup_open_drafts(const struct settings *s, const struct model *m,
                      struct engine_options *options, struct setup_drafts *out, struct err *e);
void setup_close_drafts(struct setup_drafts *d);

#endif
