#include "kernels.h"

#include <stdlib.h>
#include <string.h>

#include "kernels_int.h"

static void fill_ref(struct kernels *k)
{
    *k = (struct kernels){
        .isa = KERNELS_REF,
        .name = "ref",
        .rmsnorm = rmsnorm_ref,
        .quantize = quantize_ref,
        .matmul = matmul_ref,
        .bias_add = bias_add_ref,
        .rope = rope_ref,
        .silu_mul = silu_mul_ref,
        .kv_write = kv_write_ref,
        .attend = attend_ref,
        .attend_finish = attend_finish_ref,
        .argmax = argmax_ref,
    };
}

#ifndef SHEAF_REF_ONLY
/* Slots without a vector twin keep the reference: the result is the same. */
static void fill_avx2(struct kernels *k)
{
    k->isa = KERNELS_AVX2;
    k->name = "avx2";
    k->rmsnorm = rmsnorm_avx2;
    k->quantize = quantize_avx2;
    k->matmul = matmul_avx2;
    k->rope = rope_avx2;
    k->silu_mul = silu_mul_avx2;
    k->kv_write = kv_write_avx2;
    k->attend = attend_avx2;
    k->attend_finish = attend_finish_avx2;
    k->argmax = argmax_avx2;
}

static void fill_avx512(struct kernels *k)
{
    k->isa = KERNELS_AVX512;
    k->name = "avx512";
    k->rmsnorm = rmsnorm_avx512;
    k->quantize = quantize_avx512;
    k->matmul = matmul_avx512;
    k->rope = rope_avx512;
    k->silu_mul = silu_mul_avx512;
    k->kv_write = kv_write_avx512;
    k->attend = attend_avx512;
    k->attend_finish = attend_finish_avx512;
    k->argmax = argmax_avx512;
}
#endif

bool kernels_has_isa(enum kernels_isa isa)
{
#ifdef SHEAF_REF_ONLY
    return isa == KERNELS_REF;
#else
    switch (isa) {
    case KERNELS_REF: return true;
    case KERNELS_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __builtin_cpu_supports("f16c");
    case KERNELS_AVX512:
        return kernels_has_isa(KERNELS_AVX2) && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
    }
    return false;
#endif
}

int kernels_open_isa(struct kernels *k, enum kernels_isa isa, struct err *e)
{
    if (!kernels_has_isa(isa))
        return ERR_SET(
            e, ERR_UNSUPPORTED,
            "this CPU or build lacks the %s kernels; unset SHEAF_KERNELS or set it to ref",
            isa == KERNELS_AVX512 ? "avx512" : "avx2");
    fill_ref(k);
#ifndef SHEAF_REF_ONLY
    if (isa >= KERNELS_AVX2)
        fill_avx2(k);
    if (isa >= KERNELS_AVX512)
        fill_avx512(k);
#endif
    return 0;
}

int kernels_open(struct kernels *k, struct err *e)
{
    const char *forced = getenv("SHEAF_KERNELS");
    if (forced && *forced) {
        if (strcmp(forced, "ref") == 0)
            return kernels_open_isa(k, KERNELS_REF, e);
        if (strcmp(forced, "avx2") == 0)
            return kernels_open_isa(k, KERNELS_AVX2, e);
        if (strcmp(forced, "avx512") == 0)
            return kernels_open_isa(k, KERNELS_AVX512, e);
        return ERR_SET(e, ERR_CONFIG, "SHEAF_KERNELS=%s is not one of ref, avx2, avx512",
                       forced);
    }
    enum kernels_isa best = KERNELS_AVX512;
    while (!kernels_has_isa(best))
        best--;
    return kernels_open_isa(k, best, e);
}
