/*
 * The emulated device, that fails when a step has a certain token:
 *
 *     SHEAF_FAULT_AT="device: 52 :fail"
 *
 * Between the program's loader and its engine, by way of the linker (--wrap).
 */
#include <stdio.h>

#include "base/check.h"
#include "base/fault.h"
#include "device.h"

enum { TEXT_BYTES = 1 << 16 };

static const struct device_backend *real;

/* " 87 104 101 " */
static size_t write_tokens(const struct device_step *s, char text[TEXT_BYTES])
{
    size_t n = (size_t)snprintf(text, TEXT_BYTES, " ");
    for (size_t i = 0; i < s->n_rows; i++) {
        n += (size_t)snprintf(text + n, TEXT_BYTES - n, "%d ", (int)s->tokens[i]);
        ASSERT(n < TEXT_BYTES);
    }
    return n;
}

static int step(struct device *d, const struct device_step *s, struct err *e)
{
    static char text[TEXT_BYTES];
    const size_t n = write_tokens(s, text);
    if (FAULT_AT("device", text, n))
        return ERR_SET(e, ERR_IO, "it was made to fail");
    return real->step(d, s, e);
}

int __real_device_load(const char *name, const struct device_backend **out, struct err *e);
int __wrap_device_load(const char *name, const struct device_backend **out, struct err *e);

int __wrap_device_load(const char *name, const struct device_backend **out, struct err *e)
{
    static struct device_backend table;
    TRY(__real_device_load(name, &real, e));
    table = *real;
    table.step = step;
    *out = &table;
    return 0;
}
