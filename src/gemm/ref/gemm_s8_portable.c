/* SPDX-License-Identifier: Apache-2.0 */
/* int8 products in C alone, exact modulo 2^32. The product of two int8 fits in 16 bits. Any thread. */
#include <stdint.h>
#include <string.h>

typedef int8_t factor_t;
typedef int8_t s8x8_t __attribute__((vector_size(8)));
typedef int16_t s16x4_t __attribute__((vector_size(8)));
typedef int16_t factors_t __attribute__((vector_size(16)));
typedef uint32_t vector_t __attribute__((vector_size(16), may_alias));

static inline factors_t get_factors(const factor_t *from)
{
    s8x8_t x;
    memcpy(&x, from, sizeof(x));
    return __builtin_convertvector(x, factors_t);
}

static inline void add_products(vector_t sums[2], factor_t a, factors_t b)
{
    const factors_t products = (int16_t)a * b;
    s16x4_t half[2];
    memcpy(half, &products, sizeof(half));
    sums[0] += __builtin_convertvector(half[0], vector_t);
    sums[1] += __builtin_convertvector(half[1], vector_t);
}

static inline vector_t finished(vector_t sums)
{
    return sums;
}

#include "gemm/ref/portable_body.h"

void twi_gemm_s8_s8_s32_4x16x1__portable(const twi_gemm_call_t *call)
{
    run_kernel(call);
}
