#include "namesake_rig.h"

#include "port.cuh"

enum { N = 16 };

struct namesake {
    double numbers[N];
    float *out;
};

KERNEL void sum_namesake(namesake a)
{
    double sum = 0;
    for (double x : a.numbers)
        sum += x;
    *a.out = (float)sum;
}

void namesake_launch(float *out)
{
    namesake a = {};
    a.out = out;
    for (int i = 0; i < N; i++)
        a.numbers[i] = i + 1;
    LAUNCH(sum_namesake, 1, 1, 0, nullptr, a);
}
