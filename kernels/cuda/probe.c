/*
 * Only the driver is asked, through its public interface; it is loaded here, since a build with
 * CUDA must start on a machine without one.
 */
#include "probe.cuh"

#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum {
    CAPABILITY_MIN = 80, /* bfloat16 products, copies that do not wait */
    /* A driver runs what any toolkit of its major version built, whatever the minor one. */
    DRIVER_VERSION_MIN = CUDA_VERSION / 1000 * 1000
};

#define DRIVER_FUNCTIONS(X)                                                                    \
    X(cuInit)                                                                                  \
    X(cuDriverGetVersion)                                                                      \
    X(cuGetErrorName)                                                                          \
    X(cuGetErrorString)                                                                        \
    X(cuDeviceGetCount)                                                                        \
    X(cuDeviceGet)                                                                             \
    X(cuDeviceGetName)                                                                         \
    X(cuDeviceGetAttribute)                                                                    \
    X(cuDeviceTotalMem)                                                                        \
    X(cuDevicePrimaryCtxRetain)                                                                \
    X(cuCtxPushCurrent)                                                                        \
    X(cuCtxPopCurrent)                                                                         \
    X(cuMemGetInfo)

/* The header gives some of them the name of a later version (cuMemGetInfo_v2), and so do the
 * fields and texts here. */
struct driver {
#define FIELD(function) __typeof__(function) *function;
    DRIVER_FUNCTIONS(FIELD)
#undef FIELD
};

#define TEXT_OF_EXPANDED(name) #name
#define TEXT_OF(name)          TEXT_OF_EXPANDED(name)

static const struct {
    const char *name;
    size_t offset;
} driver_functions[] = {
#define ENTRY(function) {TEXT_OF(function), offsetof(struct driver, function)},
    DRIVER_FUNCTIONS(ENTRY)
#undef ENTRY
};

/* Of the codes that a driver's start or a device's first use give. */
static const struct {
    CUresult code;
    const char *text;
} reasons[] = {
    {CUDA_ERROR_NO_DEVICE,
     "the NVIDIA driver sees no device: is one shown by nvidia-smi -L, and does "
     "CUDA_VISIBLE_DEVICES name it? A container must be given its GPUs"},
    {CUDA_ERROR_DEVICE_UNAVAILABLE,
     "another process has it for itself (nvidia-smi shows which, and the compute mode), or its "
     "mode forbids computing"},
    {CUDA_ERROR_STUB_LIBRARY,
     "libcuda.so.1 is the toolkit's stub and no driver: take its folder out of "
     "LD_LIBRARY_PATH"},
    {CUDA_ERROR_SYSTEM_NOT_READY,
     "the machine's GPUs are not ready: is the service nvidia-fabricmanager running?"},
    {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
     "the driver's library and its kernel module are of different versions: restart the "
     "machine, or in a container take the host's"},
    {CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
     "the compatibility library of CUDA does not run on this device: take the driver's own "
     "libcuda.so.1"},
};

/* What a failed call means; behind the colon of `what`. */
static int refuse(const struct driver *d, CUresult code, const char *what, struct err *e)
{
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++)
        if (reasons[i].code == code)
            return ERR_SET(e, ERR_UNSUPPORTED, "%s: %s", what, reasons[i].text);
    const char *name = NULL, *text = NULL;
    d->cuGetErrorName(code, &name);
    d->cuGetErrorString(code, &text);
    return ERR_SET(e, ERR_UNSUPPORTED,
                   "%s: the NVIDIA driver says %s (%d), %s; the kernel's log (dmesg) may say "
                   "more",
                   what, name ? name : "error", (int)code, text ? text : "and no more");
}

static int refuse_old(int version, struct err *e)
{
    return ERR_SET(
        e, ERR_UNSUPPORTED,
        "the NVIDIA driver is too old: it runs CUDA %d.%d, and this build needs %d.%d "
        "or newer; update the driver, or take --device cpu",
        version / 1000, version % 1000 / 10, DRIVER_VERSION_MIN / 1000,
        DRIVER_VERSION_MIN % 1000 / 10);
}

static int driver_load(struct driver *d, struct err *e)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = dlerror();
        if (why && !strstr(why, "cannot open shared object file"))
            return ERR_SET(e, ERR_UNSUPPORTED, "the NVIDIA driver cannot be loaded: %s", why);
        return ERR_SET(
            e, ERR_UNSUPPORTED,
            "there is no NVIDIA driver here (no libcuda.so.1): install one with CUDA "
            "%d.%d or newer, give a container its GPUs, or take --device cpu",
            DRIVER_VERSION_MIN / 1000, DRIVER_VERSION_MIN % 1000 / 10);
    }
    for (size_t i = 0; i < sizeof driver_functions / sizeof driver_functions[0]; i++) {
        void *function = dlsym(library, driver_functions[i].name);
        if (!function)
            return ERR_SET(
                e, ERR_UNSUPPORTED,
                "the NVIDIA driver is too old, or libcuda.so.1 is not its: it has no "
                "%s",
                driver_functions[i].name);
        memcpy((char *)d + driver_functions[i].offset, &function, sizeof function);
    }
    return 0;
}

static int driver_start(const struct driver *d, struct err *e)
{
    int version = 0;
    CUresult code = d->cuDriverGetVersion(&version);
    if (code == CUDA_SUCCESS && version < DRIVER_VERSION_MIN)
        return refuse_old(version, e);
    if (code == CUDA_SUCCESS)
        code = d->cuInit(0);
    return code == CUDA_SUCCESS ? 0 : refuse(d, code, "no CUDA device can be used", e);
}

static int find_device(const struct driver *d, size_t ordinal, CUdevice *device, struct err *e)
{
    int n_devices = 0;
    CUresult code = d->cuDeviceGetCount(&n_devices);
    if (code == CUDA_SUCCESS && n_devices == 0)
        code = CUDA_ERROR_NO_DEVICE;
    if (code == CUDA_SUCCESS && ordinal >= (size_t)n_devices)
        return ERR_SET(e, ERR_UNSUPPORTED,
                       "there is no CUDA device %zu: devices are counted from 0, and this "
                       "machine shows %d",
                       ordinal, n_devices);
    if (code == CUDA_SUCCESS)
        code = d->cuDeviceGet(device, (int)ordinal);
    return code == CUDA_SUCCESS ? 0 : refuse(d, code, "no CUDA device can be used", e);
}

/* Name, capability and memory, which can be had without using the device. */
static int describe(const struct driver *d, CUdevice device, const char *what,
                    struct device_info *info, struct err *e)
{
    int major = 0, minor = 0;
    CUresult code = d->cuDeviceGetName(info->name, sizeof info->name, device);
    if (code == CUDA_SUCCESS)
        code = d->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                                       device);
    if (code == CUDA_SUCCESS)
        code = d->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                                       device);
    if (code == CUDA_SUCCESS)
        code = d->cuDeviceTotalMem(&info->memory_bytes, device);
    if (code != CUDA_SUCCESS)
        return refuse(d, code, what, e);
    info->name[sizeof info->name - 1] = '\0';
    info->compute_capability = major * 10 + minor;
    return 0;
}

static int check_capability(const struct device_info *info, const char *what, struct err *e)
{
    const int has = info->compute_capability;
    if (has >= CAPABILITY_MIN)
        return 0;
    return ERR_SET(e, ERR_UNSUPPORTED,
                   "%s (%s) is too old: it has compute capability %d.%d, and Sheaf needs %d.%d "
                   "or newer; take another device, or --device cpu",
                   what, info->name, has / 10, has % 10, CAPABILITY_MIN / 10,
                   CAPABILITY_MIN % 10);
}

/* What only a first use tells: whether it is to be had, and how much of its memory is free. */
static int use(const struct driver *d, CUdevice device, const char *what,
               struct device_info *info, struct err *e)
{
    CUcontext context = NULL, popped = NULL;
    size_t total_bytes = 0;
    CUresult code = d->cuDevicePrimaryCtxRetain(&context, device);
    if (code == CUDA_ERROR_OUT_OF_MEMORY)
        return ERR_SET(e, ERR_NOMEM,
                       "%s (%s): not even its context finds room in its memory of %zu MiB; see "
                       "with nvidia-smi who holds it",
                       what, info->name, info->memory_bytes >> 20);
    if (code == CUDA_SUCCESS)
        code = d->cuCtxPushCurrent(context);
    if (code == CUDA_SUCCESS) {
        code = d->cuMemGetInfo(&info->free_bytes, &total_bytes);
        d->cuCtxPopCurrent(&popped);
    }
    return code == CUDA_SUCCESS ? 0 : refuse(d, code, what, e);
}

int probe_device(size_t ordinal, struct device_info *info, struct err *e)
{
    struct driver d;
    CUdevice device = 0;
    char what[48];
    snprintf(what, sizeof what, "CUDA device %zu", ordinal);
    *info = (struct device_info){.arithmetic = "cuda-bf16"};
    TRY(driver_load(&d, e));
    TRY(driver_start(&d, e));
    TRY(find_device(&d, ordinal, &device, e));
    TRY(describe(&d, device, what, info, e));
    TRY(check_capability(info, what, e));
    return use(&d, device, what, info, e);
}
