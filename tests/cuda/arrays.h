/*
 * What tests of CUDA operations share: arrays on the device, reproducible numbers, comparisons.
 * An array is exactly as long as said, so that one element too many is seen. Comparisons say on
 * stderr what differs first and return false, so that a test can also show that they fail
 * (ASSERT_DIFFERS).
 */
#ifndef SHEAF_TESTS_ARRAYS_H
#define SHEAF_TESTS_ARRAYS_H

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <vector>

#include "port.cuh"

extern "C" {
#include "base/rng.h"
#include "quant.h"
}

template <class T> using host_array = std::vector<T>;

template <class T> struct device_array {
    T *at;
    size_t n;

    explicit device_array(size_t n_elems)
        : at((T *)device_alloc(n_elems * sizeof(T))), n(n_elems)
    {
    }
    device_array(const host_array<T> &from) : device_array(from.size())
    {
        write(from);
    }
    device_array(const device_array &) = delete;
    device_array &operator=(const device_array &) = delete;
    ~device_array()
    {
        device_free(at);
    }
    void write(const host_array<T> &from)
    {
        copy_to_device(NULL, at, from.data(), n * sizeof(T));
        stream_wait(NULL);
    }
    host_array<T> read() const
    {
        host_array<T> out(n);
        copy_to_host(NULL, out.data(), at, n * sizeof(T));
        stream_wait(NULL);
        return out;
    }
};

/* Uniform in [-range, range). */
static inline float random_float(uint64_t stream, size_t i, float range)
{
    return ((float)rng_uniform(1, stream, i) * 2.0f - 1.0f) * range;
}

static inline host_array<float> random_floats(uint64_t stream, float range, size_t n)
{
    host_array<float> x(n);
    for (size_t i = 0; i < n; i++)
        x[i] = random_float(stream, i, range);
    return x;
}

static inline host_array<uint8_t> random_bytes(uint64_t stream, size_t n)
{
    host_array<uint8_t> x(n);
    for (size_t i = 0; i < n; i++)
        x[i] = (uint8_t)rng_bits(1, stream, i);
    return x;
}

static inline host_array<bf16> rounded(const host_array<float> &x)
{
    host_array<bf16> y(x.size());
    for (size_t i = 0; i < x.size(); i++)
        y[i] = to_bf16(x[i]);
    return y;
}

inline bool is_quiet = false; /* for tests that comparisons fail */

/* What is compared differs, as it should. */
#define ASSERT_DIFFERS(comparison)                                                             \
    do {                                                                                       \
        is_quiet = true;                                                                       \
        assert_false(comparison);                                                              \
        is_quiet = false;                                                                      \
    } while (0)

/* Returns false, having said why. */
__attribute__((format(printf, 1, 2))) static inline bool differs(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (!is_quiet)
        vfprintf(stderr, format, arguments);
    va_end(arguments);
    return false;
}

/* Bits are equal; any NaN is equal to any other. */
static inline bool same_floats(const char *what, const float *want, const float *got, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&want[i], &got[i], sizeof want[i]) != 0 &&
            !(isnan(want[i]) && isnan(got[i])))
            return differs("%s: element %zu of %zu is %a, not %a\n", what, i, n, (double)got[i],
                           (double)want[i]);
    return true;
}

template <class T>
static inline bool same_bytes(const char *what, const host_array<T> &want,
                              const host_array<T> &got)
{
    const size_t n = want.size() * sizeof(T);
    const uint8_t *a = (const uint8_t *)want.data();
    const uint8_t *b = (const uint8_t *)got.data();
    if (want.size() == got.size() && (n == 0 || memcmp(a, b, n) == 0))
        return true;
    for (size_t i = 0; i < n; i++)
        if (a[i] != b[i])
            return differs("%s: byte %zu of %zu is %02x, not %02x\n", what, i, n, b[i], a[i]);
    return differs("%s: %zu elements, not %zu\n", what, got.size(), want.size());
}

static inline bool is_near(const char *what, size_t i, double want, double got, double within)
{
    if (isnan(want) ? isnan(got) : want == got || fabs(got - want) <= within)
        return true;
    return differs("%s: element %zu is %.9g, not %.9g within %g\n", what, i, got, want, within);
}

/* got is the bfloat16 next to a number that is want up to the relative error. */
static inline bool is_near_bf16(const char *what, size_t i, double want, bf16 got, double error)
{
    const float a = to_float(to_bf16((float)(want * (1.0 - error))));
    const float b = to_float(to_bf16((float)(want * (1.0 + error))));
    const float x = to_float(got);
    if (isnan(want) ? isnan(x) : x >= fminf(a, b) && x <= fmaxf(a, b))
        return true;
    return differs("%s: element %zu is %a, not next to %a\n", what, i, (double)x, want);
}

#endif
