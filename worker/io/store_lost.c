#include "io/store_lost.h"

#include "base/clock.h"
#include "io/store_int.h"

/* A worker that starts again before it has answered anything behind the gap meets it again. */
static const char NOTE[] =
    "INSERT INTO lost_ranges (topic, partition, first_offset, last_offset, reason, detected_at)"
    " SELECT :topic, :partition, first, :last, :reason, :detected_at FROM"
    " (SELECT ifnull(max(last_offset) + 1, :first) AS first FROM lost_ranges"
    "  WHERE topic = :topic AND partition = :partition"
    "  AND first_offset <= :last AND last_offset >= :first)"
    " WHERE first <= :last";

int store_note_lost(struct store *s, const struct store_lost *lost, struct err *e)
{
    struct binder b = {0};
    if (sqlite3_prepare_v2(s->db, NOTE, sizeof NOTE, &b.statement, NULL) != SQLITE_OK)
        return store_fail(s, e, "prepare to note what is lost");
    binder_put_text(&b, ":topic", lost->topic);
    binder_put_s64(&b, ":partition", lost->partition);
    binder_put_s64(&b, ":first", lost->first);
    binder_put_s64(&b, ":last", lost->last);
    binder_put_text(&b, ":reason", lost->reason);
    binder_put_double(&b, ":detected_at", (double)clock_wall_us() / 1e6);
    const int rc = b.rc == SQLITE_OK ? store_finish(s, b.statement, "note what is lost", e)
                                     : store_fail(s, e, "bind what is lost");
    sqlite3_finalize(b.statement);
    return rc;
}
