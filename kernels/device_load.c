#include "device.h"

#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"

enum { PLACES = 2, MODULE_NAME_BYTES = 32 };

struct module {
    const char *name;         /* "cuda" */
    char label[16];           /* "CUDA", as a person calls it */
    char path[PATH_MAX + 64]; /* of the file that was found */
};

/* A name of ours, so that a path never leads out of the two folders. */
static bool is_module_name(const char *name)
{
    const size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyz-");
    return length > 0 && name[length] == '\0' && length < MODULE_NAME_BYTES;
}

/* The program's folder, without a slash at the end. */
static int find_program_folder(char out[PATH_MAX], struct err *e)
{
    const ssize_t length = readlink("/proc/self/exe", out, PATH_MAX - 1);
    if (length <= 0)
        return ERR_SET(e, ERR_IO,
                       "/proc/self/exe cannot be read, so the folder that modules are looked "
                       "for in is not known: mount /proc");
    out[length] = '\0';
    char *slash = strrchr(out, '/');
    if (slash)
        *slash = '\0';
    return 0;
}

/* SHEAF_CUDA_EMU of "cuda-emu". */
static const char *build_option(const char *name, char out[MODULE_NAME_BYTES + 8])
{
    const int length = snprintf(out, MODULE_NAME_BYTES + 8, "SHEAF_%s", name);
    for (int i = 0; i < length; i++)
        out[i] = out[i] == '-' ? '_' : (char)toupper((unsigned char)out[i]);
    return out;
}

static int find_module(struct module *m, struct err *e)
{
    static const char *const places[PLACES] = {"", "/../lib/sheaf"};
    char folder[PATH_MAX], option[MODULE_NAME_BYTES + 8];
    TRY(find_program_folder(folder, e));
    for (int i = 0; i < PLACES; i++) {
        const int length =
            snprintf(m->path, sizeof m->path, "%s%s/sheaf-%s.so", folder, places[i], m->name);
        if ((size_t)length < sizeof m->path && access(m->path, F_OK) == 0)
            return 0;
    }
    return ERR_SET(e, ERR_UNSUPPORTED,
                   "this build has no %s backend: sheaf-%s.so is neither in %.160s nor in its "
                   "../lib/sheaf; build with -D%s=ON, or take --device cpu",
                   m->label, m->name, folder, build_option(m->name, option));
}

/* The loader's "NAME: cannot open shared object file: No such file or directory" about a
 * library: its NAME; anything else: false. */
static bool is_missing_library(const struct module *m, const char *text, char *name,
                               size_t name_bytes)
{
    const char *end = strstr(text, ": cannot open shared object file");
    if (!end || !strstr(end, strerror(ENOENT)) || memchr(text, '/', (size_t)(end - text)))
        return false;
    if ((size_t)(end - text) >= name_bytes || strncmp(text, m->path, strlen(m->path)) == 0)
        return false;
    memcpy(name, text, (size_t)(end - text));
    name[end - text] = '\0';
    return true;
}

static int load(const struct module *m, void **handle, struct err *e)
{
    char library[64];
    *handle = dlopen(m->path, RTLD_NOW | RTLD_LOCAL);
    if (*handle)
        return 0;
    const char *why = dlerror();
    if (is_missing_library(m, why, library, sizeof library))
        return ERR_SET(e, ERR_UNSUPPORTED,
                       "the %s backend cannot be loaded: %.300s needs %s, which is not on this "
                       "machine; put it beside that file, or its folder into LD_LIBRARY_PATH",
                       m->label, m->path, library);
    return ERR_SET(e, ERR_UNSUPPORTED, "the %s backend cannot be loaded: %s", m->label, why);
}

static int find_backend(const struct module *m, void *handle, const struct device_backend **out,
                        struct err *e)
{
    /* What POSIX asks for: a function's address comes as an object's. */
    union {
        void *object;
        device_backend_fn *function;
    } symbol = {.object = dlsym(handle, DEVICE_SYMBOL)};
    if (!symbol.object)
        return ERR_SET(e, ERR_UNSUPPORTED,
                       "%.300s is no backend of Sheaf: it has no " DEVICE_SYMBOL
                       "; build it again",
                       m->path);
    const struct device_backend *backend = symbol.function();
    if (!backend || backend->abi != DEVICE_ABI)
        return ERR_SET(e, ERR_UNSUPPORTED,
                       "%.300s is of another version of Sheaf (interface %d, this program's is "
                       "%d): build or install both together",
                       m->path, backend ? backend->abi : 0, DEVICE_ABI);
    *out = backend;
    return 0;
}

/* A second load of the same file gives the same module, and none is ever unloaded. */
int device_load(const char *name, const struct device_backend **out, struct err *e)
{
    ASSERT(is_module_name(name));
    struct module m = {.name = name};
    snprintf(m.label, sizeof m.label, "%s", strcmp(name, "cuda") == 0 ? "CUDA" : name);
    void *handle = NULL;
    TRY(find_module(&m, e));
    TRY(load(&m, &handle, e));
    const int code = find_backend(&m, handle, out, e);
    if (code != 0)
        dlclose(handle);
    return code;
}
