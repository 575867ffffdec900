/*
 * Shared memory and the copies to it that go on beside the kernel.
 *
 * Such a copy is only noted when it is asked for, and its target poisoned; the bytes arrive
 * when the thread waits for them, the latest moment that a device may choose. Who reads before
 * the wait, or without a barrier behind it, finds NaN, or is stopped by the address sanitizer.
 */
#include <stdlib.h>
#include <string.h>

#include "block_int.h"

#include "asan_int.h"

enum { SHARED_ARRAYS_MAX = 64, COPY_BYTES = 16 };

static struct {
    char *dynamic;
    size_t dynamic_bytes;
    struct {
        const char *begin;
        size_t bytes;
    } arrays[SHARED_ARRAYS_MAX]; /* static ones that the block has come to */
    unsigned n_arrays;
    size_t static_bytes; /* of those arrays */
} shared;

void shared_open(size_t dynamic_bytes)
{
    shared.dynamic_bytes = dynamic_bytes;
    shared.dynamic = dynamic_bytes ? (char *)guarded_alloc(dynamic_bytes) : nullptr;
    if (dynamic_bytes && !shared.dynamic)
        emu_fail({}, "no memory for %zu bytes of shared memory", dynamic_bytes);
}

void shared_begin_block()
{
    shared.n_arrays = 0;
    shared.static_bytes = 0;
    if (shared.dynamic)
        memset(shared.dynamic, EMU_POISON, shared.dynamic_bytes);
}

void shared_close()
{
    if (!shared.dynamic)
        return;
    guarded_check(shared.dynamic, shared.dynamic_bytes, "the launch's dynamic shared memory");
    guarded_free(shared.dynamic, shared.dynamic_bytes);
    shared.dynamic = nullptr;
}

void emu_shared_begin(uint64_t *serial, void *array, size_t bytes)
{
    *serial = emu_block_serial;
    memset(array, EMU_POISON, bytes);
    if (shared.n_arrays == SHARED_ARRAYS_MAX)
        emu_fail({}, "more than %d shared arrays", SHARED_ARRAYS_MAX);
    shared.arrays[shared.n_arrays++] = {(const char *)array, bytes};
    shared.static_bytes += bytes;
    if (shared.static_bytes > STATIC_BYTES_MAX)
        emu_fail({}, "has %zu bytes of shared arrays; %d is the most", shared.static_bytes,
                 STATIC_BYTES_MAX);
    if (shared.static_bytes + shared.dynamic_bytes > SHARED_BYTES_MAX)
        emu_fail({},
                 "has %zu bytes of shared arrays beside the %zu it was launched with; a "
                 "block can have %d",
                 shared.static_bytes, shared.dynamic_bytes, SHARED_BYTES_MAX);
}

void *emu_dynamic_shared()
{
    if (!shared.dynamic)
        emu_fail({}, "asks for dynamic shared memory and was launched with none");
    return shared.dynamic;
}

static bool is_within(const char *p, size_t bytes, const char *begin, size_t size)
{
    return p >= begin && bytes <= size && p - begin <= (ptrdiff_t)(size - bytes);
}

bool is_shared_memory(const void *p, size_t bytes)
{
    if (shared.dynamic &&
        is_within((const char *)p, bytes, shared.dynamic, shared.dynamic_bytes))
        return true;
    for (unsigned i = 0; i < shared.n_arrays; i++)
        if (is_within((const char *)p, bytes, shared.arrays[i].begin, shared.arrays[i].bytes))
            return true;
    return false;
}

void shared_check_read(const void *p, size_t bytes, emu_place place, const void *pc)
{
    race_note(p, bytes, ACCESS_READ, pc);
    if (!is_shared_memory(p, bytes))
        emu_fail(place, "reads a matrix's row at %p, which is not shared memory of the block",
                 p);
    if (IS_FORBIDDEN(p, bytes))
        emu_fail(place, "reads a matrix's row at %p while a copy to it is under way", p);
}

/* ------------------------------------------------------------------ copies */

void emu_copy_async(void *to, const void *from, emu_place place)
{
    thread *t = thread_now();
    if ((uintptr_t)to % COPY_BYTES || (uintptr_t)from % COPY_BYTES)
        emu_fail(place, "copy_async_16() from %p to %p, which are not both 16-byte aligned",
                 from, to);
    if (!is_shared_memory(to, COPY_BYTES))
        emu_fail(place, "copy_async_16() to %p, which is not shared memory of the block", to);
    if (t->n_copies == t->copies_capacity) {
        t->copies_capacity = t->copies_capacity ? 2 * t->copies_capacity : 16;
        t->copies = (async_copy *)realloc(t->copies, t->copies_capacity * sizeof(t->copies[0]));
        if (!t->copies)
            emu_fail(place, "no memory for copies under way");
    }
    const void *pc = __builtin_return_address(0);
    race_note(from, COPY_BYTES, ACCESS_READ, pc);
    race_note(to, COPY_BYTES, ACCESS_WRITE, pc);
    char now[COPY_BYTES]; /* a source out of bounds is found here, where it was asked for */
    memcpy(now, from, COPY_BYTES);
    memset(to, EMU_POISON, COPY_BYTES);
    FORBID(to, COPY_BYTES);
    t->copies[t->n_copies++] = {to, from, t->n_commits};
}

void emu_copy_async_commit()
{
    thread_now()->n_commits++;
}

void emu_copy_async_wait(unsigned n_under_way)
{
    thread *t = thread_now();
    size_t n_kept = 0;
    for (size_t i = 0; i < t->n_copies; i++) {
        const async_copy *copy = &t->copies[i];
        /* Commit number c has come when c + 1 + n_under_way commits were made. */
        if (copy->commit + 1 + n_under_way <= t->n_commits) {
            ALLOW(copy->to, COPY_BYTES);
            race_note(copy->to, COPY_BYTES, ACCESS_WRITE, __builtin_return_address(0));
            memcpy(copy->to, copy->from, COPY_BYTES);
        } else {
            t->copies[n_kept++] = *copy;
        }
    }
    t->n_copies = n_kept;
}

void async_copies_drop(thread *t)
{
    for (size_t i = 0; i < t->n_copies; i++)
        ALLOW(t->copies[i].to, COPY_BYTES);
    t->n_copies = 0;
    t->n_commits = 0;
}
