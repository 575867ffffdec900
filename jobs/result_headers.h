/*
 * What a result record carries beside its line, so that whoever reads the result topic knows as
 * much about the job as the worker's database: headers whose values are UTF-8 text.
 *
 *   sheaf.job_id          custom_id
 *   sheaf.result_id       the id of the line; the same whenever the same record is answered
 *   sheaf.status          succeeded, failed, expired, cancelled
 *   sheaf.dialect         native, openai-chat, openai-completion
 *   sheaf.source.topic, sheaf.source.partition, sheaf.source.offset    of the job
 *   sheaf.payload_sha256  of the job's bytes, 64 hex digits
 *   sheaf.attempt         answers that the run gave to this source
 *   sheaf.run_id, sheaf.worker, sheaf.model
 *   sheaf.prefix_group
 *   sheaf.submitted_at, sheaf.admitted_at, sheaf.finished_at, sheaf.stored_at
 *                         Unix seconds, six decimals
 *   sheaf.metrics         JSON: the columns of schema/metrics.def that are known, miss_reason,
 *                         and "drafts": [[source, depth, drafted, accepted], ...]
 *   sheaf.documents       JSON: [[id or null, title or null, bytes], ...]; left out when it is
 *                         longer than RESULT_DOCUMENTS_BYTES_MAX
 *   sheaf.run             JSON: model_sha256, quant, kernels, version, started_at
 *   sheaf.replay_of       topic/partition/offset of the job that this one repeats
 *
 * What is not known is left out. Readers ignore names that they do not know; of one that comes
 * twice the last counts.
 */
#ifndef SHEAF_RESULT_HEADERS_H
#define SHEAF_RESULT_HEADERS_H

#include "result.h"

enum {
    RESULT_HEADERS_MAX = 24,
    RESULT_DOCUMENTS_BYTES_MAX = 32768,
    RESULT_HEADER_BYTES_MAX = 65536, /* of one value that is read */
};

struct result_header {
    const char *name;
    const char *value; /* NUL-terminated when made here; any bytes, or NULL, when read */
    size_t length;
};

/* What the job and its result do not know; NULL and 0: not known. Borrowed. */
struct result_origin {
    const char *run_id;
    const char *model_sha256, *quant, *kernels, *version; /* of the run */
    int64_t run_started_us;
    int64_t attempt;
    int64_t stored_us; /* when the database had it */
    const char *replay_of;
};

struct result_headers {
    struct result_header items[RESULT_HEADERS_MAX];
    size_t n;
    char *memory; /* owned: all values */
};

/* The names are static, the values live until result_headers_fini. ERR_NOMEM is the only
 * failure; out is empty then. */
int result_headers_make(const struct result *r, const struct result_origin *origin,
                        struct result_headers *out, struct err *e);
void result_headers_fini(struct result_headers *h); /* accepts zeroed */

#endif
