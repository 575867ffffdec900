#include "fibre.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "asan_int.h"

/* ------------------------------------------------------------------ the switch itself */

#if defined(__x86_64__) && !defined(SHEAF_EMU_UCONTEXT)

/* Saves what a callee has to keep, changes stacks, takes the same from there. The control words
 * of floating point are the same for all fibres. */
extern "C" void sheaf_emu_switch(void **save, void *load);
__asm__(".text\n"
        ".p2align 4\n"
        ".hidden sheaf_emu_switch\n"
        ".globl sheaf_emu_switch\n"
        ".type sheaf_emu_switch, @function\n"
        "sheaf_emu_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size sheaf_emu_switch, . - sheaf_emu_switch\n");

static void make_context(fibre *f, size_t usable_bytes, void (*entry)())
{
    /* As if entry had been called: 16 bytes less 8 at its first instruction. */
    uintptr_t *top = (uintptr_t *)((uintptr_t)f->stack + usable_bytes);
    *--top = 0;
    *--top = (uintptr_t)entry;
    for (int i = 0; i < 6; i++)
        *--top = 0;
    f->stack_pointer = top;
}

static inline void change_context(fibre *from, fibre *to)
{
    sheaf_emu_switch(&from->stack_pointer, to->stack_pointer);
}

#else

static void make_context(fibre *f, size_t usable_bytes, void (*entry)())
{
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = const_cast<void *>(f->stack);
    f->context.uc_stack.ss_size = usable_bytes;
    f->context.uc_link = nullptr;
    makecontext(&f->context, entry, 0);
}

static inline void change_context(fibre *from, fibre *to)
{
    swapcontext(&from->context, &to->context);
}

#endif

/* ------------------------------------------------------------------ stacks */

/* A free fibre's stack holds the pointer to the next one nowhere: the list is beside it. */
struct free_fibre {
    fibre f;
    free_fibre *next;
};
static free_fibre *free_list;

static fibre *new_fibre()
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    free_fibre *made = (free_fibre *)calloc(1, sizeof(*made));
    if (!made)
        return nullptr;
    char *memory = (char *)mmap(nullptr, page + FIBRE_STACK_BYTES, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) != 0) {
        free(made);
        return nullptr;
    }
    made->f.stack = memory + page;
    made->f.stack_bytes = FIBRE_STACK_BYTES;
    return &made->f;
}

fibre *fibre_take(unsigned number, void (*entry)())
{
    fibre *f = free_list ? &free_list->f : new_fibre();
    if (!f)
        return nullptr;
    if (free_list)
        free_list = free_list->next;
    /* Stacks lie at the same place of their pages: all would share the same few cache sets. */
    const size_t unused = (number % 32) * 128;
    /* Frames that were left without a return; deeper ones cleaned up after themselves. */
    const size_t dirty = 8192;
    ALLOW((const char *)f->stack + FIBRE_STACK_BYTES - dirty, dirty);
    f->fake_stack = nullptr;
    make_context(f, FIBRE_STACK_BYTES - unused, entry);
    return f;
}

void fibre_give_back(fibre *f)
{
    free_fibre *given = (free_fibre *)f;
    given->next = free_list;
    free_list = given;
}

/* ------------------------------------------------------------------ changing over */

#ifdef SHEAF_EMU_ASAN
static fibre *left_last; /* whose stack the sanitizer tells us when it does not know it */

static void arrived(void *fake_stack)
{
    const void *stack;
    size_t bytes;
    __sanitizer_finish_switch_fiber(fake_stack, &stack, &bytes);
    if (left_last && !left_last->stack) {
        left_last->stack = stack;
        left_last->stack_bytes = bytes;
    }
}

void fibre_entered()
{
    arrived(nullptr);
}

void fibre_switch(fibre *from, fibre *to)
{
    left_last = from;
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
    change_context(from, to);
    arrived(from->fake_stack);
}

void fibre_leave(fibre *from, fibre *to)
{
    left_last = nullptr;
    __sanitizer_start_switch_fiber(nullptr, to->stack, to->stack_bytes);
    change_context(from, to);
}

#else

void fibre_entered()
{
}

void fibre_switch(fibre *from, fibre *to)
{
    change_context(from, to);
}

void fibre_leave(fibre *from, fibre *to)
{
    change_context(from, to);
}

#endif
