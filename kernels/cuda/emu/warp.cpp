/*
 * What the 32 lanes of a warp do together: all lay out what they bring, the last to arrive does
 * the work, and each takes its part. Fragments lie as PTX has them: with g = lane / 4 and
 * t = lane % 4, A's registers hold (row g, columns 2t, 2t + 1), (row g + 8, the same), (row g,
 * columns 2t + 8, 2t + 9), (row g + 8, the same); B's (rows 2t, 2t + 1, column g), (rows 2t +
 * 8, 2t + 9, column g); D's (row g, columns 2t, 2t + 1), (row g + 8, the same).
 */
#include <string.h>

#include "block_int.h"

/* The lanes' slots of the coming meeting; has to be asked for before it. */
static lane_slot *slots_of(const thread *t)
{
    return t->warp->slots[t->warp->set];
}

void emu_sync_warp(emu_place place)
{
    warp_meet(WAIT_WARP, place);
}

uint32_t emu_shuffle(uint32_t bits, unsigned source, emu_place place)
{
    const thread *t = thread_now();
    lane_slot *slots = slots_of(t);
    slots[t->linear % EMU_WARP].bits = bits;
    warp_meet(WAIT_SHUFFLE, place);
    return slots[source].bits;
}

uint32_t emu_vote(bool predicate, emu_place place)
{
    const thread *t = thread_now();
    lane_slot *slots = slots_of(t);
    slots[t->linear % EMU_WARP].bits = predicate;
    warp_meet(WAIT_VOTE, place);
    uint32_t votes = 0;
    for (unsigned lane = 0; lane < EMU_WARP; lane++)
        votes |= slots[lane].bits << lane;
    return votes;
}

/* ------------------------------------------------------------------ matrices */

/* Register i of a lane: a pair of matrix i, from one row, or one column when transposed. */
static void load_matrices(lane_slot *slots, bool transposed)
{
    for (unsigned i = 0; i < 4; i++) {
        uint16_t matrix[8][8];
        for (unsigned row = 0; row < 8; row++)
            memcpy(matrix[row], slots[8 * i + row].load.row, 16);
        for (unsigned lane = 0; lane < EMU_WARP; lane++) {
            const unsigned g = lane / 4, t = 2 * (lane % 4);
            const uint16_t first = transposed ? matrix[t][g] : matrix[g][t];
            const uint16_t second = transposed ? matrix[t + 1][g] : matrix[g][t + 1];
            slots[lane].load.r[i] = first | (uint32_t)second << 16;
        }
    }
}

/* A lane reads what others pointed to: a barrier has to stand between their writes and this. */
static void note_rows_read(const lane_slot *slots, unsigned lane, bool transposed,
                           const void *pc)
{
    const unsigned g = lane / 4, t = 2 * (lane % 4);
    for (unsigned i = 0; race_of_launches && i < 4; i++) {
        const lane_slot *matrix = slots + 8 * i;
        if (!transposed) {
            race_note((const char *)matrix[g].load.row + 2 * t, 4, ACCESS_READ, pc);
            continue;
        }
        race_note((const char *)matrix[t].load.row + 2 * g, 2, ACCESS_READ, pc);
        race_note((const char *)matrix[t + 1].load.row + 2 * g, 2, ACCESS_READ, pc);
    }
}

void emu_load_matrix(uint32_t r[4], const void *row, bool transposed, emu_place place)
{
    const thread *t = thread_now();
    lane_slot *slots = slots_of(t), *mine = &slots[t->linear % EMU_WARP];
    if ((uintptr_t)row % 16 != 0)
        emu_fail(place, "load_matrix_x4() of %p, which is not 16-byte aligned", row);
    shared_check_read(row, 16, place, __builtin_return_address(0));
    mine->load.row = row;
    if (warp_meet(WAIT_LOAD_MATRIX, place))
        load_matrices(slots, transposed);
    note_rows_read(slots, t->linear % EMU_WARP, transposed, __builtin_return_address(0));
    memcpy(r, mine->load.r, sizeof(mine->load.r));
}

typedef float row_of_8 __attribute__((vector_size(32)));

struct fragments {
    float a[16][16];
    union {
        row_of_8 rows[16];
        float at[16][8];
    } b, d;
};

static inline float upper(uint32_t pair)
{
    return __builtin_bit_cast(float, pair & 0xffff0000);
}

static inline float lower(uint32_t pair)
{
    return __builtin_bit_cast(float, pair << 16);
}

static void gather(const lane_slot *slots, fragments *f)
{
    for (unsigned lane = 0; lane < EMU_WARP; lane++) {
        const unsigned g = lane / 4, t = lane % 4;
        const lane_slot *s = &slots[lane];
        for (unsigned i = 0; i < 4; i++) {
            float *pair = &f->a[g + i % 2 * 8][2 * t + i / 2 * 8];
            pair[0] = lower(s->mma.a[i]);
            pair[1] = upper(s->mma.a[i]);
            f->d.at[g + i / 2 * 8][2 * t + i % 2] = s->mma.d[i];
        }
        for (unsigned i = 0; i < 2; i++) {
            f->b.at[2 * t + i * 8][g] = lower(s->mma.b[i]);
            f->b.at[2 * t + i * 8 + 1][g] = upper(s->mma.b[i]);
        }
    }
}

static inline __attribute__((always_inline)) void multiply_rows(fragments *f)
{
    for (unsigned row = 0; row < 16; row += 4) {
        row_of_8 d0 = f->d.rows[row], d1 = f->d.rows[row + 1];
        row_of_8 d2 = f->d.rows[row + 2], d3 = f->d.rows[row + 3];
        for (unsigned k = 0; k < 16; k++) {
            const row_of_8 b = f->b.rows[k];
            d0 += f->a[row][k] * b;
            d1 += f->a[row + 1][k] * b;
            d2 += f->a[row + 2][k] * b;
            d3 += f->a[row + 3][k] * b;
        }
        f->d.rows[row] = d0, f->d.rows[row + 1] = d1;
        f->d.rows[row + 2] = d2, f->d.rows[row + 3] = d3;
    }
}

/* The same additions in the same order: speed only. */
#ifdef __x86_64__
__attribute__((target("avx2"))) static void multiply_avx2(fragments *f)
{
    multiply_rows(f);
}
#endif

static void multiply(lane_slot *slots)
{
    fragments f;
    gather(slots, &f);
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2"))
        multiply_avx2(&f);
    else
#endif
        multiply_rows(&f);
    for (unsigned lane = 0; lane < EMU_WARP; lane++)
        for (unsigned i = 0; i < 4; i++)
            slots[lane].mma.d[i] = f.d.at[lane / 4 + i / 2 * 8][2 * (lane % 4) + i % 2];
}

void emu_mma_16816(float d[4], const uint32_t a[4], const uint32_t b[2], emu_place place)
{
    const thread *t = thread_now();
    lane_slot *slots = slots_of(t), *mine = &slots[t->linear % EMU_WARP];
    memcpy(mine->mma.a, a, sizeof(mine->mma.a));
    memcpy(mine->mma.b, b, sizeof(mine->mma.b));
    memcpy(mine->mma.d, d, sizeof(mine->mma.d));
    if (warp_meet(WAIT_MMA, place))
        multiply(slots);
    memcpy(d, mine->mma.d, sizeof(mine->mma.d));
}
