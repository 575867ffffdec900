/*
 * SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT leave a mark in the running file before they end
 * the process as they would have: the crash was its own. One that another process sent leaves
 * none.
 */
#ifndef SHEAF_CRASH_SIGNALS_H
#define SHEAF_CRASH_SIGNALS_H

#include "running.h"

/* Borrows r until the call that removes. Thread: one. */
void crash_signals_install(struct running *r);
void crash_signals_remove(void);

/* What the calling thread works at (RUNNING_ENGINE is everybody's who does not say), and a
 * stack for the handler, so that also one that ran out of stack is marked. */
void crash_signals_name_thread(enum running_hand hand);

#endif
