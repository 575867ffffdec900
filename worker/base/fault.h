/*
 * Places where the tests in tests/fault break this program: let it die there, or leave a guard
 * out. They exist only where SHEAF_FAULTS is defined, which no release does; elsewhere they are
 * nothing.
 *
 *     CRASH_POINT("stored");          SHEAF_CRASH_AT=stored:3 kills the process here, the third
 *                                     time (kill -9); SHEAF_STOP_AT=stored:3,5 stops it
 *                                     (SIGSTOP). Of other commands than work: COMMAND_point
 *     if (GUARD("ownership") && ...)  SHEAF_GUARDS_OFF=ownership,... makes it false
 *     if (FAULT_AT("step", text, n))  SHEAF_FAULT_AT=step:mill:segv crashes here when the text
 *                                     has "mill" in it; the other kinds are abort, kill, hang,
 *                                     slow, and fail, fail2, ...: true always, or twice
 */
#ifndef SHEAF_FAULT_H
#define SHEAF_FAULT_H

#include <stdbool.h>
#include <stddef.h>

#ifdef SHEAF_FAULTS
/* Thread: any. */
void fault_crash_point(const char *name);
bool fault_guard_is_on(const char *name);
bool fault_at(const char *name, const char *text, size_t length);
#define CRASH_POINT(name)            fault_crash_point(name)
#define GUARD(name)                  fault_guard_is_on(name)
#define FAULT_AT(name, text, length) fault_at(name, text, length)
#else
#define CRASH_POINT(name)            ((void)0)
#define GUARD(name)                  true
#define FAULT_AT(name, text, length) ((void)(text), (void)(length), false)
#endif

#endif
