/* SPDX-License-Identifier: Apache-2.0 */
/* The int8 wire and per-token int8 with AVX-512 F, BW, DQ and VL. Any thread. */
#if defined(__x86_64__)
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#define LEVEL(name) name##__avx512
#define INLINE static inline __attribute__((always_inline))

enum { LANES = 16 };

typedef __m512 values_t;
typedef int32_t sums_t __attribute__((vector_size(64)));

INLINE __mmask16 first(int n)
{
    return (__mmask16)(0xffffu >> (LANES - n));
}

INLINE values_t get_f32(const float *p, int n)
{
    return n == LANES ? _mm512_loadu_ps(p) : _mm512_maskz_loadu_ps(first(n), p);
}

INLINE void put_f32(float *p, values_t v, int n)
{
    _mm512_mask_storeu_ps(p, first(n), v);
}

INLINE __m256i get_words(const void *p, int n)
{
    return n == LANES ? _mm256_loadu_si256(p) : _mm256_maskz_loadu_epi16(first(n), p);
}

INLINE void put_words(void *p, __m256i x, int n, bool stream)
{
    if (stream)
        _mm256_stream_si256(p, x);
    else if (n == LANES)
        _mm256_storeu_si256(p, x);
    else
        _mm256_mask_storeu_epi16(p, first(n), x);
}

INLINE void put_bytes(int8_t *p, __m128i x, int n)
{
    if (n == LANES)
        _mm_storeu_si128((void *)p, x);
    else
        _mm_mask_storeu_epi8(p, first(n), x);
}

INLINE values_t get_f16(const void *p, int n)
{
    return _mm512_cvtph_ps(get_words(p, n));
}

INLINE values_t get_bf16(const void *p, int n)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(get_words(p, n)), 16));
}

INLINE sums_t get_s8(const int8_t *p, int n)
{
    const __m128i x = n == LANES ? _mm_loadu_si128((const void *)p) : _mm_maskz_loadu_epi8(first(n), p);
    return (sums_t)_mm512_cvtepi8_epi32(x);
}

INLINE values_t to_values(sums_t s)
{
    return _mm512_cvtepi32_ps((__m512i)s);
}

INLINE __m256i to_half(values_t v)
{
    return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* What is too large for int32 converts to its least value: right for negative values, excluded for others. */
INLINE void put_s8(int8_t *p, values_t v, int n)
{
    const __m512 most = _mm512_min_ps(_mm512_cvtph_ps(to_half(v)), _mm512_set1_ps(127.0f));
    const __m512i whole = _mm512_maskz_cvtps_epi32(_mm512_cmp_ps_mask(v, v, _CMP_ORD_Q), most);
    put_bytes(p, _mm512_cvtsepi32_epi8(whole), n);
}

INLINE void put_nearest(int8_t *p, values_t v, int n)
{
    put_bytes(p, _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(v)), n);
}

INLINE sums_t magnitudes(values_t v)
{
    return (sums_t)v & 0x7fffffff;
}

INLINE sums_t larger(sums_t a, sums_t b)
{
    return (sums_t)_mm512_max_epi32((__m512i)a, (__m512i)b);
}

INLINE void put_f16(void *p, values_t v, int n, bool stream)
{
    put_words(p, to_half(v), n, stream);
}

/* The table says: for a NaN, v made quiet. */
INLINE void put_bf16(void *p, values_t v, int n, bool stream)
{
    const __m512i bits = _mm512_castps_si512(v);
    const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    __m512i sum = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
    sum = _mm512_mask_add_epi32(sum, odd, sum, _mm512_set1_epi32(1));
    const __m512 result = _mm512_fixupimm_ps(_mm512_castsi512_ps(sum), v, _mm512_set1_epi32(0x22), 0);
    put_words(p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(result), 16)), n, stream);
}

#include "quant/quant_wire_body.h"

#include "quant/quant_token_body.h"
#endif
