/* SPDX-License-Identifier: Apache-2.0 */
/* The int8 wire and per-token int8 in plain C, an element at a time. Any thread. */
#include <string.h>

#include "quant/quant.h"

#define LEVEL(name) name##__portable
#define INLINE static inline
#define UNUSED __attribute__((unused))

enum { LANES = 1 };

typedef float values_t;
typedef int32_t sums_t;

INLINE values_t get_f32(const float *p, int n UNUSED)
{
    return *p;
}

INLINE void put_f32(float *p, values_t v, int n UNUSED)
{
    *p = v;
}

INLINE uint16_t get_bits(const void *p)
{
    uint16_t bits;
    memcpy(&bits, p, sizeof bits);
    return bits;
}

INLINE values_t get_f16(const void *p, int n UNUSED)
{
    return twi_f32_from_f16(get_bits(p));
}

INLINE values_t get_bf16(const void *p, int n UNUSED)
{
    return twi_f32_from_bf16(get_bits(p));
}

INLINE sums_t get_s8(const int8_t *p, int n UNUSED)
{
    return *p;
}

INLINE values_t to_values(sums_t s)
{
    return (float)s;
}

INLINE void put_s8(int8_t *p, values_t v, int n UNUSED)
{
    const float half = twi_f32_from_f16(twi_f16_from_f32(v));
    if (half != half)
        *p = 0;
    else
        *p = (int8_t)(half < -128.0f ? -128 : half > 127.0f ? 127 : twi_quant_rne(half));
}

INLINE void put_nearest(int8_t *p, values_t v, int n UNUSED)
{
    const int32_t rounded = twi_quant_rne(v);
    const int32_t above = rounded < -128 ? -128 : rounded;
    *p = (int8_t)(above > 127 ? 127 : above);
}

INLINE sums_t magnitudes(values_t v)
{
    return (sums_t)(twi_f32_bits(v) & 0x7fffffffu);
}

INLINE sums_t larger(sums_t a, sums_t b)
{
    return a > b ? a : b;
}

INLINE void put_bits(void *p, uint16_t bits)
{
    memcpy(p, &bits, sizeof bits);
}

INLINE void put_f16(void *p, values_t v, int n UNUSED, bool stream UNUSED)
{
    put_bits(p, twi_f16_from_f32(v));
}

INLINE void put_bf16(void *p, values_t v, int n UNUSED, bool stream UNUSED)
{
    put_bits(p, twi_bf16_from_f32(v));
}

#include "quant/quant_wire_body.h"

#include "quant/quant_token_body.h"
