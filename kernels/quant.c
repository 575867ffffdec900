/*
 * Element types of model files, byte for byte. d, m and dmin are IEEE half floats, all
 * numbers little-endian; j counts inside a block, lo and hi are the nibbles of a byte.
 *
 *   F32     1 elem    4 B
 *   F16     1         2
 *   BF16    1         2   the upper half of a float32
 *   Q4_0   32        18   d, qs[16]: elem j (< 16) = lo qs[j], elem j + 16 = hi qs[j];
 *                         d * (q - 8)
 *   Q4_1   32        20   d, m, qs[16] as Q4_0; d * q + m
 *   Q5_0   32        22   d, qh u32, qs[16]: bit j of qh is the fifth bit of elem j;
 *                         d * (q - 16)
 *   Q5_1   32        24   d, m, qh u32, qs[16]; d * q + m
 *   Q8_0   32        34   d, i8[32]; d * q
 *   IQ4_NL 32        18   d, qs[16] as Q4_0; d * level[q]
 *   Q4_K  256       144   d, dmin, sc[12], qs[128]: the lo nibbles of qs[32 i ..] are group
 *                         2 i of 32 elements, the hi nibbles group 2 i + 1;
 *                         (d * S) * q - (dmin * M)
 *   Q5_K  256       176   d, dmin, sc[12], qh[32], qs[128]: as Q4_K, and bit g of qh[l] is
 *                         the fifth bit of elem l of group g
 *   Q6_K  256       210   ql[128], qh[64], i8 sc[16], d: half h (128 elems) has ql + 64 h,
 *                         qh + 32 h, sc + 8 h. Its four groups j take elem l from lo ql[l],
 *                         lo ql[l + 32], hi ql[l], hi ql[l + 32], and bits 2 j, 2 j + 1 of
 *                         qh[l] on top; (d * sc[l / 16 + 2 j]) * (q - 32)
 *
 * sc[12] of Q4_K and Q5_K holds eight 6-bit pairs. g < 4: S = sc[g] & 63, M = sc[g + 4] & 63;
 * else S = lo sc[g + 4] | sc[g - 4] >> 6 << 4, M = hi sc[g + 4] | sc[g] >> 6 << 4.
 *
 * Products and sums round one after the other (no fused operation), as ggml's plain C does.
 */
#include "quant.h"

#include <string.h>

#include "base/check.h"
#include "quant_int.h"

static const struct quant_info INFOS[] = {
    {QUANT_F32, "F32", 1, 4},       {QUANT_F16, "F16", 1, 2},
    {QUANT_BF16, "BF16", 1, 2},     {QUANT_Q4_0, "Q4_0", 32, 18},
    {QUANT_Q4_1, "Q4_1", 32, 20},   {QUANT_Q5_0, "Q5_0", 32, 22},
    {QUANT_Q5_1, "Q5_1", 32, 24},   {QUANT_Q8_0, "Q8_0", 32, 34},
    {QUANT_Q4_K, "Q4_K", 256, 144}, {QUANT_Q5_K, "Q5_K", 256, 176},
    {QUANT_Q6_K, "Q6_K", 256, 210}, {QUANT_IQ4_NL, "IQ4_NL", 32, 18},
};

/* Ids that mainline ggml has or had, without those of INFOS. */
static const struct {
    uint32_t id;
    const char *name;
} FOREIGN[] = {
    {4, "Q4_2"},        {5, "Q4_3"},        {9, "Q8_1"},    {10, "Q2_K"},    {11, "Q3_K"},
    {15, "Q8_K"},       {16, "IQ2_XXS"},    {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"},
    {21, "IQ3_S"},      {22, "IQ2_S"},      {23, "IQ4_XS"}, {24, "I8"},      {25, "I16"},
    {26, "I32"},        {27, "I64"},        {28, "F64"},    {29, "IQ1_M"},   {31, "Q4_0_4_4"},
    {32, "Q4_0_4_8"},   {33, "Q4_0_8_8"},   {34, "TQ1_0"},  {35, "TQ2_0"},   {36, "IQ4_NL_4_4"},
    {37, "IQ4_NL_4_8"}, {38, "IQ4_NL_8_8"}, {39, "MXFP4"},  {40, "NVFP4"},   {41, "Q1_0"},
    {42, "Q2_0"},
};

const int8_t quant_iq4nl_level[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};

const struct quant_info *quant_find(uint32_t type_id)
{
    for (size_t i = 0; i < sizeof INFOS / sizeof *INFOS; i++)
        if ((uint32_t)INFOS[i].type == type_id)
            return &INFOS[i];
    return NULL;
}

const char *quant_foreign_name(uint32_t type_id)
{
    for (size_t i = 0; i < sizeof FOREIGN / sizeof *FOREIGN; i++)
        if (FOREIGN[i].id == type_id)
            return FOREIGN[i].name;
    const struct quant_info *info = quant_find(type_id);
    return info ? info->name : NULL;
}

/* ---- float formats */

static float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

float quant_f16_to_f32(uint16_t bits)
{
    const uint32_t sign = (uint32_t)(bits & 0x8000) << 16;
    const uint32_t exponent = (bits >> 10) & 31;
    const uint32_t mantissa = bits & 0x3ff;
    if (exponent == 0) { /* zero or subnormal: mantissa * 2^-24, exact */
        const float magnitude = (float)mantissa * 0x1p-24f;
        return float_of_bits(bits_of_float(magnitude) | sign);
    }
    if (exponent == 31)
        return float_of_bits(sign | 0x7f800000 | mantissa << 13);
    return float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

/* Drops the low n_bits of a positive number, to nearest, ties to even. */
static uint32_t round_off(uint32_t number, unsigned n_bits)
{
    const uint32_t half = (1u << (n_bits - 1)) - 1;
    return (number + half + ((number >> n_bits) & 1)) >> n_bits;
}

uint16_t quant_f32_to_f16(float value)
{
    const uint32_t bits = bits_of_float(value);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff)); /* NaN, quiet */
    if (magnitude >= 0x477ff000) /* rounds to 2^16 or more */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude >= 0x38800000) /* normal; a carry out of the mantissa is right */
        return (uint16_t)(sign | (round_off(magnitude, 13) - (112u << 10)));
    const uint32_t exponent = magnitude >> 23;
    if (exponent < 102) /* below half of the smallest subnormal */
        return sign;
    const uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000;
    return (uint16_t)(sign | round_off(mantissa, 126 - exponent));
}

float quant_bf16_to_f32(uint16_t bits)
{
    return float_of_bits((uint32_t)bits << 16);
}

uint16_t quant_f32_to_bf16(float value)
{
    const uint32_t bits = bits_of_float(value);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    const uint32_t magnitude = round_off(bits & 0x7fffffff, 16);
    return (uint16_t)(magnitude | (bits >> 16 & 0x8000));
}

/* ---- groups of 32 */

bool quant_is_float(enum quant_type type)
{
    return type == QUANT_F32 || type == QUANT_F16 || type == QUANT_BF16;
}

bool quant_has_min(enum quant_type type)
{
    return type == QUANT_Q4_1 || type == QUANT_Q5_1 || type == QUANT_Q4_K || type == QUANT_Q5_K;
}

int quant_zero_code(enum quant_type type)
{
    switch (type) {
    case QUANT_Q4_0: return 8;
    case QUANT_Q5_0: return 16;
    case QUANT_Q6_K: return 32;
    case QUANT_Q8_0: return 128;
    default: return 0;
    }
}

static uint16_t read_u16(const uint8_t *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

static float read_f16(const uint8_t *at)
{
    return quant_f16_to_f32(read_u16(at));
}

static void read_nibbles(const uint8_t *qs, uint8_t *code)
{
    for (size_t j = 0; j < 16; j++) {
        code[j] = qs[j] & 15;
        code[j + 16] = qs[j] >> 4;
    }
}

static void read_high_bits(const uint8_t *at, uint8_t *code)
{
    for (size_t j = 0; j < QUANT_GROUP; j++)
        code[j] |= (uint8_t)((at[j / 8] >> (j % 8) & 1) << 4);
}

static void read_q4_q5(enum quant_type type, const uint8_t *block, struct quant_group *out)
{
    const bool has_min = quant_has_min(type);
    const bool has_high = type == QUANT_Q5_0 || type == QUANT_Q5_1;
    const uint8_t *high = block + (has_min ? 4 : 2);
    out->scale[0] = read_f16(block);
    out->min = has_min ? read_f16(block + 2) : 0.0f;
    read_nibbles(high + (has_high ? 4 : 0), out->code);
    if (has_high)
        read_high_bits(high, out->code);
}

static void read_q8_0(const uint8_t *block, struct quant_group *out)
{
    out->scale[0] = read_f16(block);
    for (size_t j = 0; j < QUANT_GROUP; j++)
        out->code[j] = block[2 + j] ^ 0x80;
}

/* The 6-bit scale S and minimum M of group g. */
static void read_k_scales(const uint8_t *sc, size_t g, unsigned *s, unsigned *m)
{
    if (g < 4) {
        *s = sc[g] & 63u;
        *m = sc[g + 4] & 63u;
    } else {
        *s = (sc[g + 4] & 15u) | (unsigned)(sc[g - 4] >> 6) << 4;
        *m = (unsigned)(sc[g + 4] >> 4) | (unsigned)(sc[g] >> 6) << 4;
    }
}

static void read_q4k_q5k(enum quant_type type, const uint8_t *block, size_t g,
                         struct quant_group *out)
{
    const uint8_t *qh = block + 16;
    const uint8_t *qs = block + (type == QUANT_Q5_K ? 48 : 16) + 32 * (g / 2);
    unsigned s;
    unsigned m;
    read_k_scales(block + 4, g, &s, &m);
    out->scale[0] = read_f16(block) * (float)s;
    out->min = -(read_f16(block + 2) * (float)m);
    for (size_t l = 0; l < QUANT_GROUP; l++) {
        unsigned code = g % 2 ? qs[l] >> 4 : qs[l] & 15u;
        if (type == QUANT_Q5_K)
            code |= (qh[l] >> g & 1u) << 4;
        out->code[l] = (uint8_t)code;
    }
}

static void read_q6k(const uint8_t *block, size_t g, struct quant_group *out)
{
    const size_t half = g / 4;
    const size_t j = g % 4;
    const uint8_t *ql = block + 64 * half + (j % 2) * 32;
    const uint8_t *qh = block + 128 + 32 * half;
    const uint8_t *sc = block + 192 + 8 * half + 2 * j;
    const float d = read_f16(block + 208);
    out->scale[0] = d * (float)(int8_t)sc[0];
    out->scale[1] = d * (float)(int8_t)sc[1];
    for (size_t l = 0; l < QUANT_GROUP; l++) {
        const unsigned low = j < 2 ? ql[l] & 15u : ql[l] >> 4;
        out->code[l] = (uint8_t)(low | (qh[l] >> (2 * j) & 3u) << 4);
    }
}

void quant_read_group(enum quant_type type, const void *row, size_t group_idx,
                      struct quant_group *out)
{
    const struct quant_info *info = quant_find(type);
    ASSERT(info && !quant_is_float(type));
    const size_t groups = info->block_elems / QUANT_GROUP;
    const uint8_t *block = (const uint8_t *)row + group_idx / groups * info->block_bytes;
    const size_t g = group_idx % groups;
    out->min = 0.0f;
    switch (type) {
    case QUANT_Q8_0: read_q8_0(block, out); break;
    case QUANT_Q4_K:
    case QUANT_Q5_K: read_q4k_q5k(type, block, g, out); break;
    case QUANT_Q6_K: read_q6k(block, g, out); return;
    default: read_q4_q5(type, block, out); break;
    }
    out->scale[1] = out->scale[0];
}

static void dequantize_group(enum quant_type type, const struct quant_group *group, float *out)
{
    const int zero = quant_zero_code(type);
    const bool has_min = quant_has_min(type);
    for (size_t j = 0; j < QUANT_GROUP; j++) {
        const int level =
            type == QUANT_IQ4_NL ? quant_iq4nl_level[group->code[j]] : group->code[j] - zero;
        const float product = group->scale[j / 16] * (float)level;
        out[j] = has_min ? product + group->min : product;
    }
}

size_t quant_row_bytes(enum quant_type type, size_t n)
{
    const struct quant_info *info = quant_find((uint32_t)type);
    return n / info->block_elems * info->block_bytes;
}

void quant_dequantize_row(enum quant_type type, const void *row, float *out, size_t n)
{
    const uint8_t *bytes = row;
    if (type == QUANT_F32) {
        memcpy(out, row, n * sizeof *out);
        return;
    }
    if (quant_is_float(type)) {
        for (size_t i = 0; i < n; i++) {
            const uint16_t bits = read_u16(bytes + 2 * i);
            out[i] = type == QUANT_F16 ? quant_f16_to_f32(bits) : quant_bf16_to_f32(bits);
        }
        return;
    }
    for (size_t g = 0; g < n / QUANT_GROUP; g++) {
        struct quant_group group;
        quant_read_group(type, row, g, &group);
        dequantize_group(type, &group, out + g * QUANT_GROUP);
    }
}
