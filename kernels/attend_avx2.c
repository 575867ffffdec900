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
TILE(KV_F32, 5)
TILE(KV_F32, 6)
TILE(KV_BF16, 1)
TILE(KV_BF16, 2)
TILE(KV_BF16, 3)
TILE(KV_BF16, 4)
TILE(KV_BF16, 5)
TILE(KV_BF16, 6)

void attend_avx2(const struct attend *a)
{
    static attend_tile_fn *const by_type_and_rows[][ATTEND_TILE_ROWS] = {
        [KV_F32] = {tile_KV_F32_1, tile_KV_F32_2, tile_KV_F32_3, tile_KV_F32_4, tile_KV_F32_5,
                    tile_KV_F32_6},
        [KV_BF16] = {tile_KV_BF16_1, tile_KV_BF16_2, tile_KV_BF16_3, tile_KV_BF16_4,
                     tile_KV_BF16_5, tile_KV_BF16_6},
    };
    attend_all(a, by_type_and_rows[a->kv_type]);
}

void attend_finish_avx2(const struct attend *a, float *const *out)
{
    attend_finish_rows(a, out);
}
