/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fp32 products in C alone: for every k the product is rounded, then the sum. Every NaN is stored as
 * 0x7fc00000: which of two operands that are NaN stays is the compiler's choice. Any thread.
 */
#include <stdint.h>

typedef float factor_t;
typedef float vector_t __attribute__((vector_size(16), may_alias));
typedef int32_t bits_t __attribute__((vector_size(16)));
typedef struct factors {
    vector_t half[2];
} factors_t;

static inline factors_t get_factors(const factor_t *from)
{
    return *(const factors_t *)from;
}

static inline void add_products(vector_t sums[2], factor_t a, factors_t b)
{
    sums[0] += a * b.half[0];
    sums[1] += a * b.half[1];
}

static inline vector_t finished(vector_t sums)
{
    const bits_t is_nan = sums != sums;
    return (vector_t)(((bits_t)sums & ~is_nan) | (0x7fc00000 & is_nan));
}

#include "gemm/ref/portable_body.h"

void twi_gemm_f32_f32_f32_4x16x1__portable(const twi_gemm_call_t *call)
{
    run_kernel(call);
}
