#include "base/fault.h"

#ifdef SHEAF_FAULTS
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* variable: "NAME:COUNT"; passed: how often NAME was. */
static void signal_at(const char *name, const char *variable, _Atomic long *passed, int number)
{
    const char *wanted = getenv(variable);
    const size_t n = strlen(name);
    if (!wanted || strncmp(wanted, name, n) != 0 || wanted[n] != ':')
        return;
    if (atomic_fetch_add(passed, 1) + 1 == strtol(wanted + n + 1, NULL, 10))
        kill(getpid(), number);
}

void fault_crash_point(const char *name)
{
    static _Atomic long passed_crash, passed_stop;
    signal_at(name, "SHEAF_CRASH_AT", &passed_crash, SIGKILL);
    signal_at(name, "SHEAF_STOP_AT", &passed_stop, SIGSTOP);
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
