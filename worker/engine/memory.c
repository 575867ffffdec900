#include "engine/memory.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int memory_take(size_t bytes, const char *what, void **out, struct err *e)
{
    void *block = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (block == MAP_FAILED)
        return ERR_SET(e, ERR_NOMEM, "cannot take %zu MiB for %s: %s", bytes >> 20, what,
                       strerror(errno));
    madvise(block, bytes, MADV_HUGEPAGE); /* speed only */
    *out = block;
    return 0;
}

void memory_give_back(void *block, size_t bytes)
{
    if (block)
        munmap(block, bytes ? bytes : 1);
}

size_t memory_machine_bytes(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES);
    const long page_bytes = sysconf(_SC_PAGE_SIZE);
    return pages > 0 && page_bytes > 0 ? (size_t)pages * (size_t)page_bytes : 0;
}
