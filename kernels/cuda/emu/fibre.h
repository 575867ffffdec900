/*
 * Fibres: stacks that run in turn on one thread of the system. A fibre gives up its turn by
 * name (fibre_switch) and goes on there when somebody switches back to it.
 *
 * On x86-64 a switch is a handful of instructions; elsewhere it is ucontext's, which asks the
 * system for its signal mask every time. The address sanitizer is told of every switch.
 *
 * Thread: one at a time, the same for all fibres that it made.
 */
#ifndef SHEAF_EMU_FIBRE_H
#define SHEAF_EMU_FIBRE_H

#include <stddef.h>

#if !defined(__x86_64__) || defined(SHEAF_EMU_UCONTEXT)
#include <ucontext.h>
#endif

struct fibre {
#if defined(__x86_64__) && !defined(SHEAF_EMU_UCONTEXT)
    void *stack_pointer;
#else
    ucontext_t context;
#endif
    const void *stack; /* lowest byte; NULL of the one that the system made, until it is left */
    size_t stack_bytes;
    void *fake_stack; /* the sanitizer's */
};

enum { FIBRE_STACK_BYTES = 256 << 10 };

/* A fibre that begins with entry() when it is first switched to; entry never returns. The
 * stack is taken from those that were given back, or made, and has a page below it that nobody
 * may touch. `number` spreads stacks over the sets of a cache. NULL: no memory. */
fibre *fibre_take(unsigned number, void (*entry)());
/* For the next fibre_take; the fibre may be the one that runs, if it switches away for good. */
void fibre_give_back(fibre *f);

/* The first thing that entry() does. */
void fibre_entered();
void fibre_switch(fibre *from, fibre *to);
/* The same when `from` was given back. */
void fibre_leave(fibre *from, fibre *to);

#endif
