/*
 * Preloaded before a program: its n-th allocation fails, that of a library included (libc's
 * strdup and asprintf come here, too). Counted from just before main on.
 *
 */
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>

#include "fault_plan.h"

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static struct fault_plan plan;
static _Atomic bool is_armed;

__attribute__((constructor)) static void begin(void)
{
    fault_plan_read(&plan, "BAD_MEMORY");
    atomic_store(&is_armed, true);
}

/* What frees everything at the end may ask for memory; no exit code depends on it. */
__attribute__((destructor)) static void end(void)
{
    atomic_store(&is_armed, false);
    fault_plan_report(&plan);
}

static bool fails(const char *call)
{
    if (!atomic_load(&is_armed) || !fault_plan_strikes(&plan, call, ""))
        return false;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t size)
{
    return fails("malloc") ? NULL : __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
    return fails("calloc") ? NULL : __libc_calloc(n, size);
}

void *realloc(void *memory, size_t size)
{
    return fails("realloc") ? NULL : __libc_realloc(memory, size);
}

void *memalign(size_t alignment, size_t size)
{
    return fails("memalign") ? NULL : __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    return fails("aligned_alloc") ? NULL : __libc_memalign(alignment, size);
}

int posix_memalign(void **out, size_t alignment, size_t size)
{
    if (fails("posix_memalign"))
        return ENOMEM;
    *out = __libc_memalign(alignment, size);
    return *out ? 0 : ENOMEM;
}
