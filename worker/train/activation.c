#include "train/activation.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { SIDE_BY_SIDE = 16 }; /* partial results of a row */

/* exp(x) for x <= 0, good to 2e-7 of itself; below -87 it is as good as nothing and counts as
 * 0. The polynomial is Taylor's to the sixth degree on [-ln 2 / 2, ln 2 / 2]; adding and taking
 * away 1.5 * 2^23 rounds to the nearest integer. */
static inline float exp_negative(float x)
{
    const float rounder = 12582912.0f;
    const float rounded = x * 1.44269504f + rounder;
    const float n = rounded - rounder;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits, shift;
    memcpy(&bits, &p, sizeof bits);
    memcpy(&shift, &rounded, sizeof shift);
    bits += shift << 23;
    memcpy(&p, &bits, sizeof p);
    return x < -87.0f ? 0.0f : p;
}

void activation_sigmoid(const float *x, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        const float small = exp_negative(x[i] < 0 ? x[i] : -x[i]);
        out[i] = (x[i] < 0 ? small : 1.0f) / (1.0f + small);
    }
}

static float greatest(const float *x, size_t n)
{
    float best[SIDE_BY_SIDE];
    for (size_t lane = 0; lane < SIDE_BY_SIDE; lane++)
        best[lane] = x[0];
    size_t i = 0;
    for (; i + SIDE_BY_SIDE <= n; i += SIDE_BY_SIDE)
        for (size_t lane = 0; lane < SIDE_BY_SIDE; lane++)
            best[lane] = x[i + lane] > best[lane] ? x[i + lane] : best[lane];
    for (; i < n; i++)
        best[0] = x[i] > best[0] ? x[i] : best[0];
    for (size_t lane = 1; lane < SIDE_BY_SIDE; lane++)
        best[0] = best[lane] > best[0] ? best[lane] : best[0];
    return best[0];
}

double activation_softmax(float *x, size_t n)
{
    const float best = greatest(x, n);
    float sums[SIDE_BY_SIDE] = {0};
    size_t i = 0;
    for (; i + SIDE_BY_SIDE <= n; i += SIDE_BY_SIDE)
        for (size_t lane = 0; lane < SIDE_BY_SIDE; lane++) {
            x[i + lane] = exp_negative(x[i + lane] - best);
            sums[lane] += x[i + lane];
        }
    double sum = 0;
    for (; i < n; i++) {
        x[i] = exp_negative(x[i] - best);
        sum += (double)x[i];
    }
    for (size_t lane = 0; lane < SIDE_BY_SIDE; lane++)
        sum += (double)sums[lane];
    const float share = (float)(1 / sum);
    for (i = 0; i < n; i++)
        x[i] *= share;
    return (double)best + log(sum);
}
