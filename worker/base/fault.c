#include "base/fault.h"

#ifdef SHEAF_FAULTS
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* variable: "NAME:COUNT,COUNT..."; passed: how often NAME was. */
static void signal_at(const char *name, const char *variable, _Atomic long *passed, int number)
{
    const char *wanted = getenv(variable);
    const size_t n = strlen(name);
    if (!wanted || strncmp(wanted, name, n) != 0 || wanted[n] != ':')
        return;
    const long count = atomic_fetch_add(passed, 1) + 1;
    for (const char *at = wanted + n; at; at = strchr(at + 1, ','))
        if (strtol(at + 1, NULL, 10) == count)
            raise(number); /* to this thread: of a process, another one might take it first */
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

/* "name:needle:kind" */
static bool wants(const char *wanted, const char *name, const char *text, size_t length,
                  const char **kind)
{
    const size_t n = strlen(name);
    if (!wanted || strncmp(wanted, name, n) != 0 || wanted[n] != ':')
        return false;
    const char *needle = wanted + n + 1;
    const char *end = strchr(needle, ':');
    *kind = end ? end + 1 : "";
    return end && text && memmem(text, length, needle, (size_t)(end - needle));
}

bool fault_at(const char *name, const char *text, size_t length)
{
    static _Atomic long failed;
    const char *kind;
    if (!wants(getenv("SHEAF_FAULT_AT"), name, text, length, &kind))
        return false;
    static const volatile uintptr_t nowhere = 8;
    if (strcmp(kind, "segv") == 0)
        *(volatile int *)nowhere = 0;
    if (strcmp(kind, "abort") == 0)
        raise(SIGABRT);
    if (strcmp(kind, "kill") == 0)
        kill(getpid(), SIGKILL);
    while (strcmp(kind, "hang") == 0)
        pause();
    if (strcmp(kind, "slow") == 0)
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    const long times = strncmp(kind, "fail", 4) == 0 ? strtol(kind + 4, NULL, 10) : -1;
    return times == 0 || (times > 0 && atomic_fetch_add(&failed, 1) < times);
}
#else
typedef int fault_nothing_here; /* a file of C declares something */
#endif
