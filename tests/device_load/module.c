/* A backend that does nothing: interface ABI, under the name SYMBOL; NEEDED: with a library. */
#include "device.h"

#ifndef SYMBOL
#define SYMBOL sheaf_device_backend
#endif

const struct device_backend *SYMBOL(void);
int absent(void);

const struct device_backend *SYMBOL(void)
{
    static struct device_backend backend = {.abi = ABI};
#ifdef NEEDED
    backend.abi += absent();
#endif
    return &backend;
}
