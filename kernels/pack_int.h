/* The inside of packed weights (see pack.c), for pack.c and the matmul twins. */
#ifndef SHEAF_PACK_INT_H
#define SHEAF_PACK_INT_H

#include "kernels.h"

enum {
    PACK_QUADS = ACT_BLOCK / 4,                     /* groups of 4 inputs in a block */
    PACK_NIBBLE_BYTES = PANEL_COLS * ACT_BLOCK / 2, /* codes of a block, 4-bit types */
    PACK_BYTE_BYTES = PANEL_COLS * ACT_BLOCK,       /* codes of a block, other types */
    PACK_BLOCK_BYTES_MAX = PACK_BYTE_BYTES + 3 * 4 * PANEL_COLS,
};

enum pack_codes { PACK_NIBBLES, PACK_BYTES };
enum pack_factors { PACK_FACTORS_F16, PACK_FACTORS_F32 };

/* How the blocks of one quantised type lie in a panel. */
struct pack_layout {
    enum pack_codes codes;
    enum pack_factors factors;
    int n_scales;    /* 2: a scale for each half of a block (Q6_K) */
    bool has_min;    /* minima stand behind the scales */
    bool has_levels; /* IQ4_NL: code -> quant_iq4nl_level */
    int zero;        /* the code that stands for 0, or with has_levels 0 */
    size_t codes_bytes;
    size_t block_bytes;
};

struct pack_layout pack_layout_of(enum quant_type type);

#endif
