#include <stdlib.h>

#include "block_int.h"

/* Orders are drawn ahead and used many times, for a draw costs more than a switch. */
enum { N_ORDERS = 8, USES = 64 };

struct orders {
    uint32_t n, n_uses;
    uint16_t numbers[N_ORDERS][EMU_THREADS_MAX];
};

static struct {
    bool is_set;
    uint64_t seed, state;
    orders of_warps, of_blocks;
} chance;

void emu_set_seed(uint64_t seed)
{
    chance.is_set = true;
    chance.seed = seed;
    chance.state = seed * 0x9e3779b97f4a7c15u;
    chance.of_warps.n = chance.of_blocks.n = 0;
}

void chance_begin()
{
    const char *text = getenv("SHEAF_EMU_SEED");
    if (!chance.is_set)
        emu_set_seed(text && *text ? strtoull(text, nullptr, 10) : 1);
}

/* splitmix64 */
uint32_t chance_draw(uint32_t n)
{
    if (chance.seed == 0)
        return 0;
    uint64_t z = chance.state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)(((z >> 32) * n) >> 32);
}

static void draw(orders *o, uint32_t n)
{
    o->n = n;
    o->n_uses = 0;
    for (unsigned k = 0; k < N_ORDERS; k++) {
        uint16_t *numbers = o->numbers[k];
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t j = chance.seed ? chance_draw(i + 1) : i;
            numbers[i] = numbers[j];
            numbers[j] = (uint16_t)i;
        }
    }
}

const uint16_t *chance_order(uint32_t n)
{
    orders *o = n == EMU_WARP ? &chance.of_warps : &chance.of_blocks;
    if (o->n != n || o->n_uses++ == USES)
        draw(o, n);
    return o->numbers[chance_draw(N_ORDERS)];
}
