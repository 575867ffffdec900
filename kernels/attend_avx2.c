#include "lanes_avx2.h"

/* 6 accumulators are 12 of 16 registers: 6 rows by 16 keys, 6 rows by 16 dims. */
#define ATTEND_TILE_ROWS 6
#define ATTEND_ACCS      6
#include "attend_lanes.h"

#define TILE(type, n_rows)                                                                     \
    static void tile_##type##_##n_rows(const struct attend *a, size_t begin, size_t end,       \
                                       struct attend_tile *tile)                               \
    {                                                                                          \
        attend_tile_pages(type, n_rows, a, begin, end, tile);                                  \
    }

TILE(KV_F32, 1)
TILE(KV_F32, 2)
TILE(KV_F32, 3)
TILE(KV_F32, 4)
TILE(KV_F32, 6)
TILE(KV_BF16, 1)
TILE(KV_BF16, 2)
TILE(KV_BF16, 3)
TILE(KV_BF16, 4)
TILE(KV_BF16, 6)
TILE(KV_INT8, 1)
TILE(KV_INT8, 2)
TILE(KV_INT8, 3)
TILE(KV_INT8, 4)
TILE(KV_INT8, 6)

void attend_avx2(const struct attend *a)
{
    static attend_tile_fn *const tiles[][ATTEND_TILE_ROWS + 1] = {
        [KV_F32] = {[1] = tile_KV_F32_1,
                    [2] = tile_KV_F32_2,
                    [3] = tile_KV_F32_3,
                    [4] = tile_KV_F32_4,
                    [6] = tile_KV_F32_6},
        [KV_BF16] = {[1] = tile_KV_BF16_1,
                     [2] = tile_KV_BF16_2,
                     [3] = tile_KV_BF16_3,
                     [4] = tile_KV_BF16_4,
                     [6] = tile_KV_BF16_6},
        [KV_INT8] = {[1] = tile_KV_INT8_1,
                     [2] = tile_KV_INT8_2,
                     [3] = tile_KV_INT8_3,
                     [4] = tile_KV_INT8_4,
                     [6] = tile_KV_INT8_6},
    };
    /* By measurement: a tile of one row takes three quarters of the time of one of three.
     */
    static const uint8_t first_tile[ATTEND_TILE_ROWS + 2] = {0, 1, 2, 3, 4, 3, 6, 4};
    attend_all(a, tiles[a->kv_type], first_tile);
}

void attend_finish_avx2(const struct attend *a, float *const *out)
{
    attend_finish_rows(a, out);
}
