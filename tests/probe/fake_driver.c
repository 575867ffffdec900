/*
 * A libcuda.so.1 with the functions that the probe calls. TOO_OLD leaves out some, as a driver
 * from before they came does.
 */
#include "fake_driver.h"

#include <cuda.h>
#include <stdio.h>

extern struct fake_driver fake_driver;

struct fake_driver fake_driver;

CUresult cuDriverGetVersion(int *version)
{
    *version = fake_driver.version;
    return CUDA_SUCCESS;
}

CUresult cuInit(unsigned flags)
{
    return flags == 0 ? (CUresult)fake_driver.init_code : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorName(CUresult code, const char **name)
{
    *name = code == CUDA_ERROR_UNKNOWN ? "CUDA_ERROR_UNKNOWN" : NULL;
    return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult code, const char **text)
{
    *text = code == CUDA_ERROR_UNKNOWN ? "unknown error" : NULL;
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetCount(int *count)
{
    *count = fake_driver.n_devices;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    fake_driver.device_asked = ordinal;
    if (ordinal < 0 || ordinal >= fake_driver.n_devices)
        return CUDA_ERROR_INVALID_DEVICE;
    *device = 100 + ordinal;
    return CUDA_SUCCESS;
}

static CUresult check_device(CUdevice device)
{
    return device >= 100 && device < 100 + fake_driver.n_devices ? CUDA_SUCCESS
                                                                 : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    snprintf(name, (size_t)length, "%s", fake_driver.name);
    return check_device(device);
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = fake_driver.major; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = fake_driver.minor; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return check_device(device);
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
    *bytes = fake_driver.memory_bytes;
    return check_device(device);
}

#ifndef TOO_OLD
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    if (fake_driver.use_code != 0)
        return (CUresult)fake_driver.use_code;
    fake_driver.n_contexts++;
    *context = (CUcontext)&fake_driver;
    return check_device(device);
}
#endif

CUresult cuCtxPushCurrent(CUcontext context)
{
    if (context != (CUcontext)&fake_driver)
        return CUDA_ERROR_INVALID_CONTEXT;
    fake_driver.n_current++;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
    fake_driver.n_current--;
    *context = (CUcontext)&fake_driver;
    return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    if (fake_driver.n_current != 1)
        return CUDA_ERROR_INVALID_CONTEXT;
    *free_bytes = fake_driver.free_bytes;
    *total_bytes = fake_driver.memory_bytes;
    return (CUresult)fake_driver.memory_code;
}
