/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_GEMM_EPILOGUE_MODEL_H
#define TEST_GEMM_EPILOGUE_MODEL_H
/* A scalar model of the epilogue, which rounds by arithmetic in double and shares nothing with the library. */
#include <math.h>
#include <stdbool.h>

#include "gemm/epilogue.h"

typedef struct format {
    int exponent_bits, fraction_bits;
} format_t;

static inline format_t format_of(uint32_t type)
{
    if (type == TWI_FP16)
        return (format_t){5, 10};
    return type == TWI_BFP16 ? (format_t){8, 7} : (format_t){8, 23};
}

static inline double decode(uint32_t type, uint32_t bits)
{
    const format_t f = format_of(type);
    const int bias = (1 << (f.exponent_bits - 1)) - 1, top = (1 << f.exponent_bits) - 1;
    const int exponent = (int)(bits >> f.fraction_bits) & top;
    const uint32_t fraction = bits & ((1u << f.fraction_bits) - 1);
    double magnitude;
    if (exponent == top)
        magnitude = fraction ? NAN : INFINITY;
    else if (exponent == 0)
        magnitude = ldexp(fraction, 1 - bias - f.fraction_bits);
    else
        magnitude = ldexp((double)fraction + (1u << f.fraction_bits), exponent - bias - f.fraction_bits);
    return bits >> (f.exponent_bits + f.fraction_bits) & 1 ? -magnitude : magnitude;
}

/* Rounded to nearest even; every NaN is the same one. */
static inline uint32_t encode(uint32_t type, double value)
{
    const format_t f = format_of(type);
    const int bias = (1 << (f.exponent_bits - 1)) - 1;
    const uint32_t infinity = ((1u << f.exponent_bits) - 1) << f.fraction_bits;
    const uint32_t sign = signbit(value) ? 1u << (f.exponent_bits + f.fraction_bits) : 0;
    if (isnan(value))
        return infinity | 1u << (f.fraction_bits - 1);
    if (isinf(value))
        return sign | infinity;
    int exponent = 0;
    frexp(value, &exponent);
    int unit = exponent - 1 - f.fraction_bits; /* the last place is worth 2^unit */
    if (exponent - 1 < 1 - bias)
        unit = 1 - bias - f.fraction_bits;
    double places = nearbyint(ldexp(fabs(value), -unit));
    if (places == 2.0 * (1u << f.fraction_bits)) {
        places /= 2;
        unit++;
    }
    if (places < (1u << f.fraction_bits)) /* zero or denormal */
        return sign | (uint32_t)places;
    const int biased = unit + f.fraction_bits + bias;
    if (biased >= (1 << f.exponent_bits) - 1)
        return sign | infinity;
    return sign | ((uint32_t)biased << f.fraction_bits) | ((uint32_t)places - (1u << f.fraction_bits));
}

/* Sums and products of two fp32 in double round to fp32 as if computed exactly. */
static inline double as_f32(double value)
{
    return decode(TWI_FP32, encode(TWI_FP32, value));
}

/* What an element is made of; the pointers of a twi_gemm_epilogue_t say which are used. */
typedef struct cell {
    uint32_t sum;
    int32_t ibias;
    float fbias, scale, token;
    uint32_t x3;
} cell_t;

static inline uint32_t model(const twi_gemm_epilogue_t *e, const cell_t *cell)
{
    double v;
    if (e->integer) {
        const int64_t wide = (int64_t)(int32_t)cell->sum + (e->ibias ? cell->ibias : 0);
        const uint32_t sum = (uint32_t)(uint64_t)wide;
        if (e->out_type == TWI_INT32)
            return sum;
        v = as_f32(sum < 0x80000000u ? (double)sum : (double)sum - 0x1p32);
        if (e->scale)
            v = as_f32(v * (double)cell->scale);
        if (e->token)
            v = as_f32(v * (double)cell->token);
    } else {
        v = decode(TWI_FP32, cell->sum);
    }
    if (e->fbias)
        v = as_f32(v + (double)cell->fbias);
    if (e->x3) {
        v = decode(e->out_type, encode(e->out_type, v));
        v = as_f32(v + decode(e->x3_type, cell->x3));
    }
    return encode(e->out_type, v);
}

static inline bool same(uint32_t type, uint32_t got, uint32_t expected)
{
    if (type == TWI_INT32 || !isnan(decode(type, expected)))
        return got == expected;
    return isnan(decode(type, got));
}

#endif
