#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "asan_int.h"
#include "block_int.h"

emu_thread *emu_now;
dim3 emu_block_index, emu_block_size, emu_grid_size;
uint64_t emu_block_serial;
const race_hooks *race_of_launches;

enum {
    QUEUE_SLOTS = 2 * EMU_THREADS_MAX, /* a power of two */
    BLOCK_Z_MAX = 64,
    GRID_X_MAX = 0x7fffffff,
    GRID_YZ_MAX = 65535
};

static pthread_mutex_t launch_lock = PTHREAD_MUTEX_INITIALIZER;

static struct {
    const emu_launch *launch; /* NULL: none runs */
    fibre launcher;
    thread threads[EMU_THREADS_MAX];
    warp warps[EMU_THREADS_MAX / EMU_WARP];
    unsigned n_threads, n_live, n_at_barrier;
    uint32_t n_barriers; /* that all have passed */
    uint64_t n_launches;
    const thread *barrier_first; /* of those that wait there */

    thread *queue[QUEUE_SLOTS];
    unsigned head, tail; /* modulo QUEUE_SLOTS; empty when equal */
} run;

/* ------------------------------------------------------------------ messages */

const char *wait_name(enum wait_kind kind)
{
    static const char *const names[] = {"nothing",    "sync_block()", "sync_warp()",
                                        "shuffle()",  "vote()",       "load_matrix_x4()",
                                        "mma_16816()"};
    return names[kind];
}

const char *thread_name(const thread *t)
{
    static char texts[4][48];
    static unsigned at;
    char *text = texts[at++ % 4];
    snprintf(text, sizeof(texts[0]), "thread (%u,%u,%u)", t->index.x, t->index.y, t->index.z);
    return text;
}

void emu_fail(emu_place place, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "cuda-emu: ");
    if (place.file)
        fprintf(stderr, "%s:%d: ", place.file, place.line);
    if (run.launch && emu_now)
        fprintf(stderr, "kernel %s, block (%u,%u,%u), %s: ", run.launch->kernel,
                emu_block_index.x, emu_block_index.y, emu_block_index.z,
                thread_name(thread_now()));
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

#ifdef SHEAF_EMU_ASAN
/* The sanitizer's report has lines of the source, but no thread of the kernel. */
static void tell_where()
{
    if (run.launch && emu_now)
        fprintf(stderr, "cuda-emu: this was kernel %s, block (%u,%u,%u), %s\n",
                run.launch->kernel, emu_block_index.x, emu_block_index.y, emu_block_index.z,
                thread_name(thread_now()));
}
#endif

/* Nobody can go on: says for whom the first one waits in vain. */
[[noreturn]] static void fail_stuck()
{
    const thread *first = nullptr;
    unsigned n_waiting = 0;
    for (unsigned i = 0; i < run.n_threads; i++) {
        thread *t = &run.threads[i];
        if (t->waits_for == WAIT_NOTHING)
            continue;
        n_waiting++;
        if (!first) {
            first = t;
        } else if (t->waits_for != first->waits_for) {
            emu_now = t;
            emu_fail(t->place, "waits in %s while %s waits in %s at line %d: divergent",
                     wait_name(t->waits_for), thread_name(first), wait_name(first->waits_for),
                     first->place.line);
        }
    }
    emu_now = const_cast<thread *>(first);
    emu_fail(first->place, "%u threads wait in %s for others that never come: divergent",
             n_waiting, wait_name(first->waits_for));
}

/* ------------------------------------------------------------------ turns */

static inline void queue_back(thread *t)
{
    run.queue[run.tail++ % QUEUE_SLOTS] = t;
}

static inline void queue_front(thread *t)
{
    run.queue[--run.head % QUEUE_SLOTS] = t;
}

static inline thread *queue_take()
{
    return run.head == run.tail ? nullptr : run.queue[run.head++ % QUEUE_SLOTS];
}

/* Threads that waited stand in line again, all but one that goes on at once. */
static void go_on(thread *threads, unsigned n, const thread *but)
{
    const uint16_t *order = chance_order(n);
    /* In front: one warp runs ahead of the others. At the back: they take turns. */
    const bool is_front = chance_draw(2) != 0;
    for (unsigned i = 0; i < n; i++) {
        thread *t = &threads[order[i]];
        if (t == but || t->has_returned)
            continue;
        t->waits_for = WAIT_NOTHING;
        if (is_front)
            queue_front(t);
        else
            queue_back(t);
    }
}

static void thread_main();

static fibre *stack_of(thread *t)
{
    if (!t->stack)
        t->stack = fibre_take(t->linear, thread_main);
    if (!t->stack)
        emu_fail({}, "no memory for its stack");
    return t->stack;
}

/* Others take their turns until somebody puts the thread back into the queue. */
static void wait_for(thread *t, enum wait_kind kind, emu_place place)
{
    t->waits_for = kind;
    t->place = place;
    thread *next = queue_take();
    if (!next)
        fail_stuck();
    fibre *to = stack_of(next);
    emu_now = next;
    fibre_switch(t->stack, to);
}

static void open_barrier(const thread *but)
{
    run.n_at_barrier = 0;
    run.n_barriers++;
    go_on(run.threads, run.n_threads, but);
}

void emu_sync_block(emu_place place)
{
    thread *t = thread_now();
    if (run.n_at_barrier == 0) {
        run.barrier_first = t;
        t->place = place;
    } else if (run.barrier_first->place.line != place.line ||
               run.barrier_first->place.file != place.file) {
        emu_fail(place, "is in sync_block() here while %s is in the one of line %d: divergent",
                 thread_name(run.barrier_first), run.barrier_first->place.line);
    }
    if (++run.n_at_barrier == run.n_live)
        open_barrier(t);
    else
        wait_for(t, WAIT_BLOCK, place);
}

bool warp_meet(enum wait_kind kind, emu_place place)
{
    thread *t = thread_now();
    warp *w = t->warp;
    if (w->n_threads != EMU_WARP || w->n_returned)
        emu_fail(place, "%s needs 32 lanes, and its warp has %u left of %u", wait_name(kind),
                 w->n_threads - w->n_returned, w->n_threads);
    if (w->n_waiting == 0) {
        w->first = t;
        w->kind = kind;
        w->place = place;
    } else if (w->kind != kind || w->place.line != place.line || w->place.file != place.file) {
        emu_fail(place, "is in %s here while %s of its warp is in %s of line %d: divergent",
                 wait_name(kind), thread_name(w->first), wait_name(w->kind), w->place.line);
    }
    if (++w->n_waiting < EMU_WARP) {
        wait_for(t, kind, place);
        return false;
    }
    w->n_waiting = 0;
    w->n_barriers += kind == WAIT_WARP;
    w->set ^= 1;
    go_on(t - t->linear % EMU_WARP, EMU_WARP, t);
    return true;
}

uint32_t block_barriers()
{
    return run.n_barriers;
}

bool is_launch_argument(const void *p)
{
    const char *begin = (const char *)run.launch->argument;
    return (const char *)p >= begin && (const char *)p < begin + run.launch->argument_bytes;
}

static void thread_returns(thread *t)
{
    warp *w = t->warp;
    t->has_returned = true;
    t->stack = nullptr;
    w->n_returned++;
    if (w->n_waiting)
        emu_fail(w->place, "returned while %s of its warp waits in %s: divergent",
                 thread_name(w->first), wait_name(w->kind));
    if (--run.n_live && run.n_at_barrier == run.n_live)
        open_barrier(nullptr);
}

/* The bottom of every stack. A thread that has not begun takes over the stack of one that has
 * returned, so that kernels without meetings cost no switch. */
static void thread_main()
{
    fibre_entered();
    for (;;) {
        thread *t = thread_now();
        fibre *stack = t->stack;
        run.launch->body(run.launch->argument);
        thread_returns(t);
        thread *next = queue_take();
        if (!next && run.n_live)
            fail_stuck();
        if (next && !next->stack) {
            next->stack = stack;
            emu_now = next;
            continue;
        }
        fibre_give_back(stack);
        emu_now = next;
        fibre_leave(stack, next ? next->stack : &run.launcher);
    }
}

/* ------------------------------------------------------------------ blocks */

static void set_up_threads(dim3 block)
{
    run.n_threads = block.x * block.y * block.z;
    for (unsigned i = 0; i < run.n_threads; i++) {
        thread *t = &run.threads[i];
        t->index = dim3(i % block.x, i / block.x % block.y, i / (block.x * block.y));
        t->linear = i;
        t->warp = &run.warps[i / EMU_WARP];
    }
}

static void set_up_warps()
{
    for (unsigned i = 0; i < run.n_threads; i += EMU_WARP) {
        warp *w = &run.warps[i / EMU_WARP];
        const unsigned n_left = run.n_threads - i;
        w->n_threads = n_left < EMU_WARP ? n_left : (unsigned)EMU_WARP;
        w->n_waiting = w->n_returned = w->set = w->n_barriers = 0;
    }
}

static void run_block()
{
    emu_block_serial++;
    shared_begin_block();
    set_up_warps();
    run.n_live = run.n_threads;
    run.n_at_barrier = run.n_barriers = 0;
    run.head = run.tail = 0;
    const uint16_t *order = chance_order(run.n_threads);
    for (unsigned i = 0; i < run.n_threads; i++) {
        thread *t = &run.threads[order[i]];
        t->has_returned = false;
        t->waits_for = WAIT_NOTHING;
        queue_back(t);
    }
    thread *first = queue_take();
    fibre *to = stack_of(first);
    emu_now = first;
    fibre_switch(&run.launcher, to);
    for (unsigned i = 0; i < run.n_threads; i++)
        async_copies_drop(&run.threads[i]);
}

static uint64_t greatest_divisor(uint64_t a, uint64_t b)
{
    return b ? greatest_divisor(b, a % b) : a;
}

static void run_blocks(dim3 grid)
{
    const uint64_t n = (uint64_t)grid.x * grid.y * grid.z;
    uint64_t step = 1 + chance_draw(0xffff), at = chance_draw(0xffffffff) % n;
    while (greatest_divisor(n, step) != 1)
        step++;
    for (uint64_t i = 0; i < n; i++) {
        emu_block_index = dim3((unsigned)(at % grid.x), (unsigned)(at / grid.x % grid.y),
                               (unsigned)(at / ((uint64_t)grid.x * grid.y)));
        run_block();
        at = (at + step) % n;
    }
}

/* As a device refuses it. */
static bool is_launch_possible(const emu_launch &l)
{
    const uint64_t n_threads = (uint64_t)l.block.x * l.block.y * l.block.z;
    if (n_threads == 0 || n_threads > EMU_THREADS_MAX)
        error_set("kernel %s: a block of %u x %u x %u threads; it can have 1 to %d", l.kernel,
                  l.block.x, l.block.y, l.block.z, EMU_THREADS_MAX);
    else if (l.block.z > BLOCK_Z_MAX)
        error_set("kernel %s: a block of %u x %u x %u threads; it is at most %d deep", l.kernel,
                  l.block.x, l.block.y, l.block.z, BLOCK_Z_MAX);
    else if (l.grid.x == 0 || l.grid.y == 0 || l.grid.z == 0 || l.grid.x > GRID_X_MAX ||
             l.grid.y > GRID_YZ_MAX || l.grid.z > GRID_YZ_MAX)
        error_set("kernel %s: a grid of %u x %u x %u blocks cannot be launched", l.kernel,
                  l.grid.x, l.grid.y, l.grid.z);
    else if (l.dynamic_bytes > SHARED_BYTES_MAX)
        error_set("kernel %s: %zu bytes of shared memory; a block can have %d", l.kernel,
                  l.dynamic_bytes, SHARED_BYTES_MAX);
    else
        return true;
    return false;
}

void emu_run(emu_stream *s, const emu_launch &launch)
{
    if (is_launch_possible(launch) && !capture_takes_launch(s, launch))
        launch_run(launch);
}

void launch_run(const emu_launch &launch)
{
    pthread_mutex_lock(&launch_lock);
    count_launch();
    chance_begin();
#ifdef SHEAF_EMU_ASAN
    __sanitizer_set_death_callback(tell_where);
#endif
    run.launch = &launch;
    emu_block_size = launch.block;
    emu_grid_size = launch.grid;
    if (race_of_launches)
        race_of_launches->begin_launch(++run.n_launches, emu_block_serial + 1);
    shared_open(launch.dynamic_bytes);
    set_up_threads(launch.block);
    run_blocks(launch.grid);
    shared_close();
    run.launch = nullptr;
    pthread_mutex_unlock(&launch_lock);
}
