/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_GEMM_X86_MAKE_AVX512BF16_H
#define TWI_GEMM_X86_MAKE_AVX512BF16_H
/* Panels of bf16 from those of fp16 and of int8. Only for files that are compiled for AVX512_BF16. */
#include <immintrin.h>
#include <stdint.h>

/* ---- fp16 as the sum of two bf16, see TWI_LANE_F16X2 ------------------------------------------- */

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

/* ---- int8 weights ------------------------------------------------------------------------------ */

/* 16 elements as fp32; offset may be NULL. */
static inline __attribute__((always_inline)) __m512 twi_dequant_16(const int8_t *src, __m512 scale,
                                                                   const __m512 *offset)
{
    __m512 value = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)src)));
    if (offset)
        value = _mm512_add_ps(value, *offset);
    return _mm512_mul_ps(value, scale);
}

/* A line of 64 elements; each has a scale, and an offset unless there are none. */
static inline __attribute__((always_inline)) void twi_dequant_64(uint16_t *dst, const int8_t *src, const __m512 *scale,
                                                                 const __m512 *offset)
{
    for (int i = 0; i < 4; i += 2) {
        const __m512 low = twi_dequant_16(src + 16 * i, scale[i], offset ? &offset[i] : NULL);
        const __m512 high = twi_dequant_16(src + 16 * i + 16, scale[i + 1], offset ? &offset[i + 1] : NULL);
        _mm512_storeu_si512(dst + 16 * i, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
}

#endif
