/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of per-token int8 at every ISA level, each a case of its own, bit for bit against a model in double
 * arithmetic. Arrays lie against a page that cannot be touched. TEST_SEED changes the data.
 */
#include <math.h>

#include "base/dtype.h"
#include "gemm/panels.h"
#include "quant/quant_token.h"

enum { LENGTHS = 70 }; /* all vectors of all levels, with all of their tails */

static const uint32_t types[] = {TWI_FP32, TWI_FP16, TWI_BFP16};

static size_t item_of(uint32_t type)
{
    return type == TWI_FP32 ? 4 : 2;
}

static float widen(uint32_t type, const void *x, int64_t i)
{
    if (type == TWI_FP32)
        return ((const float *)x)[i];
    const uint16_t bits = ((const uint16_t *)x)[i];
    return type == TWI_FP16 ? twi_f32_from_f16(bits) : twi_f32_from_bf16(bits);
}

static void fill(uint32_t type, panels_class_t class, panels_random_t *random, void *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (type == TWI_FP32)
            ((uint32_t *)x)[i] = panels_f32(random, class);
        else
            ((uint16_t *)x)[i] = type == TWI_FP16 ? panels_f16(random, class) : panels_bf16(random, class);
}

static void check_largest(const twi_token_kernels_t *kernels, uint32_t type, const void *x, int64_t n)
{
    uint32_t expected = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t bits = twi_f32_bits(widen(type, x, i)) & 0x7fffffffu;
        expected = bits > expected ? bits : expected;
    }
    const uint32_t got = kernels->largest(type, x, n);
    if (expected > 0x7f800000u)
        CHECK(got > 0x7f800000u);
    else
        CHECK_EQ(got, expected);
}

static int model(float x, float scale)
{
    const double rounded = nearbyint((double)(float)((double)x / (double)scale));
    return rounded < -128 ? -128 : rounded > 127 ? 127 : (int)rounded;
}

static void check_divide(const twi_token_kernels_t *kernels, uint32_t type, const void *x, int64_t n, float scale,
                         bool at_end)
{
    panels_guard_t y = panels_guarded((size_t)n, at_end);
    kernels->divide(type, x, n, scale, (int8_t *)y.data);
    for (int64_t i = 0; i < n; i++) {
        const int got = (int8_t)y.data[i], expected = model(widen(type, x, i), scale);
        if (got != expected)
            test_fail(__FILE__, __LINE__, "type %u, %d elements: element %d, %a by %a, is %d, not %d", type, (int)n,
                      (int)i, (double)widen(type, x, i), (double)scale, got, expected);
    }
    CHECK(panels_guard_intact(&y));
    panels_unguard(&y);
}

static void try_length(const twi_token_kernels_t *kernels, panels_random_t *random, uint32_t type, int64_t n,
                       bool at_end)
{
    panels_guard_t x = panels_guarded((size_t)n * item_of(type), at_end);
    for (int class = 0; class < PANELS_CLASSES; class ++) {
        fill(type, class, random, x.data, n);
        check_largest(kernels, type, x.data, n);
    }
    fill(type, PANELS_NORMAL, random, x.data, n);
    if (n > 0) /* the only one of its size is found wherever it is */
        fill(type, PANELS_INF, random, x.data + panels_below(random, n) * (int64_t)item_of(type), 1);
    check_largest(kernels, type, x.data, n);
    static const float scales[] = {0x1p-6f, 0x1.8p-7f, 0.011f, 0x1.fffffep-5f}; /* the first ones make ties */
    for (size_t s = 0; s < sizeof scales / sizeof *scales; s++) {
        fill(type, PANELS_NORMAL, random, x.data, n);
        check_divide(kernels, type, x.data, n, scales[s], at_end);
    }
    fill(type, PANELS_DENORMAL, random, x.data, n);
    check_divide(kernels, type, x.data, n, type == TWI_FP16 ? 0x1p-22f : 0x1p-134f, at_end);
    panels_unguard(&x);
}

static void try_level(twi_isa_t level)
{
    char reason[64];
    snprintf(reason, sizeof reason, "this machine has no %s", twi_isa_name(level));
    if (twi_cpu_isa_machine() < level)
        SKIP(reason);
    panels_random_t random = panels_random(21);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (int64_t n = 0; n <= LENGTHS; n++)
            for (int at_end = 0; at_end < 2; at_end++)
                try_length(twi_token_kernels(level), &random, types[t], n, at_end);
}

TEST(token_portable)
{
    try_level(TWI_ISA_PORTABLE);
}

TEST(token_avx2)
{
    try_level(TWI_ISA_AVX2);
}

TEST(token_avx512)
{
    try_level(TWI_ISA_AVX512);
}

TEST(token_levels)
{
    CHECK(twi_token_kernels(TWI_ISA_AMX) == twi_token_kernels(TWI_ISA_AVX512));
#if defined(__x86_64__)
    CHECK(twi_token_kernels(TWI_ISA_AVX2) != twi_token_kernels(TWI_ISA_AVX512));
    CHECK(twi_token_kernels(TWI_ISA_AVX2) != twi_token_kernels(TWI_ISA_PORTABLE));
#endif
}
