/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_GEMM_X86_SPLIT_AVX512BF16_H
#define TWI_GEMM_X86_SPLIT_AVX512BF16_H
/* fp16 as the sum of two bf16, see TWI_LANE_F16X2. Only for files that are compiled for AVX512_BF16. */
#include <immintrin.h>

/* Both of 16 elements as fp32: the top 8 bits of the significand and the rest, 0 for an infinity or NaN. */
static inline __attribute__((always_inline)) void twi_split_16(__m256i half, __m512 *top, __m512 *rest)
{
    const __m512 value = _mm512_cvtph_ps(half);
    *top = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(value), _mm512_set1_epi32((int)0xffff0000u)));
    const __m512 left = _mm512_sub_ps(value, *top);
    *rest = _mm512_fixupimm_ps(left, left, _mm512_set1_epi32(0x88), 0); /* the table says: for a NaN, 0 */
}

/* Neither part is a denormal, and no bit is rounded off: the instruction only puts them in order. */
static inline __attribute__((always_inline)) void twi_split_32(__m512i halves, __m512i *hi, __m512i *lo)
{
    __m512 top[2], rest[2];
    twi_split_16(_mm512_castsi512_si256(halves), &top[0], &rest[0]);
    twi_split_16(_mm512_extracti64x4_epi64(halves, 1), &top[1], &rest[1]);
    *hi = (__m512i)_mm512_cvtne2ps_pbh(top[1], top[0]);
    *lo = (__m512i)_mm512_cvtne2ps_pbh(rest[1], rest[0]);
}

#endif
