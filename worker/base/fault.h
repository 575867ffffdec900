/*
 * Places where the tests in tests/fault break this program: let it die there, or leave a guard
 * out. They exist only where SHEAF_FAULTS is defined, which no release does; elsewhere they are
 * nothing.
 *
 *     CRASH_POINT("stored");          SHEAF_CRASH_AT=stored:3 kills the process here, the third
 *                                     time (kill -9); SHEAF_STOP_AT=stored:3 stops it (SIGSTOP)
 *     if (GUARD("ownership") && ...)  SHEAF_GUARDS_OFF=ownership,... makes it false
 */
#ifndef SHEAF_FAULT_H
#define SHEAF_FAULT_H

#include <stdbool.h>

#ifdef SHEAF_FAULTS
/* Thread: any. */
void fault_crash_point(const char *name);
bool fault_guard_is_on(const char *name);
#define CRASH_POINT(name) fault_crash_point(name)
#define GUARD(name)       fault_guard_is_on(name)
#else
#define CRASH_POINT(name) ((void)0)
#define GUARD(name)       true
#endif

#endif
