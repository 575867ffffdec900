#include "result.h"

#include <stdlib.h>
#include <string.h>

#include "utf8.h"

void result_free(struct result *r)
{
    if (!r)
        return;
    job_free(r->job);
    free(r->text);
    free(r->drafts);
    free(r);
}

const char *result_status_name(enum result_status status)
{
    switch (status) {
    case RESULT_SUCCEEDED: return "succeeded";
    case RESULT_FAILED: return "failed";
    case RESULT_EXPIRED: return "expired";
    case RESULT_CANCELLED: return "cancelled";
    }
    return "failed";
}

bool result_status_find(const char *name, enum result_status *out)
{
    for (int i = RESULT_SUCCEEDED; name && i <= RESULT_CANCELLED; i++)
        if (strcmp(name, result_status_name((enum result_status)i)) == 0) {
            *out = (enum result_status)i;
            return true;
        }
    return false;
}

int64_t result_finished_us(const struct result *r)
{
    if (r->job->admitted_wall_us > 0 && r->metrics.e2e_us > 0)
        return r->job->admitted_wall_us + r->metrics.e2e_us;
    return r->created_s * 1000000;
}

char *result_clean_utf8(const char *bytes, size_t length, size_t *out_length)
{
    struct buf text = {0};
    buf_append(&text, "", 0);
    size_t clean = 0; /* start of the valid run not yet copied */
    for (size_t at = 0; at < length;) {
        bool valid = false;
        const size_t n = utf8_measure_char(bytes + at, length - at, &valid);
        if (!valid) {
            buf_append(&text, bytes + clean, at - clean);
            buf_append_str(&text, "\xef\xbf\xbd");
            clean = at + n;
        }
        at += n;
    }
    if (length > clean)
        buf_append(&text, bytes + clean, length - clean);
    *out_length = text.length;
    return buf_take(&text);
}
