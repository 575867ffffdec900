/*
 * What kernels take for granted of single instructions (port.cuh), on the emulation and on a
 * device alike: layouts as the PTX ISA documents them, numbers that are exact, and what the
 * exact mode asks of matrix units. Where one of these fails, the tests of whole operations need
 * not be looked at.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {
#include <cmocka.h>
}

#include "arrays.h"
#include "emu/emu.h"
#include "matrices.h"

enum { LANES = 32, M = 16, N = 8, K = 16 };

/* ------------------------------------------------------------------ products of matrices */

struct fragments {
    uint32_t a[4], b[2];
    float d[4];
};

KERNEL void multiply_fragments(fragments *lanes, bool is_first)
{
    fragments f = lanes[threadIdx.x];
    if (is_first)
        mma_16816_first(f.d, f.a, f.b);
    else
        mma_16816(f.d, f.a, f.b);
    lanes[threadIdx.x] = f;
}

struct matrices {
    float a[M][K], b[K][N], d[M][N];
};

/* PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type": the place of element
 * i of a lane. */
struct place {
    int row, column;
};

static place place_of_a(int lane, int i)
{
    const int group = lane >> 2, in_group = lane % 4;
    return {i < 2 || (4 <= i && i < 6) ? group : group + 8,
            in_group * 2 + (i & 1) + (i < 4 ? 0 : 8)};
}

static place place_of_b(int lane, int i)
{
    const int group = lane >> 2, in_group = lane % 4;
    return {in_group * 2 + (i & 1) + (i < 2 ? 0 : 8), group};
}

static place place_of_d(int lane, int i)
{
    const int group = lane >> 2, in_group = lane % 4;
    return {i < 2 ? group : group + 8, in_group * 2 + (i & 1)};
}

static uint32_t pair_of(float low, float high)
{
    return to_bf16(low).bits | (uint32_t)to_bf16(high).bits << 16;
}

static float at_a(const matrices &m, int lane, int i)
{
    const place p = place_of_a(lane, i);
    return m.a[p.row][p.column];
}

static float at_b(const matrices &m, int lane, int i)
{
    const place p = place_of_b(lane, i);
    return m.b[p.row][p.column];
}

/* m.d = what the device makes of it. */
static void multiply(matrices *m, bool is_first = false)
{
    host_array<fragments> lanes(LANES);
    for (int lane = 0; lane < LANES; lane++) {
        fragments *f = &lanes[(size_t)lane];
        for (int i = 0; i < 8; i += 2)
            f->a[i / 2] = pair_of(at_a(*m, lane, i), at_a(*m, lane, i + 1));
        for (int i = 0; i < 4; i += 2)
            f->b[i / 2] = pair_of(at_b(*m, lane, i), at_b(*m, lane, i + 1));
        for (int i = 0; i < 4; i++)
            f->d[i] = m->d[place_of_d(lane, i).row][place_of_d(lane, i).column];
    }
    const device_array<fragments> there(lanes);
    LAUNCH(multiply_fragments, 1, LANES, 0, NULL, there.at, is_first);
    const host_array<fragments> got = there.read();
    assert_null(last_error());
    for (int lane = 0; lane < LANES; lane++)
        for (int i = 0; i < 4; i++)
            m->d[place_of_d(lane, i).row][place_of_d(lane, i).column] = got[(size_t)lane].d[i];
}

/* In units of 1/4 from -2 to 2: sums of their products are exact in any order. */
static float some_quarter(size_t i)
{
    return (float)((int)(rng_bits(1, 0, i) % 17) - 8) / 4;
}

static matrices some_matrices(size_t seed)
{
    matrices m;
    float *all = &m.a[0][0];
    for (size_t i = 0; i < sizeof m / sizeof(float); i++)
        all[i] = some_quarter(seed * 1000 + i);
    return m;
}

static bool is_product(const matrices &m, const matrices &got, bool is_first)
{
    for (int row = 0; row < M; row++)
        for (int column = 0; column < N; column++) {
            double want = is_first ? 0 : (double)m.d[row][column];
            for (int k = 0; k < K; k++)
                want += (double)m.a[row][k] * (double)m.b[k][column];
            if ((double)got.d[row][column] != want)
                return differs("row %d, column %d: %g, not %g\n", row, column,
                               (double)got.d[row][column], want);
        }
    return true;
}

static void fragments_multiply_as_documented(void **)
{
    for (bool is_first : {false, true})
        for (size_t seed = 0; seed < 4; seed++) {
            const matrices m = some_matrices(seed);
            matrices got = m;
            multiply(&got, is_first);
            assert_true(is_product(m, got, is_first));
        }
}

static void rows_that_are_swapped_are_seen(void **)
{
    const matrices m = some_matrices(7);
    matrices got = m;
    for (int k = 0; k < K; k++) {
        got.a[3][k] = m.a[11][k];
        got.a[11][k] = m.a[3][k];
    }
    multiply(&got);
    ASSERT_DIFFERS(is_product(m, got, false));
}

/* Floats of every kind, so that what a unit cuts off would show. */
static matrices rough_matrices(size_t seed)
{
    matrices m;
    float *all = &m.a[0][0];
    for (size_t i = 0; i < sizeof m / sizeof(float); i++)
        all[i] = ldexpf(random_float(seed, i, 1.0f), (int)(rng_bits(2, seed, i) % 20) - 10);
    return m;
}

/* A page that a row does not see adds weights of zero to it. */
static void products_of_zeros_leave_a_sum_its_bits(void **)
{
    for (size_t seed = 0; seed < 16; seed++)
        for (bool is_a : {false, true}) {
            matrices m = rough_matrices(seed);
            memset(is_a ? (void *)m.a : (void *)m.b, 0, is_a ? sizeof m.a : sizeof m.b);
            const matrices before = m;
            multiply(&m);
            assert_memory_equal(m.d, before.d, sizeof m.d);
        }
}

/* The exact mode: neither the place of a row or column nor what stands beside it shows. */
static void rows_and_columns_are_alike(void **)
{
    for (size_t seed = 0; seed < 16; seed++) {
        const matrices one = rough_matrices(seed);
        matrices rows = one, alone = one;
        for (int row = 0; row < M; row++) {
            memcpy(rows.a[row], one.a[5], sizeof one.a[5]);
            memcpy(rows.d[row], one.d[5], sizeof one.d[5]);
        }
        matrices columns = rows;
        for (int k = 0; k < K; k++)
            for (int column = 0; column < N; column++)
                columns.b[k][column] = one.b[k][3];
        for (int row = 0; row < M; row++)
            for (int column = 0; column < N; column++)
                columns.d[row][column] = one.d[5][3];
        multiply(&alone);
        multiply(&rows);
        multiply(&columns);
        for (int row = 0; row < M; row++) {
            assert_memory_equal(rows.d[row], alone.d[5], sizeof alone.d[5]);
            for (int column = 0; column < N; column++)
                assert_memory_equal(&columns.d[row][column], &alone.d[5][3], sizeof(float));
        }
    }
}

/* ------------------------------------------------------------------ matrices from memory */

static void matrices_are_loaded_as_documented(void **)
{
    const device_array<loaded> out(LANES);
    LAUNCH(load_matrices_of, 1, LANES, 0, NULL, out.at);
    const host_array<loaded> got = out.read();
    for (uint32_t lane = 0; lane < LANES; lane++)
        for (uint32_t m = 0; m < 4; m++) {
            const uint32_t row = lane / 4, column = 2 * (lane % 4);
            const uint32_t plain = 100 * m + 10 * row + column;
            const uint32_t turned = 100 * m + 10 * column + row;
            assert_int_equal(got[lane].plain[m], plain | (plain + 1) << 16);
            assert_int_equal(got[lane].transposed[m], turned | (turned + 10) << 16);
        }
}

/* Lane i copies piece i of each half where bit i is set. */
KERNEL void copy_wanted(const uint32_t *from, uint32_t wanted, uint32_t *to)
{
    SHARED(uint32_t, pieces, 2 * LANES * 4);
    const unsigned lane = threadIdx.x;
    for (unsigned i = lane; i < 2 * LANES * 4; i += LANES)
        pieces[i] = 7;
    sync_warp();
    const bool is_wanted = wanted >> lane & 1;
    copy_async_16_if(is_wanted, pieces + 4 * lane, from + 4 * lane);
    copy_async_16_near_if(is_wanted, pieces + 4 * (LANES + lane), from + 4 * (LANES + lane));
    copy_async_commit();
    copy_async_wait<0>();
    sync_warp();
    for (unsigned i = lane; i < 2 * LANES * 4; i += LANES)
        to[i] = pieces[i];
}

static void only_wanted_pieces_are_copied(void **)
{
    host_array<uint32_t> from(2 * LANES * 4);
    for (size_t i = 0; i < from.size(); i++)
        from[i] = (uint32_t)(1000 + i);
    const device_array<uint32_t> there(from), to(from.size());
    for (uint32_t wanted : {0u, 0xffffffffu, 0x80000001u, 0x12345678u}) {
        LAUNCH(copy_wanted, 1, LANES, 0, NULL, there.at, wanted, to.at);
        const host_array<uint32_t> got = to.read();
        for (size_t i = 0; i < from.size(); i++)
            assert_int_equal(got[i], wanted >> (i / 4 % LANES) & 1 ? from[i] : 7);
    }
}

/* ------------------------------------------------------------------ numbers */

KERNEL void multiply_and_add(const uint32_t *a, uint32_t b, uint32_t c, uint32_t *out)
{
    out[threadIdx.x] = multiply_add_pairs(a[threadIdx.x], b, c);
}

/* Codes of stored weights are subnormal numbers of bfloat16 here, which must count: by 2^127
 * they become code / 64, and the sum with -2 is exact. */
static void codes_become_numbers(void **)
{
    host_array<uint32_t> codes(256);
    for (uint32_t i = 0; i < codes.size(); i++)
        codes[i] = i | (255 - i) << 16;
    const device_array<uint32_t> there(codes), out(codes.size());
    for (bool has_zero : {false, true}) {
        const uint32_t power = pair_of(0x1p127f, 0x1p127f);
        const uint32_t added = has_zero ? pair_of(-2, -2) : 0;
        LAUNCH(multiply_and_add, 1, 256, 0, NULL, there.at, power, added, out.at);
        const host_array<uint32_t> got = out.read();
        for (int i = 0; i < 256; i++) {
            const float low = (float)(i - (has_zero ? 128 : 0)) / 64;
            const float high = (float)(255 - i - (has_zero ? 128 : 0)) / 64;
            assert_true(to_float(bf16{(uint16_t)got[(size_t)i]}) == low);
            assert_true(to_float(bf16{(uint16_t)(got[(size_t)i] >> 16)}) == high);
        }
    }
}

KERNEL void round_all(const float *x, bf16 *y)
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = to_bf16(x[i]);
}

/* The two neighbours in bfloat16, as numbers; of two that are as near, the even one. */
static uint16_t nearest_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint16_t low = (uint16_t)(bits >> 16);
    const double value = fabs((double)x);
    const double below = (double)fabsf(to_float(bf16{low}));
    const double above =
        (low & 0x7fff) == 0x7f7f ? 0x1p128 : (double)fabsf(to_float(bf16{(uint16_t)(low + 1)}));
    const bool is_up =
        value - below > above - value || (value - below == above - value && (low & 1) != 0);
    return (uint16_t)(low + is_up);
}

static void bfloat16_is_rounded_to_the_nearest(void **)
{
    enum { BLOCKS = 256, THREADS = 256 };
    host_array<float> x(BLOCKS * THREADS);
    for (size_t i = 0; i < x.size(); i++) {
        uint32_t bits = (uint32_t)rng_bits(3, 0, i);
        bits = i % 3 == 0 ? (bits & 0xffff0000u) | 0x8000 : bits; /* halfway */
        memcpy(&x[i], &bits, sizeof bits);
    }
    const device_array<float> there(x);
    const device_array<bf16> out(x.size());
    LAUNCH(round_all, BLOCKS, THREADS, 0, NULL, there.at, out.at);
    const host_array<bf16> got = out.read();
    for (size_t i = 0; i < x.size(); i++)
        if (isnan(x[i]))
            assert_true(isnan(to_float(got[i])));
        else
            assert_int_equal(got[i].bits,
                             isinf(x[i]) ? (x[i] > 0 ? 0x7f80 : 0xff80) : nearest_bf16(x[i]));
}

KERNEL void widen_halves(float *y)
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = half_bits_to_float((uint16_t)i);
}

static void every_half_is_its_number(void **)
{
    const device_array<float> out(1 << 16);
    LAUNCH(widen_halves, 256, 256, 0, NULL, out.at);
    host_array<float> want(1 << 16);
    for (size_t i = 0; i < want.size(); i++)
        want[i] = quant_f16_to_f32((uint16_t)i);
    assert_true(same_floats("halves", want.data(), out.read().data(), want.size()));
}

KERNEL void powers_of(const float *x, float *y)
{
    y[threadIdx.x] = fast_exp2(x[threadIdx.x]);
}

/* To fade by nothing changes nothing, and what is not seen has no weight: exactly. */
static void powers_of_two_are_near_and_some_are_exact(void **)
{
    host_array<float> x = {0.0f, -0.0f, -INFINITY, -200.0f, NAN};
    for (size_t i = x.size(); i < 256; i++)
        x.push_back(random_float(4, i, 60.0f) - 60.0f);
    const device_array<float> there(x), out(x.size());
    LAUNCH(powers_of, 1, 256, 0, NULL, there.at, out.at);
    const host_array<float> got = out.read();
    assert_true(got[0] == 1.0f && got[1] == 1.0f && isnan(got[4]));
    for (size_t i : {2, 3})
        assert_true(got[i] == 0.0f && !signbit(got[i]));
    for (size_t i = 5; i < x.size(); i++) {
        const double want = exp2((double)x[i]);
        assert_true(is_near("power", i, want, (double)got[i], want * 0x1p-21));
    }
}

/* ------------------------------------------------------------------ lanes */

KERNEL void talk(uint32_t *votes, int32_t *from, int32_t *across)
{
    const int lane = (int)threadIdx.x;
    votes[lane] = vote(lane % 3 == 0);
    from[lane] = shuffle(100 + lane, (lane * 7 + 3) % LANES);
    across[lane] = shuffle_xor(100 + lane, 5);
}

static void lanes_hear_each_other(void **)
{
    const device_array<uint32_t> votes(LANES);
    const device_array<int32_t> from(LANES), across(LANES);
    LAUNCH(talk, 1, LANES, 0, NULL, votes.at, from.at, across.at);
    const host_array<uint32_t> got_votes = votes.read();
    const host_array<int32_t> got_from = from.read(), got_across = across.read();
    for (int lane = 0; lane < LANES; lane++) {
        assert_int_equal(got_votes[(size_t)lane], 0x49249249u);
        assert_int_equal(got_from[(size_t)lane], 100 + (lane * 7 + 3) % LANES);
        assert_int_equal(got_across[(size_t)lane], 100 + (lane ^ 5));
    }
    assert_null(last_error());
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fragments_multiply_as_documented),
        cmocka_unit_test(rows_that_are_swapped_are_seen),
        cmocka_unit_test(products_of_zeros_leave_a_sum_its_bits),
        cmocka_unit_test(rows_and_columns_are_alike),
        cmocka_unit_test(matrices_are_loaded_as_documented),
        cmocka_unit_test(only_wanted_pieces_are_copied),
        cmocka_unit_test(codes_become_numbers),
        cmocka_unit_test(bfloat16_is_rounded_to_the_nearest),
        cmocka_unit_test(every_half_is_its_number),
        cmocka_unit_test(powers_of_two_are_near_and_some_are_exact),
        cmocka_unit_test(lanes_hear_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
