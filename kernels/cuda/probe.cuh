/*
 * Whether a CUDA device can be used, asked of the driver before the first call of the runtime,
 * whose errors do not tell a missing driver from one that is too old.
 */
#ifndef SHEAF_CUDA_PROBE_CUH
#define SHEAF_CUDA_PROBE_CUH

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "device.h"

/*
 * Fills info in for a device that can be used. Otherwise ERR_UNSUPPORTED (its memory is taken:
 * ERR_NOMEM) with a sentence: no driver, too old a driver, no device, no such ordinal, a
 * compute capability below 8.0, a device that another process has for itself or that is not
 * ready.
 *
 * The device's primary context is made and stays until the process ends; it is not made the
 * thread's current one: cudaSetDevice(ordinal) is the caller's.
 */
int probe_device(size_t ordinal, struct device_info *info, struct err *e);

#ifdef __cplusplus
}
#endif

#endif
