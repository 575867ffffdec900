/* Offsets of a job topic that could never be read, in table lost_ranges. */
#ifndef SHEAF_STORE_LOST_H
#define SHEAF_STORE_LOST_H

#include "io/store.h"

struct store_lost {
    const char *topic;
    int32_t partition;
    int64_t first, last; /* both are lost */
    const char *reason;  /* "retention", "topic_recreated" */
};

/* What of the range is known as lost already is not entered again. */
int store_note_lost(struct store *s, const struct store_lost *lost, struct err *e);

#endif
