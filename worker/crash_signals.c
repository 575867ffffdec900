#include "crash_signals.h"

#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

enum { STACKS = 8, STACK_BYTES = 65536 };

static const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
enum { N_NUMBERS = sizeof numbers / sizeof numbers[0] };

static _Atomic(struct running *) marked;
static struct sigaction before[N_NUMBERS]; /* a sanitizer's, perhaps */
static _Thread_local enum running_hand own_hand = RUNNING_ENGINE;
static _Alignas(64) char stacks[STACKS][STACK_BYTES];
static _Atomic size_t n_stacks;

static void give_back(int number)
{
    for (size_t i = 0; i < N_NUMBERS; i++) {
        if (numbers[i] != number)
            continue;
        if (!(before[i].sa_flags & SA_SIGINFO) && before[i].sa_handler == SIG_IGN)
            before[i].sa_handler = SIG_DFL;
        sigaction(number, &before[i], NULL);
    }
}

/* Blocked while it is handled: what is raised here comes when this function has ended. */
static void mark(int number, siginfo_t *info, void *context)
{
    (void)context;
    const bool is_sent = info->si_code <= 0 && info->si_pid != getpid();
    struct running *r = atomic_load(&marked);
    if (r && !is_sent)
        running_mark_crashed(r, own_hand);
    give_back(number);
    raise(number);
}

void crash_signals_install(struct running *r)
{
    struct sigaction action = {.sa_sigaction = mark, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&action.sa_mask);
    const bool is_first = atomic_exchange(&marked, r) == NULL;
    for (size_t i = 0; is_first && i < N_NUMBERS; i++)
        sigaction(numbers[i], &action, &before[i]);
    crash_signals_name_thread(RUNNING_ENGINE);
}

void crash_signals_remove(void)
{
    if (atomic_exchange(&marked, NULL) == NULL)
        return;
    for (size_t i = 0; i < N_NUMBERS; i++)
        sigaction(numbers[i], &before[i], NULL);
}

void crash_signals_name_thread(enum running_hand hand)
{
    own_hand = hand;
    stack_t now;
    if (sigaltstack(NULL, &now) != 0 || !(now.ss_flags & SS_DISABLE))
        return; /* a sanitizer has given it one */
    const size_t n = atomic_fetch_add(&n_stacks, 1);
    if (n >= STACKS)
        return;
    const stack_t own = {.ss_sp = stacks[n], .ss_size = STACK_BYTES};
    sigaltstack(&own, NULL);
}
