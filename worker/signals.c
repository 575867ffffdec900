#include "signals.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>

static _Atomic int received;

/* The third is the system's own: whatever hangs, a person can end it. */
static void count(int number)
{
    if (atomic_fetch_add(&received, 1) == 0)
        return;
    const struct sigaction normal = {.sa_handler = SIG_DFL};
    sigaction(number, &normal, NULL);
}

void signals_install(void)
{
    struct sigaction action = {.sa_handler = count, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    /* A reader that went away, or a limit of file sizes, is a write error, not a death. */
    const struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGPIPE, &ignore, NULL);
    sigaction(SIGXFSZ, &ignore, NULL);
}

int signals_received(void)
{
    return atomic_load(&received);
}
