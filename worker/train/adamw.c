#include "train/adamw.h"

#include <math.h>

static const double BETA1 = 0.9, BETA2 = 0.999, EPSILON = 1e-8;

void adamw_step(const struct adamw *a, const float *gradient, size_t n, float *weights,
                float *first, float *second)
{
    const float beta1 = (float)BETA1, beta2 = (float)BETA2;
    const float rest1 = (float)(1 - BETA1), rest2 = (float)(1 - BETA2);
    const float unbias1 = (float)(1 / (1 - pow(BETA1, (double)a->step)));
    const float unbias2 = (float)(1 / (1 - pow(BETA2, (double)a->step)));
    const float rate = (float)a->rate, kept = (float)(1 - a->rate * a->decay);
    for (size_t i = 0; i < n; i++) {
        const float g = gradient[i];
        first[i] = beta1 * first[i] + rest1 * g;
        second[i] = beta2 * second[i] + rest2 * (g * g);
        const float root = sqrtf(second[i] * unbias2) + (float)EPSILON;
        weights[i] = kept * weights[i] - rate * (first[i] * unbias1 / root);
    }
}
