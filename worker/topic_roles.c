#include "topic_roles.h"

#include <string.h>

struct role {
    const char *setting, *topic;
};

int topic_roles_check(const struct settings *s, const char *dead_letters, struct err *e)
{
    const struct role roles[] = {{"topic", s->jobs_topic},
                                 {"results_topic", s->results_topic},
                                 {"documents_topic", s->documents_topic},
                                 {"dead_letters", dead_letters ? dead_letters : ""}};
    enum { N_ROLES = sizeof roles / sizeof roles[0] };
    for (size_t i = 0; i < N_ROLES; i++)
        for (size_t j = i + 1; j < N_ROLES; j++)
            if (*roles[i].topic && strcmp(roles[i].topic, roles[j].topic) == 0)
                return ERR_SET(e, ERR_CONFIG,
                               "%s and %s are both %s: each needs a topic of its own, or what "
                               "is written to one would be read as the other",
                               roles[i].setting, roles[j].setting, roles[i].topic);
    return 0;
}
