/*
 * ik_llama.cpp's attention on CPUs, as far as this bench uses it: its own templates for heads
 * of 64, which the demo model has, and for KV caches of f16, bf16 and q8_0. install.py puts it
 * in the place of the files of iqk/fa, which hold them for nine sizes of heads and every pair
 * of types and take an hour to compile. Steps and helpers are chosen as iqk_fa_64_64.cpp does.
 */
#include <type_traits>

#include "iqk/iqk_config.h"

#include "iqk/fa/iqk_fa_templates.h"

IQK_FA_CASE(iqk_fa_64_64)
{
    const auto keys = static_cast<const char *>(k), values = static_cast<const char *>(v);
    const auto seen = static_cast<const char *>(mask);
    const int q_floats = stride_q / static_cast<int>(sizeof(float));

    const auto attend = [&](auto step, auto key_helper, auto value_helper) {
        iqk_flash_helper<64, 64, decltype(step)::value>(key_helper, value_helper, nq, nk,
                                                        q_floats, stride_m, stride_qkv, q, seen,
                                                        scale, softcap, qkv, sinkf, M, S);
        return true;
    };
    const auto attend_in = [&](auto step) {
        if (int_type_k == GGML_TYPE_F16 && int_type_v == GGML_TYPE_F16)
            return attend(step, HelperF16(keys, stride_k), HelperF16(values, stride_v));
        if (int_type_k == GGML_TYPE_Q8_0 && int_type_v == GGML_TYPE_Q8_0)
            return attend(step, HelperQ80(keys, stride_k), HelperQ80(values, stride_v));
        if (int_type_k == GGML_TYPE_Q8_0_R8 && int_type_v == GGML_TYPE_Q8_0)
            return attend(step, HelperQ80R8<64>(keys, stride_k), HelperQ80(values, stride_v));
        return false;
    };

#ifdef __AVX512BF16__
    const auto attend_bf16 = [&](auto step) {
        iqk_flash_helper_T<64, 64, decltype(step)::value>(
            nq, nk, q_floats, stride_k, stride_v, stride_m, stride_qkv, q, keys, values, seen,
            scale, softcap, qkv, sinkf, M, S);
        return true;
    };
    if (int_type_k == GGML_TYPE_BF16 && int_type_v != GGML_TYPE_BF16)
        return false;
    if (int_type_k == GGML_TYPE_BF16)
        return nk % 64 == 0 ? attend_bf16(std::integral_constant<int, 64>())
                            : attend_bf16(std::integral_constant<int, 32>());
#endif
    if (nk % 128 == 0)
        return attend_in(std::integral_constant<int, 128>());
    return nk % 64 == 0 ? attend_in(std::integral_constant<int, 64>())
                        : attend_in(std::integral_constant<int, 32>());
}

#define LEFT_OUT(name)                                                                         \
    IQK_FA_CASE(name)                                                                          \
    {                                                                                          \
        return false;                                                                          \
    }
LEFT_OUT(iqk_fa_576_512)
LEFT_OUT(iqk_fa_512_512)
LEFT_OUT(iqk_fa_320_256)
LEFT_OUT(iqk_fa_192_128)
LEFT_OUT(iqk_fa_192_192)
LEFT_OUT(iqk_fa_256_256)
LEFT_OUT(iqk_fa_128_128)
LEFT_OUT(iqk_fa_96_96)
