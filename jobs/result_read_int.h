/* What the files of result_read share: getting values out of JSON that others wrote. */
#ifndef SHEAF_RESULT_READ_INT_H
#define SHEAF_RESULT_READ_INT_H

#include "jobs_int.h"
#include "result_read.h"

/* Larger figures are taken for nonsense, so that sums of a whole database fit. */
#define RESULT_COUNT_MAX INT64_C(1000000000000000)

/* A copy of a string of 1..bytes_max bytes; anything else leaves *out as it is. */
int result_take_text(const json_t *value, size_t bytes_max, char **out, struct err *e);
/* An integer of 0..RESULT_COUNT_MAX; false: it is none. */
bool result_take_count(const json_t *value, int64_t *out);
/* Milliseconds or seconds as microseconds; false: no number, negative, not finite. */
bool result_take_us(const json_t *value, double us_per_unit, int64_t *out);

/* The headers; after the line was read. */
int result_read_headers(struct result_record *record, const struct result_header *headers,
                        size_t n, struct err *e);

#endif
