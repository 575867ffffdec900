/* A result is an object on a line of stdout of its own. */
#ifndef SHEAF_DEVICE_CHECK_PRINT_H
#define SHEAF_DEVICE_CHECK_PRINT_H

#include <jansson.h>

#include "base/err.h"

/* Takes the reference; NULL: it could not be made. */
int print_line(json_t *line, struct err *e);
/* A new reference; null for what is no finite number. */
json_t *print_number(double value);

#endif
