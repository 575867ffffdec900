#include "fault_plan.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *setting(const char *prefix, const char *name)
{
    char key[64];
    snprintf(key, sizeof key, "%s_%s", prefix, name);
    const char *value = getenv(key);
    return value ? value : "";
}

void fault_plan_read(struct fault_plan *plan, const char *prefix)
{
    plan->nth = strtol(setting(prefix, "NTH"), NULL, 10);
    const char *count = setting(prefix, "COUNT");
    plan->count = *count ? strtol(count, NULL, 10) : 1;
    snprintf(plan->report, sizeof plan->report, "%s", setting(prefix, "REPORT"));
}

bool fault_plan_strikes(struct fault_plan *plan, const char *call, const char *object)
{
    const long nth = atomic_fetch_add(&plan->calls, 1) + 1;
    const bool strikes = plan->nth > 0 && nth >= plan->nth &&
                         (plan->count == 0 || nth < plan->nth + plan->count);
    if (strikes && atomic_fetch_add(&plan->failed, 1) == 0)
        snprintf(plan->first, sizeof plan->first, "%s %s", call, object);
    return strikes;
}

void fault_plan_report(struct fault_plan *plan)
{
    char text[2 * FAULT_TEXT_BYTES];
    if (!*plan->report)
        return;
    const int length =
        snprintf(text, sizeof text, "calls %ld\nfailed %ld\nfirst %s\n",
                 atomic_load(&plan->calls), atomic_load(&plan->failed), plan->first);
    const long fd = syscall(SYS_openat, AT_FDCWD, plan->report, O_WRONLY | O_CREAT, 0600);
    if (fd < 0)
        return;
    if (syscall(SYS_write, fd, text, length) != length)
        syscall(SYS_ftruncate, fd, 0);
    syscall(SYS_close, fd);
}
