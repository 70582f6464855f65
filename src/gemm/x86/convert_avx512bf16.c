/* SPDX-License-Identifier: Apache-2.0 */
/* What AVX512_BF16 does better than AVX-512: rounding to bf16, which takes denormals for zero. Any thread. */
#if defined(__x86_64__)
#include <immintrin.h>

#include "gemm/convert_sets.h"
#include "gemm/x86/make_avx512bf16.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    LINE = 64,
    WORDS = 32, /* of 16 bits in a vector */
};

/* ---- fp16 as the sum of two bf16 --------------------------------------------------------------- */

void twi_gemm_split_f16__avx512bf16(uint16_t *hi, uint16_t *lo, const uint16_t *src, int64_t n)
{
    __m512i top, rest;
    for (; n >= WORDS; n -= WORDS, hi += WORDS, lo += WORDS, src += WORDS) {
        twi_convert_ahead(src);
        twi_split_32(_mm512_loadu_si512(src), &top, &rest);
        _mm512_storeu_si512(hi, top);
        _mm512_storeu_si512(lo, rest);
    }
    if (n > 0) {
        const __mmask32 some = UINT32_MAX >> (WORDS - n);
        twi_split_32(_mm512_maskz_loadu_epi16(some, src), &top, &rest);
        _mm512_mask_storeu_epi16(hi, some, top);
        _mm512_mask_storeu_epi16(lo, some, rest);
    }
}

/* ---- int8 weights ------------------------------------------------------------------------------ */

/* Rows of a line, as panels have them: what goes with the elements stays in registers. */
INLINE void dequant_lines(uint16_t *dst, const int8_t *src, int64_t rows, const float *scales, const float *offsets)
{
    __m512 scale[4], offset[4];
    for (int i = 0; i < 4; i++) {
        scale[i] = _mm512_loadu_ps(scales + 16 * i);
        offset[i] = offsets ? _mm512_loadu_ps(offsets + 16 * i) : _mm512_setzero_ps();
    }
    for (; rows > 0; rows--, src += LINE, dst += LINE) {
        twi_convert_ahead(src);
        twi_dequant_64(dst, src, scale, offsets ? offset : NULL);
    }
}

/* Rows of any multiple of 16. */
static void dequant_row(uint16_t *dst, const int8_t *src, int64_t period, const float *scale, const float *offset)
{
    for (int64_t i = 0; i < period; i += 16) {
        const __m512 add = offset ? _mm512_loadu_ps(offset + i) : _mm512_setzero_ps();
        const __m512 value = twi_dequant_16(src + i, _mm512_loadu_ps(scale + i), offset ? &add : NULL);
        _mm256_storeu_si256((__m256i *)(dst + i), (__m256i)_mm512_cvtneps_pbh(value));
    }
}

void twi_gemm_dequant_bf16__avx512bf16(uint16_t *dst, const int8_t *src, int64_t rows, int64_t period,
                                       const float *scale, const float *offset)
{
    if (period == LINE && offset)
        dequant_lines(dst, src, rows, scale, offset);
    else if (period == LINE)
        dequant_lines(dst, src, rows, scale, NULL);
    else
        for (int64_t r = 0; r < rows; r++)
            dequant_row(dst + r * period, src + r * period, period, scale, offset);
}
#endif
