#include "device_check/print.h"

#include <math.h>
#include <stdio.h>

int print_line(json_t *line, struct err *e)
{
    if (!line)
        return ERR_SET(e, ERR_NOMEM, "no memory for a result");
    const int rc = json_dumpf(line, stdout, JSON_COMPACT | JSON_REAL_PRECISION(12));
    json_decref(line);
    if (rc != 0 || putchar('\n') == EOF || fflush(stdout) != 0)
        return ERR_SET(e, ERR_IO, "a result cannot be written to standard output");
    return 0;
}

json_t *print_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}
