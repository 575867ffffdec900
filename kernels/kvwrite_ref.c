#include "inline_int.h"
#include "kernels_int.h"
#include "kv_int.h"

size_t kv_page_bytes(enum kv_type type, size_t head_dim)
{
    if (type == KV_INT8)
        return 2 * KV_PAGE_TOKENS * (head_dim + sizeof(float));
    const size_t elem_bytes = type == KV_BF16 ? sizeof(uint16_t) : sizeof(float);
    return 2 * KV_PAGE_TOKENS * head_dim * elem_bytes;
}

/* An element from a place to another one; bytes is a constant where this is inlined. */
static ALWAYS_INLINE void copy_element(size_t bytes, void *to, size_t to_index,
                                       const void *from, size_t from_index)
{
    memmove((char *)to + to_index * bytes, (const char *)from + from_index * bytes, bytes);
}

static ALWAYS_INLINE void copy_value(size_t bytes, size_t head_dim, void *to, size_t to_slot,
                                     const void *from, size_t from_slot)
{
    for (size_t i = 0; i < head_dim; i++)
        copy_element(bytes, to, kv_value_index(head_dim, to_slot, i), from,
                     kv_value_index(head_dim, from_slot, i));
}

static ALWAYS_INLINE void copy_floats(size_t bytes, size_t head_dim, void *to, size_t to_slot,
                                      const void *from, size_t from_slot)
{
    for (size_t i = 0; i < head_dim; i++)
        copy_element(bytes, to, kv_key_index(to_slot, i), from, kv_key_index(from_slot, i));
    copy_value(bytes, head_dim, to, to_slot, from, from_slot);
}

static void copy_codes(size_t head_dim, char *to, size_t to_slot, const char *from,
                       size_t from_slot)
{
    const size_t scales_at = 2 * KV_PAGE_TOKENS * head_dim;
    for (size_t i = 0; i < head_dim; i++)
        copy_element(1, to, kv_int8_key_at(to_slot, i), from, kv_int8_key_at(from_slot, i));
    copy_value(1, head_dim, to, to_slot, from, from_slot);
    for (size_t first = 0; first < 2 * KV_PAGE_TOKENS; first += KV_PAGE_TOKENS)
        copy_element(sizeof(float), to + scales_at, first + to_slot, from + scales_at,
                     first + from_slot);
}

void kv_copy_token(enum kv_type type, size_t head_dim, void *to, size_t to_slot,
                   const void *from, size_t from_slot)
{
    if (type == KV_BF16)
        copy_floats(2, head_dim, to, to_slot, from, from_slot);
    else if (type == KV_F32)
        copy_floats(4, head_dim, to, to_slot, from, from_slot);
    else
        copy_codes(head_dim, to, to_slot, from, from_slot);
}

static void write_bf16(size_t head_dim, uint16_t *page, size_t slot, const float *key,
                       const float *value)
{
    for (size_t i = 0; i < head_dim; i++) {
        page[kv_key_index(slot, i)] = kv_bf16_from_f32(key[i]);
        page[kv_value_index(head_dim, slot, i)] = kv_bf16_from_f32(value[i]);
    }
}

static void write_f32(size_t head_dim, float *page, size_t slot, const float *key,
                      const float *value)
{
    for (size_t i = 0; i < head_dim; i++) {
        page[kv_key_index(slot, i)] = key[i];
        page[kv_value_index(head_dim, slot, i)] = value[i];
    }
}

static void write_int8(size_t head_dim, uint8_t *page, size_t slot, const float *key,
                       const float *value)
{
    int8_t codes[MODEL_HEAD_DIM_MAX];
    float *scales = (float *)(void *)(page + 2 * KV_PAGE_TOKENS * head_dim);
    scales[slot] = kv_quantize(head_dim, key, codes);
    for (size_t i = 0; i < head_dim; i++)
        page[kv_int8_key_at(slot, i)] = (uint8_t)(codes[i] + KV_CODE_ZERO);
    scales[KV_PAGE_TOKENS + slot] = kv_quantize(head_dim, value, codes);
    for (size_t i = 0; i < head_dim; i++)
        page[kv_value_index(head_dim, slot, i)] = (uint8_t)codes[i];
}

void kv_write_ref(enum kv_type type, size_t head_dim, void *page, size_t slot, const float *key,
                  const float *value)
{
    if (type == KV_BF16)
        write_bf16(head_dim, page, slot, key, value);
    else if (type == KV_INT8)
        write_int8(head_dim, page, slot, key, value);
    else
        write_f32(head_dim, page, slot, key, value);
}
