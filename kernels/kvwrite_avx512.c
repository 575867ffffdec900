#include "lanes_avx512.h"

#include "kvwrite_lanes.h"

void kv_write_avx512(enum kv_type type, size_t head_dim, void *page, size_t slot,
                     const float *key, const float *value)
{
    kv_write_all(type, head_dim, page, slot, key, value);
}
