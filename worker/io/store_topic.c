/* Whose answers the database holds, topic by topic. */
#include <stdlib.h>
#include <string.h>

#include "io/store_int.h"

enum owner_kind { OWNER_GROUP, OWNER_CLUSTER };

static const char *const key_of[] = {"group of ", "cluster of "};

/* *found "" when nothing is remembered; free() it. */
static int find_owner(struct store *s, enum owner_kind kind, const char *topic, char **found,
                      struct err *e)
{
    sqlite3_stmt *st;
    const char *const texts[] = {key_of[kind], topic};
    TRY(store_prepare(s, SQL_META_FIND, &st, e));
    TRY(store_bind_texts(s, st, texts, 2, e));
    int code = 0;
    const int rc = sqlite3_step(st);
    if (rc == SQLITE_ROW)
        code = store_copy_text(st, 0, found, e);
    else if (rc != SQLITE_DONE)
        code = store_fail(s, e, "look up whose answers these are");
    else if (!(*found = strdup("")))
        code = ERR_SET(e, ERR_NOMEM, "out of memory");
    sqlite3_reset(st);
    return code;
}

static int remember(struct store *s, enum owner_kind kind, const char *topic, const char *owner,
                    struct err *e)
{
    sqlite3_stmt *st;
    const char *const texts[] = {key_of[kind], topic, owner};
    TRY(store_prepare(s, SQL_META_SET, &st, e));
    TRY(store_bind_texts(s, st, texts, 3, e));
    return store_finish(s, st, "remember whose answers these are", e);
}

static int claim(struct store *s, enum owner_kind kind, const char *topic, const char *owner,
                 struct err *e)
{
    char *found = NULL;
    TRY(find_owner(s, kind, topic, &found, e));
    int code = 0;
    if (!*found)
        code = remember(s, kind, topic, owner, e);
    else if (strcmp(found, owner) != 0)
        code =
            ERR_SET(e, ERR_STATE,
                    "%s holds the answers to %s of the %s %s, and this is %s: its jobs would "
                    "be taken for answered; use another database (db)",
                    s->path, topic, kind == OWNER_GROUP ? "group" : "cluster", found, owner);
    free(found);
    return code;
}

int store_claim_topic(struct store *s, const char *topic, const char *cluster,
                      const char *group, struct err *e)
{
    TRY(claim(s, OWNER_GROUP, topic, group, e));
    return cluster ? claim(s, OWNER_CLUSTER, topic, cluster, e) : 0;
}
