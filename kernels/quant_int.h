/* One group of 32 stored weights, taken apart: what dequantising and packing share. */
#ifndef SHEAF_QUANT_INT_H
#define SHEAF_QUANT_INT_H

#include <stdbool.h>

#include "quant.h"

enum { QUANT_GROUP = 32 };

/*
 * The value of element j is scale[j / 16] * level(code[j]), plus min where the type has minima.
 * Both scales are equal except in Q6_K. The level is code - zero, or quant_iq4nl_level[code].
 */
struct quant_group {
    uint8_t code[QUANT_GROUP];
    float scale[2];
    float min; /* signed so that it is added */
};

extern const int8_t quant_iq4nl_level[16];

/* Reads group group_idx of a stored row. Only for the quantised types. */
void quant_read_group(enum quant_type type, const void *row, size_t group_idx,
                      struct quant_group *out);
bool quant_is_float(enum quant_type type);
bool quant_has_min(enum quant_type type);
/* What code stands for zero; 0 for types with minima and for IQ4_NL. */
int quant_zero_code(enum quant_type type);

#endif
