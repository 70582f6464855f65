/* SPDX-License-Identifier: Apache-2.0 */
/* The sets of conversions and the choice by level. Any thread. */
#include "gemm/convert.h"

#include "gemm/convert_sets.h"

/* `own` is the level whose split_f16 and dequant_bf16 the set has; the rest is that of `common`. */
#define SET(LEVEL, common, own)                                                                      \
    {                                                                                                \
        .isa = TWI_ISA_##LEVEL, .widen_bf16 = twi_gemm_widen_bf16__##common,                         \
        .widen_f16 = twi_gemm_widen_f16__##common, .widen_s8 = twi_gemm_widen_s8__##common,          \
        .bias_s8 = twi_gemm_bias_s8__##common, .split_f16 = twi_gemm_split_f16__##own,               \
        .dequant_bf16 = twi_gemm_dequant_bf16__##own, .dequant_f16 = twi_gemm_dequant_f16__##common, \
        .transpose = twi_gemm_transpose__##common, .interleave = twi_gemm_interleave__##common       \
    }

static const twi_gemm_convert_t sets[] = {
    SET(PORTABLE, portable, portable),
#if defined(__x86_64__)
    SET(AVX2, avx2, avx2),
    SET(AVX512, avx512, avx512),
    SET(AVX512BF16, avx512, avx512bf16),
#endif
};

const twi_gemm_convert_t *twi_gemm_convert(twi_isa_t level)
{
    const twi_gemm_convert_t *best = &sets[0];
    for (unsigned i = 1; i < sizeof sets / sizeof sets[0]; i++) {
        if (sets[i].isa <= level)
            best = &sets[i];
    }
    return best;
}
