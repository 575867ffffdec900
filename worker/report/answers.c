#include "report/answers.h"

#include <sqlite3.h>

static const char ANSWERS[] =
    "SELECT j.topic, j.is_file, j.payload_sha256, j.answer FROM v_jobs j "
    "JOIN runs USING (run_id) WHERE j.status = 'succeeded' AND j.answer IS NOT NULL "
    "ORDER BY started_at DESC, run_id DESC, topic, partition, offset, job_id";

int report_answers(struct store *store,
                   int (*each)(void *ctx, const struct report_answer *answer, struct err *e),
                   void *ctx, struct err *e)
{
    sqlite3 *db = store_handle(store);
    sqlite3_stmt *st = NULL;
    int rc = 0;
    int db_rc = sqlite3_prepare_v2(db, ANSWERS, -1, &st, NULL);
    while (rc == 0 && (db_rc == SQLITE_OK || db_rc == SQLITE_ROW)) {
        db_rc = sqlite3_step(st);
        if (db_rc != SQLITE_ROW)
            break;
        const char *text = (const char *)sqlite3_column_text(st, 3);
        const struct report_answer answer = {
            .topic = (const char *)sqlite3_column_text(st, 0),
            .is_file = sqlite3_column_int(st, 1) != 0,
            .payload_sha256 = (const char *)sqlite3_column_text(st, 2),
            .text = text,
            .length = (size_t)sqlite3_column_bytes(st, 3),
        };
        if (!answer.topic || !answer.payload_sha256 || !text)
            rc = ERR_SET(e, ERR_NOMEM, "no memory for an answer");
        else
            rc = each(ctx, &answer, e);
    }
    if (rc == 0 && db_rc != SQLITE_DONE)
        rc = ERR_SET(e, ERR_DB, "cannot read the answers: %s", sqlite3_errmsg(db));
    sqlite3_finalize(st);
    return rc;
}
