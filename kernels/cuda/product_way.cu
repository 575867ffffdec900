/*
 * Which way for how many rows. Host code, pure.
 *
 * A weight costs time for its bytes (4.3 TB/s on an H200) or for its arithmetic (2 operations
 * a row), whichever is more. The own kernel is taken to reach 200 TFLOP/s, cuBLASLt 700: in
 * picoseconds a weight, with b stored bytes and T rows,
 *
 *     own kernel on blocks          max(b / 4.3, 2 T / 200)
 *     cuBLASLt on bfloat16 rows     max(2 / 4.3, 2 T / 700)
 *     dequantised, then cuBLASLt    (b + 2) / 4.3 + the line above
 *
 * Blocks of 0.56 to 1.06 bytes: the own kernel is bound by bytes up to 13 to 25 rows, and
 * dequantising pays from about 150 rows on. Were it at 120 TFLOP/s only, that would be 80: 64
 * is safe. On bfloat16 rows both read the same; up to 16 rows cuBLASLt fills a small part of
 * its tiles, and from there on it is the better tuned one. The rates of the own kernel are
 * estimates that wait for a device: ops/gpu-check measures them.
 *
 * E4M3 rows: the own kernel max(1 / 4.3, 2 T / 200), cuBLASLt at 1,400 TFLOP/s max(1 / 4.3,
 * 2 T / 1400), and two launches more, of 4 us together: of 117 M weights 37 us against 31 for
 * 32 rows, of 17 M 5.4 against 7.9. Up to there x keeps all its bits besides.
 */
#include "products_int.h"

enum { BLOCKS_ROWS_MAX = 64, BF16_ROWS_MAX = 16, FP8_ROWS_MAX = 32 };

/* One way whatever the number of rows, and one whose sums are in an order of our own. */
static product_way exact_way(const product_case &c)
{
    if (c.has_blocks && few_rows_takes(c.type))
        return WAY_OWN_BLOCKS;
    if (c.has_rows)
        return WAY_OWN_ROWS;
    return c.has_scratch ? WAY_OWN_SCRATCH : WAY_NONE;
}

product_way product_way_of(const product_case &c)
{
    if (c.has_codes)
        return c.exact || c.n_rows <= FP8_ROWS_MAX ? WAY_OWN_FP8 : WAY_LT_FP8;
    if (c.exact || c.bias_to_bf16)
        return exact_way(c);
    const bool has_own_blocks = c.has_blocks && few_rows_takes(c.type);
    if (has_own_blocks && c.n_rows <= BLOCKS_ROWS_MAX)
        return WAY_OWN_BLOCKS;
    if (c.has_rows)
        return c.n_rows <= BF16_ROWS_MAX ? WAY_OWN_ROWS : WAY_LT_ROWS;
    if (c.has_scratch)
        return WAY_LT_SCRATCH;
    return has_own_blocks ? WAY_OWN_BLOCKS : WAY_NONE;
}
