/* What the quantize twins share. */
#ifndef SHEAF_QUANTIZE_INT_H
#define SHEAF_QUANTIZE_INT_H

/* 127 / ACT_MAX_TINY is still finite. */
#define ACT_MAX_TINY 0x1p-120f

#endif
