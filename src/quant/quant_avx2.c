/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The int8 wire and per-token int8 with AVX2 and F16C. Partial vectors of fp32 are masked; those of smaller elements go
 * through a zero-filled copy. Any thread.
 */
#if defined(__x86_64__)
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define LEVEL(name) name##__avx2
#define INLINE static inline __attribute__((always_inline))

enum { LANES = 8 };

typedef __m256 values_t;
typedef int32_t sums_t __attribute__((vector_size(32)));
typedef uint32_t bits_t __attribute__((vector_size(32)));

INLINE values_t get_f32(const float *p, int n)
{
    if (n == LANES)
        return _mm256_loadu_ps(p);
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_maskload_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lanes));
}

INLINE void put_f32(float *p, values_t v, int n)
{
    memcpy(p, &v, (size_t)n * sizeof *p);
}

INLINE __m128i get_bytes(const void *p, int n)
{
    __m128i x = _mm_setzero_si128();
    memcpy(&x, p, (size_t)n);
    return x;
}

INLINE void put_bytes(void *p, __m128i x, int n)
{
    memcpy(p, &x, (size_t)n);
}

INLINE values_t get_f16(const void *p, int n)
{
    return _mm256_cvtph_ps(get_bytes(p, 2 * n));
}

INLINE values_t get_bf16(const void *p, int n)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(get_bytes(p, 2 * n)), 16));
}

INLINE sums_t get_s8(const int8_t *p, int n)
{
    return (sums_t)_mm256_cvtepi8_epi32(get_bytes(p, n));
}

INLINE values_t to_values(sums_t s)
{
    return _mm256_cvtepi32_ps((__m256i)s);
}

INLINE __m128i to_half(values_t v)
{
    return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
}

INLINE __m128i low_words(__m256i x)
{
    return _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
}

/* int32 to int8, in the lower half. */
INLINE __m128i saturated(__m256i x)
{
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    return _mm_packs_epi16(words, words);
}

/* What is too large for int32 converts to its least value: right for negative values, excluded for others. */
INLINE void put_s8(int8_t *p, values_t v, int n)
{
    const __m256 most = _mm256_min_ps(_mm256_cvtph_ps(to_half(v)), _mm256_set1_ps(127.0f));
    const __m256i whole = _mm256_cvtps_epi32(_mm256_and_ps(most, _mm256_cmp_ps(v, v, _CMP_ORD_Q)));
    put_bytes(p, saturated(whole), n);
}

INLINE void put_nearest(int8_t *p, values_t v, int n)
{
    put_bytes(p, saturated(_mm256_cvtps_epi32(v)), n);
}

INLINE sums_t magnitudes(values_t v)
{
    return (sums_t)v & 0x7fffffff;
}

INLINE sums_t larger(sums_t a, sums_t b)
{
    return (sums_t)_mm256_max_epi32((__m256i)a, (__m256i)b);
}

INLINE void put_f16(void *p, values_t v, int n, bool stream)
{
    (void)stream;
    put_bytes(p, to_half(v), 2 * n);
}

INLINE void put_bf16(void *p, values_t v, int n, bool stream)
{
    (void)stream;
    const bits_t bits = (bits_t)v, sum = bits + 0x7fffu + ((bits >> 16) & 1u), quiet = bits | 0x400000u;
    const __m256 result = _mm256_blendv_ps((__m256)sum, (__m256)quiet, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    put_bytes(p, low_words((__m256i)((bits_t)result >> 16)), 2 * n);
}

#include "quant/quant_wire_body.h"

#include "quant/quant_token_body.h"
#endif
