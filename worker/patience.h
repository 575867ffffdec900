/*
 * How long something that may work later is tried again: after 0.1 s, 0.2 s and so on, 10 s at
 * most, for four minutes. A second signal ends the patience.
 */
#ifndef SHEAF_PATIENCE_H
#define SHEAF_PATIENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct patience {
    int64_t ends_us; /* monotonic */
    int wait_ms;
};

struct patience patience_begin(void);
/* After a failure: says it and waits. False: another try cannot help, or it is too late.
 * ends_us (monotonic, 0: none) is another end. */
bool patience_wait(struct patience *p, const struct err *why, int64_t ends_us);

#endif
