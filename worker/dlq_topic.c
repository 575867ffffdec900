#include "dlq_topic.h"

#include <stdio.h>
#include <string.h>

int dlq_topic_find(const struct settings *s, struct dlq_topic *out, struct err *e)
{
    out->name[0] = '\0';
    if (strcmp(s->dead_letters, "off") == 0)
        return 0;
    const int n = *s->dead_letters
                      ? snprintf(out->name, sizeof out->name, "%s", s->dead_letters)
                      : snprintf(out->name, sizeof out->name, "%s.dlq", s->jobs_topic);
    if (n >= 0 && strcmp(out->name, s->jobs_topic) == 0)
        return ERR_SET(
            e, ERR_CONFIG,
            "dead_letters and topic are both %s: a dead letter would be a job again, "
            "without end",
            s->jobs_topic);
    if (n >= 0 && (size_t)n < sizeof out->name)
        return 0;
    out->name[0] = '\0';
    return ERR_SET(e, ERR_CONFIG,
                   "the dead-letter topic's name has %d characters, Kafka takes %d: set "
                   "dead_letters",
                   n, TOPIC_NAME_BYTES_MAX);
}
