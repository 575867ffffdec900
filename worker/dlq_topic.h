/* Where the dead letters of a job topic are: the setting dead_letters. */
#ifndef SHEAF_DLQ_TOPIC_H
#define SHEAF_DLQ_TOPIC_H

#include "base/limits.h"
#include "base/settings.h"

struct dlq_topic {
    char name[TOPIC_NAME_BYTES_MAX + 1]; /* "": there is none (dead_letters=off) */
};
/* ERR_CONFIG when no topic can have that name, or when it is the jobs' own. */
int dlq_topic_find(const struct settings *s, struct dlq_topic *out, struct err *e);

#endif
