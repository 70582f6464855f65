/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_QUANT_EXACT_H
#define TEST_QUANT_EXACT_H
/*
 * Binary floating point from its definition, in integers: operations give what has not been rounded
 * yet, and one function rounds it to any format. Shares nothing with the library's conversions.
 */
#include <stdbool.h>
#include <stdint.h>

typedef struct exact_format {
    int digits; /* of a mantissa, with the leading one */
    int unit;   /* the smallest number is 2^unit */
    int limit;  /* infinity begins at 2^limit, once rounded */
    int sign;   /* the bit of the sign */
} exact_format_t;

static const exact_format_t exact_f16 = {11, -24, 16, 15};
static const exact_format_t exact_bf16 = {8, -133, 128, 15};
static const exact_format_t exact_f32 = {24, -149, 128, 31};

typedef enum exact_kind { EXACT_FINITE, EXACT_INFINITE, EXACT_NAN } exact_kind_t;

/* m * 2^e. What a quotient leaves over is a lowest bit that is set, far below any rounding. */
typedef struct exact {
    exact_kind_t kind;
    bool negative;
    uint64_t m;
    int e;
} exact_t;

static inline exact_t exact_of_int(int value)
{
    return (exact_t){EXACT_FINITE, value < 0, (uint64_t)(value < 0 ? -value : value), 0};
}

static inline uint32_t exact_infinity_bits(exact_format_t f)
{
    return (uint32_t)(f.limit - f.unit - f.digits + 2) << (f.digits - 1);
}

static inline exact_t exact_of_bits(exact_format_t f, uint32_t bits)
{
    const uint32_t lead = 1u << (f.digits - 1), magnitude = bits & ((1u << f.sign) - 1), field = magnitude & (lead - 1);
    const int exponent = (int)(magnitude >> (f.digits - 1));
    exact_t x = {EXACT_FINITE, bits >> f.sign, field, f.unit};
    if (magnitude >= exact_infinity_bits(f))
        x.kind = field ? EXACT_NAN : EXACT_INFINITE;
    else if (exponent > 0)
        x = (exact_t){EXACT_FINITE, x.negative, lead + field, f.unit + exponent - 1};
    return x;
}

/* To a multiple of 2^e, ties to even; not for what has more than 63 bits then. */
static inline exact_t exact_to_multiple(exact_t x, int e)
{
    const int shift = e - x.e;
    if (x.kind != EXACT_FINITE || x.m == 0)
        return (exact_t){x.kind, x.negative, 0, e};
    if (shift <= 0)
        return (exact_t){x.kind, x.negative, x.m << -shift, e};
    if (shift > 63) /* m has fewer bits than that */
        return (exact_t){x.kind, x.negative, 0, e};
    const uint64_t tie = UINT64_C(1) << (shift - 1), rest = x.m & (2 * tie - 1);
    uint64_t m = x.m >> shift;
    if (rest > tie || (rest == tie && m % 2 == 1))
        m++;
    return (exact_t){x.kind, x.negative, m, e};
}

static inline int exact_length(uint64_t m)
{
    return m ? 64 - __builtin_clzll(m) : 0;
}

static inline exact_t exact_rounded(exact_format_t f, exact_t x)
{
    if (x.kind != EXACT_FINITE || x.m == 0)
        return x;
    const int e = x.e + exact_length(x.m) - f.digits;
    x = exact_to_multiple(x, e > f.unit ? e : f.unit);
    if (exact_length(x.m) + x.e > f.limit)
        x.kind = EXACT_INFINITE;
    return x;
}

/* x is rounded to the format; a NaN gives the quiet one without payload. */
static inline uint32_t exact_bits(exact_format_t f, exact_t x)
{
    const uint32_t sign = (uint32_t)x.negative << f.sign, lead = 1u << (f.digits - 1);
    if (x.kind == EXACT_NAN)
        return exact_infinity_bits(f) | lead >> 1;
    if (x.kind == EXACT_INFINITE)
        return sign | exact_infinity_bits(f);
    if (x.m < lead) /* zero, or below the normal numbers */
        return sign | (uint32_t)x.m;
    const int carry = exact_length(x.m) - f.digits;
    const uint32_t exponent = (uint32_t)(x.e + carry - f.unit + 1);
    return sign | ((exponent << (f.digits - 1)) + (uint32_t)(x.m >> carry) - lead);
}

static inline exact_t exact_product(exact_t a, exact_t b)
{
    exact_t x = {EXACT_FINITE, a.negative != b.negative, a.m * b.m, a.e + b.e};
    const bool infinite = a.kind == EXACT_INFINITE || b.kind == EXACT_INFINITE;
    const bool zero = (a.kind == EXACT_FINITE && a.m == 0) || (b.kind == EXACT_FINITE && b.m == 0);
    if (a.kind == EXACT_NAN || b.kind == EXACT_NAN || (infinite && zero))
        x.kind = EXACT_NAN;
    else if (infinite)
        x.kind = EXACT_INFINITE;
    return x;
}

/* Mantissas have at most 24 bits. */
static inline exact_t exact_quotient(exact_t a, exact_t b)
{
    exact_t x = {EXACT_FINITE, a.negative != b.negative, 0, 0};
    const bool a_zero = a.kind == EXACT_FINITE && a.m == 0, b_zero = b.kind == EXACT_FINITE && b.m == 0;
    if (a.kind == EXACT_NAN || b.kind == EXACT_NAN || (a_zero && b_zero) ||
        (a.kind == EXACT_INFINITE && b.kind == EXACT_INFINITE)) {
        x.kind = EXACT_NAN;
    } else if (a.kind == EXACT_INFINITE || b_zero) {
        x.kind = EXACT_INFINITE;
    } else if (b.kind == EXACT_FINITE && !a_zero) {
        const int shift = 62 - exact_length(a.m); /* leaves 38 bits or more */
        const uint64_t m = a.m << shift;
        x.m = 2 * (m / b.m) + (m % b.m != 0);
        x.e = a.e - shift - b.e - 1;
    }
    return x;
}

#endif
