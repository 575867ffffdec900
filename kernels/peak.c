#include "peak.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/check.h"
#include "base/clock.h"
#include "peak_int.h"

enum {
    RUN_US = 200 * 1000,
    READ_BYTES = 256 << 20, /* per thread */
    READ_CHUNK_BYTES = 1 << 20,
    PREFETCH_BYTES = 4096,
    REF_CHAINS = 8,
};

/* One loop to measure: round(n, memory) does n rounds of per_round units each. With work it is
 * that instead. */
struct loop {
    int (*round)(size_t n, const uint8_t *memory);
    size_t n;
    double per_round;
    bool reads_memory;
    const struct peak_work *work;
};

/* The gate is held until every thread exists, so that all run at the same time. */
struct gate {
    pthread_mutex_t mutex;
    bool cancelled;
};

struct runner {
    const struct loop *loop;
    struct gate *gate;
    uint8_t *memory; /* owned; NULL unless the loop reads */
    size_t index;
    pthread_t thread;
    double rate;
    int result; /* keeps the work alive */
};

/* ---- loops */

static int dot_ref(size_t n, const uint8_t *memory)
{
    (void)memory;
    int32_t acc[REF_CHAINS] = {0};
    int32_t a = 3;
    for (size_t round = 0; round < n; round++) {
        __asm__ volatile("" : "+r"(a));
        for (int i = 0; i < REF_CHAINS; i++)
            acc[i] += a * (i + 1);
    }
    return acc[0] ^ acc[REF_CHAINS - 1];
}

static int fma_ref(size_t n, const uint8_t *memory)
{
    (void)memory;
    float acc[REF_CHAINS] = {0};
    for (size_t round = 0; round < n; round++)
        for (int i = 0; i < REF_CHAINS; i++)
            acc[i] = acc[i] * 0.999f + 0.001f;
    return (int)(acc[0] + acc[REF_CHAINS - 1]);
}

/* Eight sums side by side, so that neither the adds nor their latency are the limit. */
static int read_memory(size_t n, const uint8_t *memory)
{
    uint64_t sum[8] = {0};
    for (size_t round = 0; round < n; round++) {
        const uint8_t *chunk = memory + round * READ_CHUNK_BYTES;
        for (size_t at = 0; at < READ_CHUNK_BYTES; at += sizeof sum) {
            uint64_t words[8];
            __builtin_prefetch(chunk + at + PREFETCH_BYTES); /* past the end: no harm */
            memcpy(words, chunk + at, sizeof words);
            for (int i = 0; i < 8; i++)
                sum[i] ^= words[i];
        }
    }
    return (int)(sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7]);
}

/* ---- threads */

/* Returns the units that were done. */
static double run_round(struct runner *r)
{
    const struct loop *loop = r->loop;
    if (loop->work) {
        loop->work->round(loop->work->ctx, r->index);
        return loop->work->units;
    }
    r->result ^= loop->round(loop->n, r->memory);
    return loop->per_round * (double)loop->n;
}

static void *run(void *argument)
{
    struct runner *r = argument;
    pthread_mutex_lock(&r->gate->mutex);
    const bool cancelled = r->gate->cancelled;
    pthread_mutex_unlock(&r->gate->mutex);
    if (cancelled)
        return NULL;
    const int64_t begin = clock_thread_us();
    int64_t now = begin;
    double units = 0;
    while (now - begin < RUN_US) {
        units += run_round(r);
        now = clock_thread_us();
    }
    r->rate = units / ((double)(now - begin) * 1e-6);
    return NULL;
}

/* Memory that is present, and in huge pages where the system gives them. */
static uint8_t *open_memory(void)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 2 << 20, READ_BYTES) != 0)
        return NULL;
    (void)madvise(memory, READ_BYTES, MADV_HUGEPAGE);
    memset(memory, 0x5a, READ_BYTES);
    return memory;
}

/* Starts what it can and waits for it. */
static int run_threads(struct runner *runners, size_t n, double *rate, struct err *e)
{
    struct gate gate = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    size_t n_started = 0;
    pthread_mutex_lock(&gate.mutex);
    for (; n_started < n; n_started++) {
        runners[n_started].gate = &gate;
        if (pthread_create(&runners[n_started].thread, NULL, run, &runners[n_started]) != 0)
            break;
    }
    gate.cancelled = n_started < n;
    pthread_mutex_unlock(&gate.mutex);
    *rate = 0;
    for (size_t i = 0; i < n_started; i++) {
        pthread_join(runners[i].thread, NULL);
        *rate += runners[i].rate;
    }
    pthread_mutex_destroy(&gate.mutex);
    if (n_started < n)
        return ERR_SET(e, ERR_STATE, "only %zu of %zu threads could be started", n_started, n);
    return 0;
}

static int measure(const struct loop *loop, size_t n_threads, double *rate, struct err *e)
{
    ASSERT(n_threads >= 1 && n_threads <= PEAK_THREADS_MAX);
    int code = 0;
    struct runner *runners = calloc(n_threads, sizeof *runners);
    if (!runners)
        return ERR_SET(e, ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < n_threads; i++) {
        runners[i].loop = loop;
        runners[i].index = i;
        if (!loop->reads_memory)
            continue;
        runners[i].memory = open_memory();
        if (!runners[i].memory) {
            code = ERR_SET(e, ERR_NOMEM, "no memory to measure the read rate of");
            goto out;
        }
    }
    code = run_threads(runners, n_threads, rate, e);
out:
    for (size_t i = 0; i < n_threads; i++)
        free(runners[i].memory);
    free(runners);
    return code;
}

/* A build of plain C alone has one loop, whatever it is asked for. */
static int measure_one_of(const struct loop *loops, size_t n_loops, enum kernels_isa isa,
                          size_t n_threads, double *rate, struct err *e)
{
    return measure(&loops[(size_t)isa < n_loops ? isa : KERNELS_REF], n_threads, rate, e);
}

int peak_int8(enum kernels_isa isa, size_t n_threads, double *rate, struct err *e)
{
    static const struct loop loops[] = {
        [KERNELS_REF] = {.round = dot_ref, .n = 1 << 20, .per_round = 2 * REF_CHAINS},
#ifndef SHEAF_REF_ONLY
        [KERNELS_AVX2] = {.round = peak_dot_avx2,
                          .n = 1 << 18,
                          .per_round = 2 * 32 * PEAK_DOT_CHAINS_AVX2},
        [KERNELS_AVX512] = {.round = peak_dot_avx512,
                            .n = 1 << 18,
                            .per_round = 2 * 64 * PEAK_CHAINS_AVX512},
#endif
    };
    return measure_one_of(loops, sizeof loops / sizeof loops[0], isa, n_threads, rate, e);
}

int peak_int16(enum kernels_isa isa, size_t n_threads, double *rate, struct err *e)
{
    static const struct loop loops[] = {
        [KERNELS_REF] = {.round = dot_ref, .n = 1 << 20, .per_round = 2 * REF_CHAINS},
#ifndef SHEAF_REF_ONLY
        [KERNELS_AVX2] = {.round = peak_dot_words_avx2,
                          .n = 1 << 18,
                          .per_round = 2 * 16 * PEAK_DOT_CHAINS_AVX2},
        [KERNELS_AVX512] = {.round = peak_dot_words_avx512,
                            .n = 1 << 18,
                            .per_round = 2 * 32 * PEAK_CHAINS_AVX512},
#endif
    };
    return measure_one_of(loops, sizeof loops / sizeof loops[0], isa, n_threads, rate, e);
}

int peak_f32(enum kernels_isa isa, size_t n_threads, double *rate, struct err *e)
{
    static const struct loop loops[] = {
        [KERNELS_REF] = {.round = fma_ref, .n = 1 << 20, .per_round = 2 * REF_CHAINS},
#ifndef SHEAF_REF_ONLY
        [KERNELS_AVX2] = {.round = peak_fma_avx2,
                          .n = 1 << 18,
                          .per_round = 2 * 8 * PEAK_FMA_CHAINS_AVX2},
        [KERNELS_AVX512] = {.round = peak_fma_avx512,
                            .n = 1 << 18,
                            .per_round = 2 * 16 * PEAK_CHAINS_AVX512},
#endif
    };
    return measure_one_of(loops, sizeof loops / sizeof loops[0], isa, n_threads, rate, e);
}

int peak_read(size_t n_threads, double *rate, struct err *e)
{
    const struct loop loop = {.round = read_memory,
                              .n = READ_BYTES / READ_CHUNK_BYTES,
                              .per_round = READ_CHUNK_BYTES,
                              .reads_memory = true};
    return measure(&loop, n_threads, rate, e);
}

int peak_work_rate(const struct peak_work *work, size_t n_threads, double *rate, struct err *e)
{
    const struct loop loop = {.work = work};
    return measure(&loop, n_threads, rate, e);
}
