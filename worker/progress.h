/*
 * One line about how far a run is: on a terminal redrawn in place at most 4 times a second,
 * elsewhere a log line every 10 seconds.
 */
#ifndef SHEAF_PROGRESS_H
#define SHEAF_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "transport.h"

struct progress {
    bool shown;
    bool is_terminal;
    int64_t started_us;
    int64_t last_us;
};

struct progress_figures {
    uint64_t done, failed, running;
    uint64_t prompt_tokens_computed, completion_tokens;
    struct transport_progress input;
};

void progress_init(struct progress *p, bool shown);
/* True when it is time to gather figures for progress_show. */
bool progress_is_due(const struct progress *p);
void progress_show(struct progress *p, const struct progress_figures *f);
/* Ends the line on a terminal. */
void progress_end(struct progress *p);

#endif
