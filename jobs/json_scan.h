/*
 * The pass over a job's bytes before Jansson sees them. It enforces what Jansson does not or
 * does too generously (nesting, length of numbers), names encoding faults with their byte
 * offset, and picks up the custom_id so that a line that breaks later still has its name.
 * It accepts many texts that are not JSON; those are Jansson's to refuse.
 */
#ifndef SHEAF_JSON_SCAN_H
#define SHEAF_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>

struct json_scan {
    const char *code; /* error code of the first fault; NULL: none */
    const char *text; /* static sentence about it */
    size_t offset;    /* byte where it begins, counted from 0 */
    /* The value of the only top-level "custom_id" that is a string of 1..JOB_ID_BYTES_MAX bytes
     * without escapes and with no fault in it. */
    bool has_id;
    size_t id_offset, id_length;
};

void json_scan_text(const char *bytes, size_t length, struct json_scan *out);
/* The same for json_load_answer: \u0000 is no fault. */
void json_scan_answer(const char *bytes, size_t length, struct json_scan *out);

#endif
