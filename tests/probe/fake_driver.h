/* What the fake libcuda.so.1 answers; the test sets it before it probes. */
#ifndef SHEAF_TEST_FAKE_DRIVER_H
#define SHEAF_TEST_FAKE_DRIVER_H

#include <stddef.h>

struct fake_driver {
    int version;     /* 13000: CUDA 13.0 */
    int init_code;   /* of cuInit */
    int use_code;    /* of making a context */
    int memory_code; /* of asking for free memory */
    int n_devices;   /* all alike */
    int major, minor;
    size_t memory_bytes, free_bytes;
    const char *name;
    /* What was called. */
    int n_contexts;   /* retained */
    int n_current;    /* pushed and not popped */
    int device_asked; /* the last ordinal */
};

#define FAKE_DRIVER_SYMBOL "fake_driver"

#endif
