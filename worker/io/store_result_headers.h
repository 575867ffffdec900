/*
 * The headers of a stored result (result_headers.h), made from its rows: the same for a result
 * that was just stored and for one that waited in the outbox while its worker was away.
 *
 * Thread: store.
 */
#ifndef SHEAF_STORE_RESULT_HEADERS_H
#define SHEAF_STORE_RESULT_HEADERS_H

#include "io/store.h"
#include "result_headers.h"

/* Of the current row of the source; a line of a file is one of the run begun last.
 * ERR_NOTFOUND: there is none. replay_of may be NULL. result_headers_fini out. */
int store_result_headers(struct store *s, const struct job_source *source,
                         const char *replay_of, struct result_headers *out, struct err *e);

#endif
