/*
 * The threads of the block that runs, for the files of the emulation.
 *
 * Those that can go on stand in a queue, in the order in which they will. A thread that has to
 * wait takes the next one's turn over to it; the last one to arrive at a meeting puts the
 * others back into the queue and goes on itself. An empty queue with threads left means that
 * they wait for what will never come.
 */
#ifndef SHEAF_EMU_BLOCK_INT_H
#define SHEAF_EMU_BLOCK_INT_H

#include "emu.h"
#include "fibre.h"

enum wait_kind {
    WAIT_NOTHING,
    WAIT_BLOCK,
    WAIT_WARP,
    WAIT_SHUFFLE,
    WAIT_VOTE,
    WAIT_LOAD_MATRIX,
    WAIT_MMA
};

/* What lanes lay out for each other. */
union lane_slot {
    uint32_t bits;
    struct {
        const void *row;
        uint32_t r[4];
    } load;
    struct {
        uint32_t a[4], b[2];
        float d[4];
    } mma;
};

struct async_copy {
    void *to;
    const void *from;
    uint32_t commit; /* how many commits the thread had made before */
};

struct warp;

/* emu_thread first: emu_now points to one of these. */
struct thread : emu_thread {
    fibre *stack; /* NULL before its first turn and after its return */
    struct warp *warp;
    bool has_returned;
    enum wait_kind waits_for;
    emu_place place; /* where it waits */

    uint32_t n_commits;
    async_copy *copies;
    size_t n_copies, copies_capacity;
};

struct warp {
    unsigned n_threads, n_waiting, n_returned;
    uint32_t n_barriers; /* sync_warp() that all have passed */
    /* Of the first that waits: the others have to be at the same. */
    enum wait_kind kind;
    emu_place place;
    thread *first;
    /* Two sets: a lane may be at the next meeting while others still read the last one's. */
    unsigned set;
    lane_slot slots[2][EMU_WARP];
};

static inline thread *thread_now()
{
    return static_cast<thread *>(emu_now);
}

/* Waits until all 32 lanes of the warp are at this place. Returns true to the last one, while
 * no other has gone on. */
bool warp_meet(enum wait_kind kind, emu_place place);
/* "shuffle()", for messages. */
const char *wait_name(enum wait_kind kind);
/* "thread (3,0,0)"; the text is good until the fourth call from here. */
const char *thread_name(const thread *t);

/* sync_block() that all have passed in this block. */
uint32_t block_barriers();
/* Whether the byte is of the arguments of the launch that runs. */
bool is_launch_argument(const void *p);

/* ---- race.cpp: who looks for races, if anybody; NULL in a build without it */

enum access_kind { ACCESS_READ, ACCESS_WRITE, ACCESS_ATOMIC };

struct race_hooks {
    void (*begin_launch)(uint64_t launch, uint64_t first_block);
    void (*access)(const void *p, size_t bytes, unsigned kind, const void *pc);
    void (*fence)();
};
extern const race_hooks *race_of_launches;

/* For what the runtime does in the place of a kernel's line. */
static inline void race_note(const void *p, size_t bytes, enum access_kind kind, const void *pc)
{
    if (race_of_launches)
        race_of_launches->access(p, bytes, kind, pc);
}

/* ---- chance.cpp: what the seed decides */

/* As SHEAF_EMU_SEED says, unless emu_set_seed() was called before. */
void chance_begin();
/* A number below n; 0 when the seed is 0. */
uint32_t chance_draw(uint32_t n);
/* The numbers 0..n-1 in some order, n up to EMU_THREADS_MAX; good until the next call. */
const uint16_t *chance_order(uint32_t n);

/* ---- block.cpp */

/* Every thread of every block, at once. */
void launch_run(const emu_launch &launch);

/* ---- graph.cpp: streams that are captured */

struct copy_request {
    enum { TO_DEVICE, TO_HOST, ON_DEVICE } kind;
    void *to;
    const void *from;
    size_t bytes;
};

/* Whether what was asked for is settled: noted for the graph, or an error, for nothing may go
 * to another stream meanwhile. */
bool capture_takes_launch(emu_stream *s, const emu_launch &launch);
bool capture_takes_copy(emu_stream *s, const copy_request &copy);
/* Whether the thread captures a stream: then this is an error, and the capture is spoilt. */
bool capture_forbids(const char *what);

/* ---- stream.cpp */

void copy_run(emu_stream *s, const copy_request &copy);

/* ---- shared.cpp */

enum { SHARED_BYTES_MAX = 227 << 10, STATIC_BYTES_MAX = 48 << 10 }; /* of a block on sm_90 */

void shared_open(size_t dynamic_bytes); /* of a launch */
void shared_begin_block();
void shared_close(); /* fails when a launch wrote beyond its dynamic shared memory */
bool is_shared_memory(const void *p, size_t bytes);
/* Fails unless it is, and no copy to it is under way. */
void shared_check_read(const void *p, size_t bytes, emu_place place, const void *pc);
/* Copies that nobody waited for end with their block. */
void async_copies_drop(thread *t);

/* ---- memory.cpp */

/* Memory between red zones, filled with EMU_POISON; NULL: none left. */
void *guarded_alloc(size_t bytes);
/* Fails when a red zone was written to. */
void guarded_check(const void *p, size_t bytes, const char *what);
void guarded_free(void *p, size_t bytes);
/* An error for last_error(). */
void error_set(const char *format, ...) __attribute__((format(printf, 1, 2)));
void count_launch();
void count_copy(size_t bytes);
void count_graph_launch();
/* Fails unless one allocation of device memory holds all of [p, p + bytes). */
void device_check_range(const void *p, size_t bytes, const char *what);
/* Whether one does. */
bool is_device_memory(const void *p, size_t bytes);
/* Whether it is pinned memory of the host, which kernels may use too. */
bool is_pinned_memory(const void *p, size_t bytes);
/* Fails when a red zone of device memory was written to. */
void device_check_zones();

#endif
