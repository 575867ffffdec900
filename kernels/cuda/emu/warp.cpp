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

static void load_matrices(lane_slot *slots, bool transposed)
{
    for (unsigned lane = 0; lane < EMU_WARP; lane++) {
        for (unsigned i = 0; i < 4; i++) {
            const lane_slot *rows = &slots[8 * i];
            const unsigned g = lane / 4, t = lane % 4;
            uint16_t pair[2];
            for (unsigned j = 0; j < 2; j++) {
                const unsigned row = transposed ? 2 * t + j : g;
                const unsigned column = transposed ? g : 2 * t + j;
                memcpy(&pair[j], (const uint16_t *)rows[row].load.row + column, 2);
            }
            slots[lane].load.r[i] = pair[0] | (uint32_t)pair[1] << 16;
        }
    }
}

void emu_load_matrix(uint32_t r[4], const void *row, bool transposed, emu_place place)
{
    const thread *t = thread_now();
    lane_slot *slots = slots_of(t), *mine = &slots[t->linear % EMU_WARP];
    if ((uintptr_t)row % 16 != 0)
        emu_fail(place, "load_matrix_x4() of %p, which is not 16-byte aligned", row);
    if (!is_shared_memory(row, 16))
        emu_fail(place, "load_matrix_x4() of %p, which is not shared memory of the block", row);
    mine->load.row = row;
    if (warp_meet(WAIT_LOAD_MATRIX, place))
        load_matrices(slots, transposed);
    memcpy(r, mine->load.r, sizeof(mine->load.r));
}

static inline float upper(uint32_t pair)
{
    const uint32_t bits = pair & 0xffff0000;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline float lower(uint32_t pair)
{
    return upper(pair << 16);
}

static void gather_fragments(const lane_slot *slots, float a[16][16], float b[16][8],
                             float d[16][8])
{
    for (unsigned lane = 0; lane < EMU_WARP; lane++) {
        const unsigned g = lane / 4, t = lane % 4;
        const lane_slot *s = &slots[lane];
        for (unsigned i = 0; i < 4; i++) {
            a[g + i % 2 * 8][2 * t + i / 2 * 8] = lower(s->mma.a[i]);
            a[g + i % 2 * 8][2 * t + i / 2 * 8 + 1] = upper(s->mma.a[i]);
            d[g + i / 2 * 8][2 * t + i % 2] = s->mma.d[i];
        }
        for (unsigned i = 0; i < 2; i++) {
            b[2 * t + i * 8][g] = lower(s->mma.b[i]);
            b[2 * t + i * 8 + 1][g] = upper(s->mma.b[i]);
        }
    }
}

static void multiply(lane_slot *slots)
{
    float a[16][16], b[16][8], d[16][8];
    gather_fragments(slots, a, b, d);
    for (unsigned row = 0; row < 16; row++)
        for (unsigned k = 0; k < 16; k++)
            for (unsigned column = 0; column < 8; column++)
                d[row][column] += a[row][k] * b[k][column];
    for (unsigned lane = 0; lane < EMU_WARP; lane++)
        for (unsigned i = 0; i < 4; i++)
            slots[lane].mma.d[i] = d[lane / 4 + i / 2 * 8][2 * (lane % 4) + i % 2];
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
