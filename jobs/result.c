#include "result.h"

#include <stdlib.h>

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
