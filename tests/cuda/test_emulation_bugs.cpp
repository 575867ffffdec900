/*
 * Bugs planted in kernels, which the emulation has to find: each in a process of its own, and
 * beside it the same kernel without the bug, which has to pass.
 *
 * A bug is found when the process dies with the sentence (or the sanitizer's words), or, where
 * nothing is named, when the result is wrong under one of some seeds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include <cmocka.h>
}

#include "port.cuh"

#ifdef __SANITIZE_ADDRESS__
enum { HAS_ASAN = 1 };
#else
enum { HAS_ASAN = 0 };
#endif
#ifdef SHEAF_EMU_RACE
enum { HAS_RACE = 1 };
#else
enum { HAS_RACE = 0 };
#endif

enum { SEEDS = 8, THREADS = 64 };

/* Runs a kernel that is to put thread i's number, i, where 63 - i is expected. */
typedef void reversing_kernel(int32_t *x, bool has_bug);

static bool reverses(reversing_kernel *kernel, bool has_bug)
{
    int32_t got[THREADS];
    int32_t *x = (int32_t *)device_alloc(sizeof(got));
    bool is_right = true;
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        for (int i = 0; i < THREADS; i++)
            got[i] = i;
        emu_set_seed(seed);
        copy_to_device(nullptr, x, got, sizeof(got));
        LAUNCH(kernel, 1, THREADS, 4 * THREADS, nullptr, x, has_bug);
        copy_to_host(nullptr, got, x, sizeof(got));
        stream_wait(nullptr);
        for (int i = 0; i < THREADS; i++)
            is_right = is_right && got[i] == THREADS - 1 - i;
    }
    device_free(x);
    return is_right;
}

/* ------------------------------------------------------------------ waiting */

KERNEL void missing_barrier(int32_t *x, bool has_bug)
{
    SHARED(int32_t, numbers, THREADS);
    numbers[threadIdx.x] = x[threadIdx.x];
    if (!has_bug)
        sync_block();
    x[threadIdx.x] = numbers[THREADS - 1 - threadIdx.x];
}

/* The second use of the array begins while others still read the first one's numbers. */
KERNEL void missing_second_barrier(int32_t *x, bool has_bug)
{
    SHARED(int32_t, numbers, THREADS);
    int32_t number = x[threadIdx.x];
    for (int i = 0; i < 3; i++) {
        numbers[threadIdx.x] = number;
        sync_block();
        number = numbers[THREADS - 1 - threadIdx.x];
        if (!has_bug)
            sync_block();
    }
    x[threadIdx.x] = number;
}

KERNEL void missing_warp_barrier(int32_t *x, bool has_bug)
{
    SHARED(int32_t, numbers, THREADS);
    const unsigned lane = threadIdx.x % 32, first = threadIdx.x - lane;
    numbers[threadIdx.x] = x[THREADS - 1 - (first + 31 - lane)];
    if (!has_bug)
        sync_warp();
    const int32_t number = numbers[first + 31 - lane];
    sync_block();
    x[threadIdx.x] = number;
}

KERNEL void missing_copy_wait(int32_t *x, bool has_bug)
{
    DYNAMIC_SHARED(int32_t, numbers);
    if (threadIdx.x < THREADS / 4)
        copy_async_16(numbers + 4 * threadIdx.x, x + 4 * threadIdx.x);
    copy_async_commit();
    if (!has_bug)
        copy_async_wait<0>();
    sync_block();
    x[threadIdx.x] = numbers[THREADS - 1 - threadIdx.x];
}

/* Waits, but for the commit before the last one. */
KERNEL void short_copy_wait(int32_t *x, bool has_bug)
{
    DYNAMIC_SHARED(int32_t, numbers);
    copy_async_commit();
    if (threadIdx.x < THREADS / 4)
        copy_async_16(numbers + 4 * threadIdx.x, x + 4 * threadIdx.x);
    copy_async_commit();
    if (has_bug)
        copy_async_wait<1>();
    else
        copy_async_wait<0>();
    sync_block();
    x[threadIdx.x] = numbers[THREADS - 1 - threadIdx.x];
}

KERNEL void missing_copy_commit(int32_t *x, bool has_bug)
{
    DYNAMIC_SHARED(int32_t, numbers);
    if (threadIdx.x < THREADS / 4)
        copy_async_16(numbers + 4 * threadIdx.x, x + 4 * threadIdx.x);
    if (!has_bug)
        copy_async_commit();
    copy_async_wait<0>();
    sync_block();
    x[threadIdx.x] = numbers[THREADS - 1 - threadIdx.x];
}

/* A thread's own copy is there, those of others are not yet. */
KERNEL void copy_without_barrier(int32_t *x, bool has_bug)
{
    DYNAMIC_SHARED(int32_t, numbers);
    if (threadIdx.x < THREADS / 4)
        copy_async_16(numbers + 4 * threadIdx.x, x + 4 * threadIdx.x);
    copy_async_commit();
    copy_async_wait<0>();
    if (!has_bug)
        sync_block();
    const int32_t number = numbers[THREADS - 1 - threadIdx.x];
    sync_block();
    x[threadIdx.x] = number;
}

/* ------------------------------------------------------------------ values */

KERNEL void unwritten_shared(int32_t *x, bool has_bug)
{
    SHARED(int32_t, zeros, THREADS);
    if (!has_bug)
        zeros[threadIdx.x] = 0;
    const int32_t number = x[THREADS - 1 - threadIdx.x] + zeros[threadIdx.x];
    sync_block();
    x[threadIdx.x] = number;
}

/* What the block before left in shared memory is not there for the next one. */
KERNEL void left_by_other_block(int32_t *x, bool has_bug)
{
    DYNAMIC_SHARED(int32_t, numbers);
    if (blockIdx.x == 0 || !has_bug)
        numbers[threadIdx.x] = (int32_t)threadIdx.x;
    sync_block();
    if (blockIdx.x == gridDim.x - 1)
        x[threadIdx.x] = numbers[THREADS - 1 - threadIdx.x];
}

static bool two_blocks_reverse(bool has_bug)
{
    int32_t got[THREADS];
    int32_t *x = (int32_t *)device_alloc(sizeof(got));
    emu_set_seed(0);
    LAUNCH(left_by_other_block, 2, THREADS, 4 * THREADS, nullptr, x, has_bug);
    copy_to_host(nullptr, got, x, sizeof(got));
    stream_wait(nullptr);
    bool is_right = true;
    for (int i = 0; i < THREADS; i++)
        is_right = is_right && got[i] == THREADS - 1 - i;
    device_free(x);
    return is_right;
}

/* Who comes last decides. */
KERNEL void last_writer_wins(int32_t *x, bool has_bug)
{
    SHARED(int32_t, last, 1);
    if (threadIdx.x == 0)
        last[0] = 0;
    sync_block();
    if (has_bug)
        last[0] = (int32_t)(threadIdx.x / 32);
    else
        atomic_max(last, (int32_t)(threadIdx.x / 32));
    sync_block();
    const int32_t number = x[THREADS - 1 - threadIdx.x] + last[0] - 1;
    sync_block();
    x[threadIdx.x] = number;
}

/* A shuffle lets no lane see what others wrote, though fibres happen to. */
KERNEL void shuffle_for_a_barrier(int32_t *x, bool has_bug)
{
    SHARED(int32_t, numbers, THREADS);
    const unsigned lane = threadIdx.x % 32, first = threadIdx.x - lane;
    numbers[threadIdx.x] = x[THREADS - 1 - (first + 31 - lane)];
    shuffle_xor(0, 1);
    if (!has_bug)
        sync_warp();
    const int32_t number = numbers[first + 31 - lane];
    sync_block();
    x[threadIdx.x] = number;
}

/* Counts right on fibres, which change only where they wait. */
KERNEL void plain_counter(int32_t *x, bool has_bug)
{
    SHARED(int32_t, count, 1);
    if (threadIdx.x == 0)
        count[0] = 0;
    sync_block();
    if (has_bug)
        count[0] += 1;
    else
        atomic_add(count, 1);
    sync_block();
    const int32_t number = x[THREADS - 1 - threadIdx.x] + count[0] - THREADS;
    sync_block();
    x[threadIdx.x] = number;
}

/* The block that comes last adds up what all have written. */
KERNEL void hand_over(int32_t *parts, int32_t *arrived, int32_t *sum, bool has_bug)
{
    if (threadIdx.x != 0)
        return;
    parts[blockIdx.x] = (int32_t)blockIdx.x;
    if (!has_bug)
        memory_fence();
    if (atomic_add(arrived, 1) != (int32_t)gridDim.x - 1)
        return;
    *sum = 0;
    for (unsigned i = 0; i < gridDim.x; i++)
        *sum += parts[i];
}

static bool blocks_hand_over(bool has_bug)
{
    enum { BLOCKS = 10 };
    int32_t number = 0, *x = (int32_t *)device_alloc((BLOCKS + 2) * sizeof(number));
    copy_to_device(nullptr, x + BLOCKS, &number, sizeof(number));
    LAUNCH(hand_over, BLOCKS, 32, 0, nullptr, x, x + BLOCKS, x + BLOCKS + 1, has_bug);
    copy_to_host(nullptr, &number, x + BLOCKS + 1, sizeof(number));
    stream_wait(nullptr);
    device_free(x);
    return number == BLOCKS * (BLOCKS - 1) / 2;
}

/* ------------------------------------------------------------------ bounds */

KERNEL void beyond_static_shared(int32_t *x, bool has_bug)
{
    SHARED(int32_t, numbers, THREADS);
    const int32_t *volatile from = numbers; /* of no known length */
    numbers[threadIdx.x] = x[threadIdx.x];
    sync_block();
    x[threadIdx.x] = from[THREADS - 1 - threadIdx.x + (has_bug && threadIdx.x == 0)];
}

KERNEL void beyond_dynamic_shared(int32_t *x, bool has_bug)
{
    DYNAMIC_SHARED(int32_t, numbers);
    numbers[threadIdx.x + (has_bug && threadIdx.x == THREADS - 1)] = x[threadIdx.x];
    sync_block();
    x[threadIdx.x] = numbers[THREADS - 1 - threadIdx.x];
}

KERNEL void write_beyond_global(int32_t *x, bool has_bug)
{
    const int32_t number = x[THREADS - 1 - threadIdx.x];
    sync_block();
    x[threadIdx.x] = number;
    if (has_bug && threadIdx.x == 7)
        x[THREADS] = number;
}

KERNEL void read_below_global(int32_t *x, bool has_bug)
{
    const int32_t number = x[THREADS - 1 - threadIdx.x];
    sync_block();
    x[threadIdx.x] = has_bug && threadIdx.x == 7 ? x[-1] : number;
}

KERNEL void read_beyond_global_async(int32_t *x, bool has_bug)
{
    DYNAMIC_SHARED(int32_t, numbers);
    if (threadIdx.x < THREADS / 4)
        copy_async_16(numbers + 4 * threadIdx.x, x + 4 * (threadIdx.x + has_bug));
    copy_async_commit();
    copy_async_wait<0>();
    sync_block();
    x[threadIdx.x] = numbers[THREADS - 1 - threadIdx.x];
}

KERNEL void copy_off_alignment(int32_t *x, bool has_bug)
{
    DYNAMIC_SHARED(int32_t, numbers);
    if (threadIdx.x < THREADS / 4 - 1)
        copy_async_16(numbers + 4 * threadIdx.x, x + 4 * threadIdx.x + has_bug);
    else if (threadIdx.x < THREADS / 4 + 3)
        numbers[THREADS - 4 + threadIdx.x - (THREADS / 4 - 1)] =
            x[THREADS - 4 + threadIdx.x - (THREADS / 4 - 1)];
    copy_async_commit();
    copy_async_wait<0>();
    sync_block();
    x[threadIdx.x] = numbers[THREADS - 1 - threadIdx.x];
}

struct alignas(16) four_numbers {
    int32_t v[4];
};

/* Sixteen bytes from four bytes further on. */
KERNEL void wide_read_off_alignment(int32_t *x, bool has_bug)
{
    SHARED(four_numbers, quads, THREADS);
    const int32_t i = (int32_t)threadIdx.x;
    const int32_t off = has_bug && i >= 4 && i % 4 == 0;
    quads[i] = *(const four_numbers *)(x + THREADS - 4 - i / 4 * 4 + off);
    sync_block();
    x[i] = quads[i].v[3 - i % 4 - off];
}

KERNEL void matrix_from_elsewhere(int32_t *x, bool has_bug)
{
    DYNAMIC_SHARED(int32_t, numbers);
    uint32_t r[4];
    numbers[threadIdx.x] = x[threadIdx.x];
    sync_block();
    load_matrix_x4(r, has_bug ? x : numbers);
    sync_block();
    x[threadIdx.x] = numbers[THREADS - 1 - threadIdx.x];
}

/* The lanes of one warp lay out rows for each other. */
KERNEL void matrix_without_barrier(int32_t *x, bool has_bug)
{
    SHARED(int32_t, rows, 32 * 4);
    const unsigned lane = threadIdx.x % 32;
    const int32_t number = x[THREADS - 1 - threadIdx.x];
    uint32_t r[4];
    if (threadIdx.x < 32) {
        for (int i = 0; i < 4; i++)
            rows[4 * lane + i] = number;
        if (!has_bug)
            sync_warp();
        load_matrix_x4(r, rows + 4 * lane);
    }
    sync_block();
    x[threadIdx.x] = number;
}

struct alignas(16) four {
    int32_t at[4];
};

/* A host reads four numbers from everywhere. */
KERNEL void vector_off_alignment(int32_t *x, bool has_bug)
{
    const unsigned last = THREADS - 1 - threadIdx.x,
                   first = last / 4 * 4 - (has_bug && last > 4);
    const four *volatile from = reinterpret_cast<const four *>(x + first);
    const four numbers = *from;
    sync_block();
    x[threadIdx.x] = numbers.at[last - first];
}

/* Each of two arrays fits, both together do not. */
KERNEL void static_beyond_limit(int32_t *x, bool has_bug)
{
    SHARED(int32_t, half, 8 << 10);
    half[threadIdx.x] = x[threadIdx.x];
    if (has_bug) {
        SHARED(int32_t, other, 8 << 10);
        other[threadIdx.x] = half[threadIdx.x];
    }
    sync_block();
    x[threadIdx.x] = half[THREADS - 1 - threadIdx.x];
}

KERNEL void fill_shared(int32_t *x)
{
    SHARED(int32_t, number, 256);
    DYNAMIC_SHARED(int32_t, numbers);
    number[0] = numbers[0] = 1;
    *x = number[0] + numbers[0];
}

static bool all_shared_memory_fits(bool has_bug)
{
    int32_t *x = (int32_t *)device_alloc(sizeof(*x));
    LAUNCH(fill_shared, 1, 1, (226 << 10) + 4 * has_bug, nullptr, x);
    device_free(x);
    return true;
}

KERNEL void read_one(const int32_t *from, int32_t *to)
{
    *to = *from;
}

KERNEL void nothing()
{
}

static bool blocks_are_not_too_deep(bool has_bug)
{
    LAUNCH(nothing, 1, dim3(1, 1, 64 + has_bug), 0, nullptr);
    return !last_error();
}

static bool kernel_reads_device_memory(bool has_bug)
{
    const int32_t seven = 7;
    int32_t got, *x = (int32_t *)device_alloc(2 * sizeof(got));
    copy_to_device(nullptr, x, &seven, sizeof(seven));
    LAUNCH(read_one, 1, 1, 0, nullptr, has_bug ? &seven : x, x + 1);
    copy_to_host(nullptr, &got, x + 1, sizeof(got));
    stream_wait(nullptr);
    device_free(x);
    return got == 7;
}

/* ------------------------------------------------------------------ not together */

KERNEL void barrier_for_some(int32_t *x, bool has_bug)
{
    const int32_t number = x[THREADS - 1 - threadIdx.x];
    if (threadIdx.x < 16 || !has_bug)
        sync_block();
    else
        sync_warp();
    x[threadIdx.x] = number;
}

KERNEL void two_barriers(int32_t *x, bool has_bug)
{
    const int32_t number = x[THREADS - 1 - threadIdx.x];
    if (threadIdx.x < 32 || !has_bug)
        sync_block();
    else
        sync_block();
    x[threadIdx.x] = number;
}

KERNEL void barriers_of_unlike_number(int32_t *x, bool has_bug)
{
    const int32_t number = x[THREADS - 1 - threadIdx.x];
    sync_block();
    for (unsigned i = 0; i < (has_bug && threadIdx.x < 32 ? 2 : 1); i++) {
        x[threadIdx.x] = number;
        sync_block();
    }
    sync_block();
}

KERNEL void lane_has_returned(int32_t *x, bool has_bug)
{
    const int32_t number = x[THREADS - 1 - threadIdx.x];
    sync_block();
    x[threadIdx.x] = number;
    if (has_bug && threadIdx.x == 3)
        return;
    shuffle_xor(number, 1);
}

KERNEL void lanes_in_two_places(int32_t *x, bool has_bug)
{
    int32_t number = x[THREADS - 1 - threadIdx.x];
    sync_block();
    if (!has_bug)
        number = shuffle_xor(shuffle_xor(number, 1), 1);
    else if (threadIdx.x % 2)
        number = shuffle_xor(number, 1);
    else
        number = shuffle_xor(number, 1);
    x[threadIdx.x] = number;
}

/* ------------------------------------------------------------------ the host's */

static bool copies_all(bool has_bug)
{
    const int32_t numbers[4] = {1, 2, 3, 4};
    int32_t *x = (int32_t *)device_alloc(sizeof(numbers));
    copy_to_device(nullptr, x + has_bug, numbers, sizeof(numbers));
    device_free(x);
    return true;
}

static bool copies_to_elsewhere(bool has_bug)
{
    const int32_t numbers[4] = {1, 2, 3, 4};
    int32_t *x = (int32_t *)device_alloc(sizeof(numbers));
    copy_to_device(nullptr, x, numbers, sizeof(numbers));
    copy_on_device(nullptr, x + 2 - has_bug, x, 8);
    stream_wait(nullptr);
    device_free(x);
    return true;
}

static bool frees_what_it_allocated(bool has_bug)
{
    int32_t *x = (int32_t *)device_alloc(4);
    if (!has_bug)
        device_free(x);
    return true;
}

static bool frees_once(bool has_bug)
{
    void *x = device_alloc(4);
    device_free(x);
    if (has_bug)
        device_free(x);
    return true;
}

static bool waits_before_it_reads(bool has_bug)
{
    const int32_t one = 1;
    int32_t got = 0, *x = (int32_t *)device_alloc(sizeof(one));
    copy_to_device(nullptr, x, &one, sizeof(one));
    copy_to_host(nullptr, &got, x, sizeof(got));
    if (!has_bug)
        stream_wait(nullptr);
    const bool is_right = got == 1;
    stream_wait(nullptr);
    device_free(x);
    return is_right;
}

/* The first n numbers, where n is an argument, or in memory. */
KERNEL void count_up(int32_t *x, int32_t n, const int32_t *n_in_memory)
{
    if ((int32_t)threadIdx.x < (n_in_memory ? *n_in_memory : n))
        x[threadIdx.x] += 1;
}

/* A graph is launched with a greater number than it was captured with. */
static bool graph_has_its_count_in_memory(bool has_bug)
{
    int32_t n = 1, got[2] = {0, 0};
    stream_t s = stream_open();
    int32_t *x = (int32_t *)device_alloc(sizeof(got)), *n_there = (int32_t *)device_alloc(4);
    copy_to_device(s, x, got, sizeof(got));
    capture_begin(s);
    LAUNCH(count_up, 1, 32, 0, s, x, n, has_bug ? nullptr : n_there);
    graph_t g = capture_end(s);
    n = 2;
    copy_to_device(s, n_there, &n, sizeof(n));
    graph_launch(g, s);
    copy_to_host(s, got, x, sizeof(got));
    stream_wait(s);
    graph_free(g);
    stream_close(s);
    device_free(n_there);
    device_free(x);
    return got[0] == 1 && got[1] == 1;
}

/* What is to be counted up stands elsewhere when the graph is launched. */
static bool graph_has_its_numbers_in_one_place(bool has_bug)
{
    int32_t got = 0;
    stream_t s = stream_open();
    int32_t *x = (int32_t *)device_alloc(8), *place = x;
    copy_to_device(s, x, &got, 4);
    copy_to_device(s, x + 1, &got, 4);
    capture_begin(s);
    LAUNCH(count_up, 1, 32, 0, s, place, 1, nullptr);
    graph_t g = capture_end(s);
    if (has_bug)
        place = x + 1;
    graph_launch(g, s);
    copy_to_host(s, &got, place, 4);
    stream_wait(s);
    graph_free(g);
    stream_close(s);
    device_free(x);
    return got == 1;
}

static bool waits_before_it_writes_again(bool has_bug)
{
    int32_t *x = (int32_t *)device_alloc(4), *pinned = (int32_t *)pinned_alloc(4);
    *pinned = 1;
    copy_to_device(nullptr, x, pinned, 4);
    if (!has_bug)
        stream_wait(nullptr);
    *pinned = 2;
    copy_to_device(nullptr, x, pinned, 4);
    stream_wait(nullptr);
    pinned_free(pinned);
    device_free(x);
    return true;
}

/* ------------------------------------------------------------------ each in a process */

/* Who finds it: everybody, only the build that looks for races, only the address sanitizer. */
enum finder { ALL, RACE, ASAN, ASAN_OR_RACE };

struct planted {
    reversing_kernel *kernel;
    bool (*program)(bool has_bug); /* when it is more than the kernel */
    enum finder finder;
    const char *words;                   /* NULL: the result is wrong */
    const char *asan_words, *race_words; /* in these builds; NULL: the same */
};

/* Exit status 0: the result was right. What it wrote goes to `text`. */
static int status_of(const planted *p, bool has_bug, char *text, size_t capacity)
{
    int ends[2];
    fflush(nullptr);
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        setenv("SHEAF_EMU_LEAKS", "1", 1);
        signal(SIGABRT, SIG_DFL);
        const bool is_right = p->program ? p->program(has_bug) : reverses(p->kernel, has_bug);
        exit(is_right ? 0 : 3);
    }
    close(ends[1]);
    size_t n = 0;
    for (;;) {
        char rest[256];
        const bool has_room = n + 1 < capacity;
        const ssize_t got = read(ends[0], has_room ? text + n : rest,
                                 has_room ? capacity - 1 - n : sizeof(rest));
        if (got <= 0)
            break;
        n += has_room ? (size_t)got : 0;
    }
    text[n] = '\0';
    close(ends[0]);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void is_found(void **state)
{
    static char text[1 << 16];
    const planted *p = (const planted *)*state;
    const int good = status_of(p, false, text, sizeof(text));
    if (good != 0)
        fail_msg("without the bug: status %d, %s", good, text);
    if ((p->finder == ASAN && !HAS_ASAN) || (p->finder == RACE && !HAS_RACE) ||
        (p->finder == ASAN_OR_RACE && !HAS_ASAN && !HAS_RACE))
        skip();
    const int bad = status_of(p, true, text, sizeof(text));
    const char *words = p->words;
    if (HAS_ASAN && p->asan_words)
        words = p->asan_words;
    if (HAS_RACE && p->race_words)
        words = p->race_words;
    if (bad == 0)
        fail_msg("nobody saw the bug");
    if (words && !strstr(text, words))
        fail_msg("status %d, and nobody said \"%s\" but: %s", bad, words, text);
    if (!words && WEXITSTATUS(bad) != 3)
        fail_msg("died with status %d: %s", bad, text);
}

#define PLANTED(kernel, ...)                                                                   \
    {                                                                                          \
        static planted the = {kernel, nullptr, __VA_ARGS__};                                   \
        tests[n++] = {#kernel, is_found, nullptr, nullptr, &the};                              \
    }
#define PLANTED_HOST(program, ...)                                                             \
    {                                                                                          \
        static planted the = {nullptr, program, __VA_ARGS__};                                  \
        tests[n++] = {#program, is_found, nullptr, nullptr, &the};                             \
    }

int main()
{
    static const char poisoned[] = "use-after-poison", race[] = "no barrier between";
    static CMUnitTest tests[64];
    size_t n = 0;
    PLANTED(missing_barrier, ALL, nullptr, nullptr, race);
    PLANTED(missing_second_barrier, ALL, nullptr, nullptr, race);
    PLANTED(missing_warp_barrier, ALL, nullptr, nullptr, race);
    PLANTED(shuffle_for_a_barrier, RACE, nullptr, nullptr, race);
    PLANTED(missing_copy_wait, ALL, nullptr, poisoned, nullptr);
    PLANTED(short_copy_wait, ALL, nullptr, poisoned, nullptr);
    PLANTED(missing_copy_commit, ALL, nullptr, poisoned, nullptr);
    PLANTED(copy_without_barrier, ALL, nullptr, nullptr, race);
    PLANTED(unwritten_shared, ALL, nullptr, nullptr, nullptr);
    PLANTED_HOST(two_blocks_reverse, ALL, nullptr, nullptr, nullptr);
    PLANTED(last_writer_wins, ALL, nullptr, nullptr, race);
    PLANTED(plain_counter, RACE, nullptr, nullptr, race);
    PLANTED_HOST(blocks_hand_over, RACE, nullptr, nullptr, "of another block");
    PLANTED(beyond_static_shared, ASAN, nullptr, "global-buffer-overflow", nullptr);
    PLANTED(beyond_dynamic_shared, ALL, "behind the end of the launch's dynamic shared memory",
            poisoned, "not memory of the device");
    PLANTED(write_beyond_global, ALL, "behind the end of 256 bytes of device memory", poisoned,
            "not memory of the device");
    PLANTED(read_below_global, ALL, nullptr, poisoned, "not memory of the device");
    PLANTED(read_beyond_global_async, ALL, nullptr, poisoned, "not memory of the device");
    PLANTED_HOST(kernel_reads_device_memory, RACE, nullptr, nullptr,
                 "not memory of the device");
    PLANTED(copy_off_alignment, ALL, "not both 16-byte aligned", nullptr, nullptr);
    PLANTED(wide_read_off_alignment, ASAN_OR_RACE, nullptr, "misaligned address",
            "not aligned to as many");
    PLANTED(matrix_from_elsewhere, ALL, "not shared memory of the block", nullptr, nullptr);
    PLANTED(matrix_without_barrier, RACE, nullptr, nullptr, race);
    PLANTED(vector_off_alignment, ASAN, nullptr, "misaligned address", nullptr);
    PLANTED(static_beyond_limit, ALL, "65536 bytes of shared arrays", nullptr, nullptr);
    PLANTED_HOST(all_shared_memory_fits, ALL, "beside the 231428", nullptr, nullptr);
    PLANTED_HOST(blocks_are_not_too_deep, ALL, nullptr, nullptr, nullptr);
    PLANTED(barrier_for_some, ALL, "divergent", nullptr, race);
    PLANTED(two_barriers, ALL, "divergent", nullptr, nullptr);
    PLANTED(barriers_of_unlike_number, ALL, "divergent", nullptr, nullptr);
    PLANTED(lane_has_returned, ALL, "thread (3,0,0)", nullptr, nullptr);
    PLANTED(lanes_in_two_places, ALL, "divergent", nullptr, nullptr);
    PLANTED_HOST(copies_all, ALL, "4 bytes into an allocation of 16", nullptr, nullptr);
    PLANTED_HOST(copies_to_elsewhere, ALL, "onto themselves", nullptr, nullptr);
    PLANTED_HOST(frees_what_it_allocated, ALL, "never freed", nullptr, nullptr);
    PLANTED_HOST(frees_once, ALL, "did not give", nullptr, nullptr);
    PLANTED_HOST(graph_has_its_count_in_memory, ALL, nullptr, nullptr, nullptr);
    PLANTED_HOST(graph_has_its_numbers_in_one_place, ALL, nullptr, nullptr, nullptr);
    PLANTED_HOST(waits_before_it_reads, ALL, nullptr, nullptr, nullptr);
    PLANTED_HOST(waits_before_it_writes_again, ALL, "was written to while a copy", nullptr,
                 nullptr);
    return _cmocka_run_group_tests("planted bugs", tests, n, nullptr, nullptr);
}
