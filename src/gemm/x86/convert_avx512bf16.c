/* SPDX-License-Identifier: Apache-2.0 */
/* What AVX512_BF16 does better than AVX-512: rounding to bf16, which takes denormals for zero. Any thread. */
#if defined(__x86_64__)
#include <immintrin.h>

#include "gemm/convert_sets.h"

#define INLINE static inline __attribute__((always_inline))

INLINE __m512 dequant_16(const int8_t *src, const float *scale, const float *offset)
{
    __m512 value = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)src)));
    if (offset)
        value = _mm512_add_ps(value, _mm512_loadu_ps(offset));
    return _mm512_mul_ps(value, _mm512_loadu_ps(scale));
}

INLINE void dequant_row(uint16_t *dst, const int8_t *src, int64_t period, const float *scale, const float *offset)
{
    int64_t i = 0;
    for (; i + 32 <= period; i += 32) {
        twi_convert_ahead(src + i);
        const __m512 low = dequant_16(src + i, scale + i, offset ? offset + i : NULL);
        const __m512 high = dequant_16(src + i + 16, scale + i + 16, offset ? offset + i + 16 : NULL);
        _mm512_storeu_si512(dst + i, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
    if (i < period) {
        const __m512 last = dequant_16(src + i, scale + i, offset ? offset + i : NULL);
        _mm256_storeu_si256((__m256i *)(dst + i), (__m256i)_mm512_cvtneps_pbh(last));
    }
}

void twi_gemm_dequant_bf16__avx512bf16(uint16_t *dst, const int8_t *src, int64_t rows, int64_t period,
                                       const float *scale, const float *offset)
{
    for (int64_t r = 0; r < rows; r++) {
        if (offset)
            dequant_row(dst + r * period, src + r * period, period, scale, offset);
        else
            dequant_row(dst + r * period, src + r * period, period, scale, NULL);
    }
}
#endif
