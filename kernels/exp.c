#include "exp.h"

#include "kernels.h"

float kernels_exp(float x)
{
    return exp_scalar(x);
}
