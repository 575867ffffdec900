#include "base/fault.h"

#ifdef SHEAF_FAULTS
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Atomic long passed; /* the point that SHEAF_CRASH_AT names */

void fault_crash_point(const char *name)
{
    const char *wanted = getenv("SHEAF_CRASH_AT");
    const size_t n = strlen(name);
    if (!wanted || strncmp(wanted, name, n) != 0 || wanted[n] != ':')
        return;
    if (atomic_fetch_add(&passed, 1) + 1 == strtol(wanted + n + 1, NULL, 10))
        kill(getpid(), SIGKILL);
}

bool fault_guard_is_on(const char *name)
{
    const char *off = getenv("SHEAF_GUARDS_OFF");
    const size_t n = strlen(name);
    for (const char *at = off; at && (at = strstr(at, name)); at += n)
        if ((at == off || at[-1] == ',') && (at[n] == ',' || at[n] == '\0'))
            return false;
    return true;
}
#else
typedef int fault_nothing_here; /* a file of C declares something */
#endif
