#include "lanes_avx512.h"

/* 24 of 32 registers accumulate: 12 rows by 32 keys, 12 rows by 32 dims. */
#define ATTEND_TILE_ROWS 12
#define ATTEND_ACCS      24
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
TILE(KV_F32, 7)
TILE(KV_F32, 8)
TILE(KV_F32, 9)
TILE(KV_F32, 10)
TILE(KV_F32, 11)
TILE(KV_F32, 12)
TILE(KV_BF16, 1)
TILE(KV_BF16, 2)
TILE(KV_BF16, 3)
TILE(KV_BF16, 4)
TILE(KV_BF16, 5)
TILE(KV_BF16, 6)
TILE(KV_BF16, 7)
TILE(KV_BF16, 8)
TILE(KV_BF16, 9)
TILE(KV_BF16, 10)
TILE(KV_BF16, 11)
TILE(KV_BF16, 12)

void attend_avx512(const struct attend *a)
{
    static attend_tile_fn *const by_type_and_rows[][ATTEND_TILE_ROWS] = {
        [KV_F32] = {tile_KV_F32_1, tile_KV_F32_2, tile_KV_F32_3, tile_KV_F32_4, tile_KV_F32_5,
                    tile_KV_F32_6, tile_KV_F32_7, tile_KV_F32_8, tile_KV_F32_9, tile_KV_F32_10,
                    tile_KV_F32_11, tile_KV_F32_12},
        [KV_BF16] = {tile_KV_BF16_1, tile_KV_BF16_2, tile_KV_BF16_3, tile_KV_BF16_4,
                     tile_KV_BF16_5, tile_KV_BF16_6, tile_KV_BF16_7, tile_KV_BF16_8,
                     tile_KV_BF16_9, tile_KV_BF16_10, tile_KV_BF16_11, tile_KV_BF16_12},
    };
    attend_all(a, by_type_and_rows[a->kv_type]);
}

void attend_finish_avx512(const struct attend *a, float *const *out)
{
    attend_finish_rows(a, out);
}
