/*
 * A dead letter as a person or a program reads it, on standard output.
 *
 * What stands in a record is hostile: on a terminal nothing of it is obeyed, and every column
 * has a width. In JSON, bytes that are no text are base64, under another name.
 */
#ifndef SHEAF_DLQ_PRINT_H
#define SHEAF_DLQ_PRINT_H

#include <stdbool.h>

#include "base/err.h"
#include "io/dlq.h"

void dlq_print_titles(void);
void dlq_print_row(const struct dlq_letter *letter);
/* One line: what ls says of a letter. */
int dlq_print_row_json(const struct dlq_letter *letter, struct err *e);
/* One object: place, key, value and every header in order. */
int dlq_print_letter_json(const struct dlq_letter *letter, const char *topic, struct err *e);
/* Key and headers, a line each, on stderr. */
void dlq_print_headers(const struct dlq_letter *letter);

#endif
