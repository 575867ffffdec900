/*
 * The emulation that kernels are tested on (kernels/cuda/emu/): what threads compute together,
 * against the documented layouts and arithmetic in double; memory, copies and errors. What it
 * refuses is in test_emulation_bugs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

extern "C" {
#include <cmocka.h>
}

#include "matrices.h"
#include "namesake_rig.h"
#include "port.cuh"

enum { SEEDS = 5 };

static float *device_floats(size_t n)
{
    return (float *)device_alloc(n * sizeof(float));
}

static void fetch(void *to, const void *device, size_t bytes)
{
    copy_to_host(nullptr, to, device, bytes);
    stream_wait(nullptr);
}

/* ------------------------------------------------------------------ threads together */

/* Each block adds up its numbers: lanes by shuffles, warps through shared memory. */
KERNEL void sum_kernel(const float *x, int n, float *sums)
{
    SHARED(float, partial, 32);
    float sum = 0;
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x)
        sum += x[(size_t)blockIdx.x * (size_t)n + (size_t)i];
    for (int mask = 16; mask; mask /= 2)
        sum += shuffle_xor(sum, mask);
    if (threadIdx.x % 32 == 0)
        partial[threadIdx.x / 32] = sum;
    sync_block();
    if (threadIdx.x != 0)
        return;
    sum = 0;
    for (unsigned i = 0; i < blockDim.x / 32; i++)
        sum += partial[i];
    sums[blockIdx.x] = sum;
}

static void blocks_add_up_their_numbers(void **)
{
    enum { N = 1000, BLOCKS = 7 };
    static float numbers[BLOCKS * N];
    float sums[BLOCKS];
    for (int i = 0; i < BLOCKS * N; i++)
        numbers[i] = (float)(i % 17);
    float *x = device_floats(BLOCKS * N), *y = device_floats(BLOCKS);
    copy_to_device(nullptr, x, numbers, sizeof(numbers));
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        emu_set_seed(seed);
        LAUNCH(sum_kernel, BLOCKS, 128, 0, nullptr, x, N, y);
        fetch(sums, y, sizeof(sums));
        for (int b = 0; b < BLOCKS; b++) {
            int expected = 0;
            for (int i = 0; i < N; i++)
                expected += (b * N + i) % 17;
            assert_int_equal((int)sums[b], expected);
        }
    }
    device_free(x);
    device_free(y);
}

KERNEL void places_kernel(int32_t *visits)
{
    const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    visits[block * (blockDim.x * blockDim.y * blockDim.z) + thread] += 1;
}

static void every_thread_of_every_block_runs_once(void **)
{
    enum { BLOCKS = 3 * 5 * 2, THREADS = 4 * 3 * 7 };
    int32_t visits[BLOCKS * THREADS] = {};
    int32_t *v = (int32_t *)device_alloc(sizeof(visits));
    copy_to_device(nullptr, v, visits, sizeof(visits));
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        emu_set_seed(seed);
        LAUNCH(places_kernel, dim3(3, 5, 2), dim3(4, 3, 7), 0, nullptr, v);
    }
    fetch(visits, v, sizeof(visits));
    for (int i = 0; i < BLOCKS * THREADS; i++)
        assert_int_equal(visits[i], SEEDS);
    device_free(v);
}

struct lanes_out {
    int32_t turned[32];
    uint32_t butterfly[32], odd[32];
    float from_five[32];
};

KERNEL void lanes_kernel(lanes_out *out)
{
    const int lane = (int)threadIdx.x % 32;
    out->turned[lane] = shuffle((int32_t)(100 + lane), lane + 1);
    out->butterfly[lane] = shuffle_xor((uint32_t)lane, 12);
    out->odd[lane] = vote(lane % 2 != 0);
    out->from_five[lane] = shuffle((float)lane + 0.5f, 5);
}

static void lanes_see_what_others_gave(void **)
{
    lanes_out got, *out = (lanes_out *)device_alloc(sizeof(*out));
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        emu_set_seed(seed);
        LAUNCH(lanes_kernel, 1, 32, 0, nullptr, out);
        fetch(&got, out, sizeof(got));
        for (unsigned lane = 0; lane < 32; lane++) {
            assert_int_equal(got.turned[lane], 100 + (lane + 1) % 32);
            assert_int_equal(got.butterfly[lane], lane ^ 12);
            assert_int_equal(got.odd[lane], 0xaaaaaaaa);
            assert_true(got.from_five[lane] == 5.5f);
        }
    }
    device_free(out);
}

KERNEL void atomics_kernel(int32_t *count, float *sum, int32_t *greatest)
{
    atomic_add(count, 1);
    atomic_add(sum, 0.5f);
    atomic_max(greatest, (int32_t)(threadIdx.x * 7 % 128));
}

static void atomics_lose_nothing(void **)
{
    int32_t count = 0, greatest = -5;
    float sum = 0;
    int32_t *c = (int32_t *)device_alloc(4), *g = (int32_t *)device_alloc(4);
    float *s = device_floats(1);
    copy_to_device(nullptr, c, &count, 4);
    copy_to_device(nullptr, g, &greatest, 4);
    copy_to_device(nullptr, s, &sum, 4);
    LAUNCH(atomics_kernel, 3, 128, 0, nullptr, c, s, g);
    fetch(&count, c, 4);
    fetch(&greatest, g, 4);
    fetch(&sum, s, 4);
    assert_int_equal(count, 3 * 128);
    assert_int_equal(greatest, 127);
    assert_true(sum == 192);
    device_free(c);
    device_free(g);
    device_free(s);
}

/* ------------------------------------------------------------------ matrices */

/* As PTX documents m16n8k16 for bfloat16: element i of a lane's fragment of A (8 of them, two
 * in a register), B (4) and C or D (4). */
static int a_row(int lane, int i)
{
    return lane / 4 + (i == 0 || i == 1 || i == 4 || i == 5 ? 0 : 8);
}

static int a_column(int lane, int i)
{
    return lane % 4 * 2 + (i & 1) + (i >= 4 ? 8 : 0);
}

static int b_row(int lane, int i)
{
    return lane % 4 * 2 + (i & 1) + (i >= 2 ? 8 : 0);
}

static int b_column(int lane, int)
{
    return lane / 4;
}

static int d_row(int lane, int i)
{
    return lane / 4 + (i < 2 ? 0 : 8);
}

static int d_column(int lane, int i)
{
    return lane % 4 * 2 + (i & 1);
}

struct mma_lane {
    uint32_t a[4], b[2];
    float d[4];
};

KERNEL void mma_kernel(mma_lane *lanes)
{
    mma_lane *mine = &lanes[threadIdx.x];
    mma_16816(mine->d, mine->a, mine->b);
}

/* A quarter from -2 to 2: bfloat16 has it, and sums of products are exact in any order. */
static float some_quarter()
{
    return (float)(rand() % 17 - 8) / 4;
}

static uint32_t bf16_pair(float first, float second)
{
    return to_bf16(first).bits | (uint32_t)to_bf16(second).bits << 16;
}

static void fragments_multiply_as_documented(void **)
{
    float a[16][16], b[16][8], d[16][8];
    mma_lane lanes[32], *device = (mma_lane *)device_alloc(sizeof(lanes));
    for (float *x = &a[0][0]; x < &a[0][0] + 16 * 16; x++)
        *x = some_quarter();
    for (int i = 0; i < 16 * 8; i++) {
        b[i / 8][i % 8] = some_quarter();
        d[i / 8][i % 8] = some_quarter();
    }
    for (int lane = 0; lane < 32; lane++) {
        mma_lane *l = &lanes[lane];
        for (int i = 0; i < 8; i += 2)
            l->a[i / 2] = bf16_pair(a[a_row(lane, i)][a_column(lane, i)],
                                    a[a_row(lane, i + 1)][a_column(lane, i + 1)]);
        for (int i = 0; i < 4; i += 2)
            l->b[i / 2] = bf16_pair(b[b_row(lane, i)][b_column(lane, i)],
                                    b[b_row(lane, i + 1)][b_column(lane, i + 1)]);
        for (int i = 0; i < 4; i++)
            l->d[i] = d[d_row(lane, i)][d_column(lane, i)];
    }
    copy_to_device(nullptr, device, lanes, sizeof(lanes));
    LAUNCH(mma_kernel, 1, 32, 0, nullptr, device);
    fetch(lanes, device, sizeof(lanes));
    for (int lane = 0; lane < 32; lane++) {
        for (int i = 0; i < 4; i++) {
            const int row = d_row(lane, i), column = d_column(lane, i);
            double expected = d[row][column];
            for (int k = 0; k < 16; k++)
                expected += (double)a[row][k] * (double)b[k][column];
            assert_true((double)lanes[lane].d[i] == expected);
        }
    }
    device_free(device);
}

static void matrices_are_loaded_as_documented(void **)
{
    loaded got[32], *out = (loaded *)device_alloc(sizeof(got));
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        emu_set_seed(seed);
        LAUNCH(load_matrices_of, 1, 32, 0, nullptr, out);
        fetch(got, out, sizeof(got));
        for (uint32_t lane = 0; lane < 32; lane++) {
            for (uint32_t m = 0; m < 4; m++) {
                const uint32_t row = lane / 4, column = 2 * (lane % 4);
                const uint32_t plain = 100 * m + 10 * row + column;
                assert_int_equal(got[lane].plain[m], plain | (plain + 1) << 16);
                const uint32_t turned = 100 * m + 10 * column + row;
                assert_int_equal(got[lane].transposed[m], turned | (turned + 10) << 16);
            }
        }
    }
    device_free(out);
}

/* y = the sums of neighbouring fours of x, which come in stages that are copied ahead. */
KERNEL void stages_kernel(const float *x, int n_stages, float *y)
{
    DYNAMIC_SHARED(float, stage); /* two of 4 a thread */
    const int n = 4 * (int)blockDim.x, mine = 4 * (int)threadIdx.x;
    const int opposite = n - 4 - mine;
    copy_async_16(stage + mine, x + mine);
    copy_async_commit();
    for (int s = 0; s < n_stages; s++) {
        if (s + 1 < n_stages)
            copy_async_16(stage + (s + 1) % 2 * n + mine, x + (s + 1) * n + mine);
        copy_async_commit();
        copy_async_wait<1>();
        sync_block();
        const float *now = stage + s % 2 * n + opposite;
        y[(s * n + opposite) / 4] = now[0] + now[1] + now[2] + now[3];
        sync_block();
    }
}

static void copies_come_in_stages(void **)
{
    enum { THREADS = 64, STAGES = 5, N = 4 * THREADS * STAGES };
    static float numbers[N], sums[N / 4];
    for (int i = 0; i < N; i++)
        numbers[i] = (float)i;
    float *x = device_floats(N), *y = device_floats(N / 4);
    copy_to_device(nullptr, x, numbers, sizeof(numbers));
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        emu_set_seed(seed);
        LAUNCH(stages_kernel, 1, THREADS, 2 * 16 * THREADS, nullptr, x, STAGES, y);
        fetch(sums, y, sizeof(sums));
        for (int i = 0; i < N / 4; i++)
            assert_true(sums[i] == (float)(16 * i + 6));
    }
    device_free(x);
    device_free(y);
}

/* ------------------------------------------------------------------ numbers */

static void numbers_become_bfloat16_to_nearest_even(void **)
{
    static const struct {
        float from;
        uint16_t to;
    } cases[] = {{0.0f, 0},
                 {-0.0f, 0x8000},
                 {1.0f, 0x3f80},
                 {0x1.01p0f, 0x3f80},     /* half way, down to even */
                 {0x1.03p0f, 0x3f82},     /* half way, up to even */
                 {0x1.010002p0f, 0x3f81}, /* a little more than half way */
                 {-3.0f, 0xc040},
                 {0x1.fffffep127f, 0x7f80}, /* greater than any: infinity */
                 {INFINITY, 0x7f80},
                 {NAN, 0x7fff}};
    for (const auto &c : cases)
        assert_int_equal(to_bf16(c.from).bits, c.to);
    assert_true(to_float({0xc040}) == -3.0f);
}

static void every_half_float_has_its_value(void **)
{
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        const int exponent = (int)(bits >> 10) & 31, fraction = (int)bits & 1023;
        const double sign = bits >> 15 ? -1 : 1;
        const float got = half_bits_to_float((uint16_t)bits);
        if (exponent == 31 && fraction)
            assert_true(isnan(got));
        else if (exponent == 31)
            assert_true((double)got == sign * (double)INFINITY);
        else if (exponent == 0)
            assert_true((double)got == sign * ldexp(fraction, -24));
        else
            assert_true((double)got == sign * ldexp(1024 + fraction, exponent - 25));
    }
}

/* ------------------------------------------------------------------ memory and errors */

static void fresh_device_memory_is_no_number(void **)
{
    float got[3], *x = device_floats(3);
    fetch(got, x, sizeof(got));
    for (float value : got)
        assert_true(isnan(value));
    device_free(x);
}

static void the_host_sees_a_copy_when_it_has_waited(void **)
{
    const float one = 1;
    float got = 5, *x = device_floats(1);
    stream_t s = stream_open(), other = stream_open();
    copy_to_device(s, x, &one, sizeof(one));
    copy_to_host(s, &got, x, sizeof(got));
    stream_wait(other);
    assert_true(isnan(got));
    stream_wait(s);
    assert_true(got == 1);
    stream_close(s);
    stream_close(other);
    device_free(x);
}

static void an_event_is_waited_for_up_to_where_it_was_recorded(void **)
{
    const float numbers[] = {1, 2};
    float first = 5, second = 5, *x = device_floats(2);
    stream_t s = stream_open();
    event_t e = event_open(), never = event_open();
    copy_to_device(s, x, numbers, sizeof(numbers));
    copy_to_host(s, &first, x, sizeof(first));
    event_wait(never);
    assert_true(isnan(first));
    event_record(e, s);
    copy_to_host(s, &second, x + 1, sizeof(second));
    event_wait(e);
    assert_true(first == 1 && isnan(second));
    event_record(e, s);
    event_wait(e);
    assert_true(second == 2);
    event_close(never);
    event_close(e);
    stream_close(s);
    device_free(x);
}

KERNEL void nothing_kernel()
{
}

static void what_a_device_refuses_is_an_error(void **)
{
    assert_null(last_error());
    LAUNCH(nothing_kernel, 1, 1025, 0, nullptr);
    assert_non_null(strstr(last_error(), "nothing_kernel"));
    assert_null(last_error());
    LAUNCH(nothing_kernel, dim3(1, 65536), 32, 0, nullptr);
    assert_non_null(last_error());
    LAUNCH(nothing_kernel, 0, 32, 0, nullptr);
    assert_non_null(last_error());
    LAUNCH(nothing_kernel, 1, 32, 228 << 10, nullptr);
    assert_non_null(last_error());
    LAUNCH(nothing_kernel, 1, 1024, 227 << 10, nullptr);
    assert_null(last_error());
}

static void a_device_has_no_more_memory_than_it_says(void **)
{
    emu_set_memory(1000);
    void *most = device_alloc(900);
    assert_non_null(most);
    assert_null(device_alloc(101));
    assert_non_null(strstr(last_error(), "101 bytes"));
    device_facts facts;
    assert_true(device_use(0, &facts));
    assert_int_equal(facts.free_bytes, 100);
    device_free(most);
    emu_set_memory((size_t)1 << 30);
    assert_false(device_use(1, &facts));
    assert_non_null(last_error());
}

static void launches_and_copies_are_counted(void **)
{
    const emu_counts before = emu_count();
    float number = 1, *x = device_floats(2);
    LAUNCH(nothing_kernel, 5, 32, 0, nullptr);
    copy_to_device(nullptr, x, &number, 4);
    copy_on_device(nullptr, x + 1, x, 4);
    const emu_counts after = emu_count();
    assert_int_equal(after.launches - before.launches, 1);
    assert_int_equal(after.copies - before.copies, 2);
    assert_int_equal(after.bytes_copied - before.bytes_copied, 8);
    assert_int_equal(after.allocations - before.allocations, 1);
    device_free(x);
}

/* ------------------------------------------------------------------ graphs */

KERNEL void add_kernel(float *x, float more)
{
    x[threadIdx.x] += more;
}

/* x = host; x += more; x[1] = x[0]; host_out = x */
static graph_t capture_sums(stream_t s, float *x, float *in, float *out, float more)
{
    assert_true(capture_begin(s));
    copy_to_device(s, x, in, 8);
    LAUNCH(add_kernel, 1, 2, 0, s, x, more);
    copy_on_device(s, x + 1, x, 4);
    copy_to_host(s, out, x, 8);
    graph_t g = capture_end(s);
    assert_non_null(g);
    return g;
}

static void a_graph_does_what_was_noted_as_often_as_it_is_launched(void **)
{
    stream_t s = stream_open();
    float *x = device_floats(2);
    float *in = (float *)pinned_alloc(8), *out = (float *)pinned_alloc(8);
    float more = 0.5f;
    const emu_counts before = emu_count();
    out[0] = 7;
    graph_t g = capture_sums(s, x, in, out, more);
    more = 100; /* a graph has the arguments of its capture */
    stream_wait(s);
    assert_true(out[0] == 7); /* nothing was done yet */
    assert_int_equal(emu_count().launches, before.launches);
    for (int i = 1; i <= 3; i++) {
        in[0] = (float)i; /* but what pointers point to is of the launch */
        in[1] = 9;
        assert_true(graph_launch(g, s));
        assert_true(isnan(out[0]));
        stream_wait(s);
        assert_true(out[0] == (float)i + 0.5f && out[1] == out[0]);
    }
    const emu_counts after = emu_count();
    assert_int_equal(after.graph_launches - before.graph_launches, 3);
    assert_int_equal(after.launches - before.launches, 3);
    assert_int_equal(after.copies - before.copies, 9);
    graph_free(g);
    stream_close(s);
    assert_null(last_error());
    pinned_free(in);
    pinned_free(out);
    device_free(x);
}

/* Each mistake is an error, spoils its capture and no later one. */
static void what_a_capture_does_not_permit_spoils_it(void **)
{
    stream_t s = stream_open(), other = stream_open();
    float *x = device_floats(2), pageable[2] = {1, 2};
    float *in = (float *)pinned_alloc(8), *out = (float *)pinned_alloc(8);
    for (int mistake = 0; mistake < 8; mistake++) {
        assert_true(capture_begin(s));
        switch (mistake) {
        case 0: assert_null(device_alloc(8)); break;
        case 1: device_free(x); break;
        case 2: stream_wait(s); break;
        case 3: LAUNCH(add_kernel, 1, 2, 0, nullptr, x, 1.0f); break;
        case 4: LAUNCH(add_kernel, 1, 2, 0, other, x, 1.0f); break;
        case 5: copy_to_device(s, x, pageable, 8); break;
        case 6: assert_null(pinned_alloc(8)); break;
        case 7: assert_false(capture_begin(other)); break;
        }
        assert_null(capture_end(s));
        assert_non_null(last_error());
        assert_null(last_error());
        in[0] = in[1] = 1;
        graph_t g = capture_sums(s, x, in, out, 1);
        assert_true(graph_launch(g, s));
        stream_wait(s);
        assert_true(out[0] == 2);
        graph_free(g);
    }
    assert_false(capture_begin(nullptr));
    assert_null(capture_end(s));
    assert_non_null(last_error());
    emu_refuse_graphs(1);
    assert_true(capture_begin(s));
    assert_null(capture_end(s));
    assert_non_null(last_error());
    stream_close(s);
    stream_close(other);
    pinned_free(in);
    pinned_free(out);
    device_free(x);
}

/* ------------------------------------------------------------------ arguments */

struct namesake {
    float *out;
    float number;
};

KERNEL void store_namesake(namesake a)
{
    *a.out = a.number;
}

/* Structs of one name in two files are two, as nvcc has them. */
static void arguments_are_of_their_own_file(void **)
{
    float *out = device_floats(2), got[2];
    namesake_launch(&out[0]);
    const namesake a = {&out[1], 3.0f};
    LAUNCH(store_namesake, 1, 1, 0, nullptr, a);
    fetch(got, out, sizeof got);
    assert_true(got[0] == 136.0f);
    assert_true(got[1] == 3.0f);
    device_free(out);
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arguments_are_of_their_own_file),
        cmocka_unit_test(blocks_add_up_their_numbers),
        cmocka_unit_test(every_thread_of_every_block_runs_once),
        cmocka_unit_test(lanes_see_what_others_gave),
        cmocka_unit_test(atomics_lose_nothing),
        cmocka_unit_test(fragments_multiply_as_documented),
        cmocka_unit_test(matrices_are_loaded_as_documented),
        cmocka_unit_test(copies_come_in_stages),
        cmocka_unit_test(numbers_become_bfloat16_to_nearest_even),
        cmocka_unit_test(every_half_float_has_its_value),
        cmocka_unit_test(fresh_device_memory_is_no_number),
        cmocka_unit_test(the_host_sees_a_copy_when_it_has_waited),
        cmocka_unit_test(an_event_is_waited_for_up_to_where_it_was_recorded),
        cmocka_unit_test(what_a_device_refuses_is_an_error),
        cmocka_unit_test(a_device_has_no_more_memory_than_it_says),
        cmocka_unit_test(launches_and_copies_are_counted),
        cmocka_unit_test(a_graph_does_what_was_noted_as_often_as_it_is_launched),
        cmocka_unit_test(what_a_capture_does_not_permit_spoils_it),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
