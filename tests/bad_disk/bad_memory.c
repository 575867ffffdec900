/*
 * Preloaded before a program: its n-th allocation fails, that of a library included (libc's
 * strdup and asprintf come here, too). Counted from just before main on. libcrypto's are left
 * out: OpenSSL 3.0 reads through NULL when a lock of its own first use cannot be had.
 *
 */
#include <errno.h>
#include <link.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "fault_plan.h"

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static struct fault_plan plan;
static _Atomic bool is_armed;
static uintptr_t spared_from, spared_to;

static int find_spared(struct dl_phdr_info *object, size_t size, void *ctx)
{
    (void)size;
    (void)ctx;
    if (!strstr(object->dlpi_name, "libcrypto"))
        return 0;
    spared_from = object->dlpi_addr;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const uintptr_t end =
            object->dlpi_addr + object->dlpi_phdr[i].p_vaddr + object->dlpi_phdr[i].p_memsz;
        if (object->dlpi_phdr[i].p_type == PT_LOAD && end > spared_to)
            spared_to = end;
    }
    return 1;
}

__attribute__((constructor)) static void begin(void)
{
    fault_plan_read(&plan, "BAD_MEMORY");
    dl_iterate_phdr(find_spared, NULL);
    atomic_store(&is_armed, true);
}

/* What frees everything at the end may ask for memory; no exit code depends on it. */
__attribute__((destructor)) static void end(void)
{
    atomic_store(&is_armed, false);
    fault_plan_report(&plan);
}

static bool fails_for(const void *caller, const char *call)
{
    if ((uintptr_t)caller >= spared_from && (uintptr_t)caller < spared_to)
        return false;
    if (!atomic_load(&is_armed) || !fault_plan_strikes(&plan, call, ""))
        return false;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t size)
{
    return fails_for(__builtin_return_address(0), "malloc") ? NULL : __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
    return fails_for(__builtin_return_address(0), "calloc") ? NULL : __libc_calloc(n, size);
}

void *realloc(void *memory, size_t size)
{
    return fails_for(__builtin_return_address(0), "realloc") ? NULL
                                                             : __libc_realloc(memory, size);
}

void *memalign(size_t alignment, size_t size)
{
    return fails_for(__builtin_return_address(0), "memalign")
               ? NULL
               : __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    return fails_for(__builtin_return_address(0), "aligned_alloc")
               ? NULL
               : __libc_memalign(alignment, size);
}

int posix_memalign(void **out, size_t alignment, size_t size)
{
    if (fails_for(__builtin_return_address(0), "posix_memalign"))
        return ENOMEM;
    *out = __libc_memalign(alignment, size);
    return *out ? 0 : ENOMEM;
}
