/* Which topic stands for what: two roles on one topic would feed a worker its own output. */
#ifndef SHEAF_TOPIC_ROLES_H
#define SHEAF_TOPIC_ROLES_H

#include "base/settings.h"

/* Jobs, results, documents and dead letters must be topics of their own. dead_letters: their
 * topic; NULL or "": none. ERR_CONFIG names the settings that meet. */
int topic_roles_check(const struct settings *s, const char *dead_letters, struct err *e);

#endif
