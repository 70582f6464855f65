/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_GEMM_SCALARS_H
#define TEST_GEMM_SCALARS_H
/*
 * 16-bit floats by their definition, in fp64, for tests of conversions: nothing is shared with the
 * library. Also the frame of tests that run at one level each.
 */
#include <math.h>
#include <stdint.h>

#include "cpu/cpu.h"
#include "gemm/convert.h"
#include "harness/test.h"

/* What a format has: bits of the significand with the leading one, exponents of 1.x. */
typedef struct scalar_format {
    int precision, least, most;
} scalar_format_t;

static const scalar_format_t scalar_f16 = {11, -14, 15}, scalar_bf16 = {8, -126, 127};

static inline uint16_t scalar_infinity(scalar_format_t f)
{
    return (uint16_t)((2 * f.most + 1) << (f.precision - 1));
}

static inline double scalar_value(scalar_format_t f, uint16_t bits)
{
    const int magnitude = bits & 0x7fff, exponent = magnitude >> (f.precision - 1);
    const int fraction = magnitude & ((1 << (f.precision - 1)) - 1);
    const double sign = bits & 0x8000 ? -1.0 : 1.0;
    if (magnitude >= scalar_infinity(f))
        return magnitude == scalar_infinity(f) ? sign * INFINITY : (double)NAN;
    if (exponent == 0)
        return sign * ldexp(fraction, f.least - f.precision + 1);
    return sign * ldexp(fraction + (1 << (f.precision - 1)), exponent - f.most - f.precision + 1);
}

/* To nearest, ties to even. A NaN gives any NaN. */
static inline uint16_t scalar_rounded(scalar_format_t f, double value)
{
    const unsigned sign = signbit(value) ? 0x8000u : 0u;
    if (isnan(value))
        return (uint16_t)(scalar_infinity(f) | 1u);
    if (isinf(value))
        return (uint16_t)(sign | scalar_infinity(f));
    const int own = value == 0 ? f.least : ilogb(value), exponent = own < f.least ? f.least : own;
    /* units of the last place; a carry goes to the next exponent by itself, and at last to infinity */
    const double units = rint(ldexp(fabs(value), f.precision - 1 - exponent));
    const double bits = units + ldexp(exponent - f.least, f.precision - 1);
    return (uint16_t)(sign | (bits > scalar_infinity(f) ? scalar_infinity(f) : (unsigned)bits));
}

static inline bool scalar_is_nan(scalar_format_t f, uint16_t bits)
{
    return (bits & 0x7fff) > scalar_infinity(f);
}

/* ---- Levels ----------------------------------------------------------------------------------- */

static inline void at_level(twi_isa_t level, void (*body)(const twi_gemm_convert_t *))
{
    const twi_gemm_convert_t *convert = twi_gemm_convert(level);
    if (level > twi_cpu_isa_machine())
        SKIP(twi_isa_name(level));
    CHECK_EQ(convert->isa, level);
    body(convert);
}

/* AT_LEVELS(body): the cases body__portable, body__avx2, ... of a function of a set. */
#define AT_LEVELS(body)                     \
    TEST(body##__portable)                  \
    {                                       \
        at_level(TWI_ISA_PORTABLE, body);   \
    }                                       \
    TEST(body##__avx2)                      \
    {                                       \
        at_level(TWI_ISA_AVX2, body);       \
    }                                       \
    TEST(body##__avx512)                    \
    {                                       \
        at_level(TWI_ISA_AVX512, body);     \
    }                                       \
    TEST(body##__avx512bf16)                \
    {                                       \
        at_level(TWI_ISA_AVX512BF16, body); \
    }

#endif
