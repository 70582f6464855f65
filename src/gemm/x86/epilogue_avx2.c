/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The epilogue with AVX2 and F16C. Partial pairs are masked where elements have 32 bits; there is no
 * mask for 16, which go through a zero-filled copy. Any thread.
 */
#if defined(__x86_64__)
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define EPI_NAME twi_gemm_finish__avx2
#define EPI_LANES 8
#define INLINE static inline __attribute__((always_inline))

typedef uint32_t u32v __attribute__((vector_size(32)));
typedef float f32v __attribute__((vector_size(32)));

typedef struct pair {
    u32v lo, hi;
} pair_t;

typedef __m256i half_t;

typedef struct cut {
    __m256i lo, hi;
    size_t n;
} cut_t;

INLINE cut_t cut(int n)
{
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return (cut_t){_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lanes), _mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), lanes),
                   (size_t)n};
}

INLINE u32v int_to_f32(u32v s)
{
    return (u32v)_mm256_cvtepi32_ps((__m256i)s);
}

INLINE pair_t get32(bool whole, cut_t some, const void *p)
{
    const int *x = p;
    if (whole)
        return (pair_t){(u32v)_mm256_loadu_si256((const __m256i *)x),
                        (u32v)_mm256_loadu_si256((const __m256i *)(x + 8))};
    return (pair_t){(u32v)_mm256_maskload_epi32(x, some.lo), (u32v)_mm256_maskload_epi32(x + 8, some.hi)};
}

INLINE void put32(bool whole, cut_t some, void *p, pair_t v)
{
    int *to = p;
    if (whole) {
        _mm256_storeu_si256((__m256i *)to, (__m256i)v.lo);
        _mm256_storeu_si256((__m256i *)(to + 8), (__m256i)v.hi);
    } else {
        _mm256_maskstore_epi32(to, some.lo, (__m256i)v.lo);
        _mm256_maskstore_epi32(to + 8, some.hi, (__m256i)v.hi);
    }
}

INLINE __m256i get16(bool whole, cut_t some, const void *p)
{
    __m256i x = _mm256_setzero_si256();
    if (whole)
        x = _mm256_loadu_si256(p);
    else
        memcpy(&x, p, some.n * 2);
    return x;
}

INLINE void put16(bool whole, cut_t some, void *p, half_t v)
{
    if (whole)
        _mm256_storeu_si256(p, v);
    else
        memcpy(p, &v, some.n * 2);
}

INLINE pair_t get_f16(bool whole, cut_t some, const void *p)
{
    const __m256i x = get16(whole, some, p);
    return (pair_t){(u32v)_mm256_cvtph_ps(_mm256_castsi256_si128(x)),
                    (u32v)_mm256_cvtph_ps(_mm256_extracti128_si256(x, 1))};
}

INLINE pair_t get_bf16(bool whole, cut_t some, const void *p)
{
    const __m256i x = get16(whole, some, p);
    return (pair_t){(u32v)_mm256_cvtepu16_epi32(_mm256_castsi256_si128(x)) << 16,
                    (u32v)_mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1)) << 16};
}

INLINE __m128i to_half(u32v v)
{
    return _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT);
}

INLINE u32v round_f16(u32v v)
{
    return (u32v)_mm256_cvtph_ps(to_half(v));
}

INLINE half_t half_f16(pair_t v)
{
    return _mm256_set_m128i(to_half(v.hi), to_half(v.lo));
}

/* The upper half of each lane is v as bf16. */
INLINE u32v to_upper(u32v v)
{
    const u32v sum = v + 0x7fffu + ((v >> 16) & 1u), quiet = v | 0x400000u;
    return (u32v)_mm256_blendv_ps((__m256)sum, (__m256)quiet, _mm256_cmp_ps((__m256)v, (__m256)v, _CMP_UNORD_Q));
}

INLINE u32v round_bf16(u32v v)
{
    return to_upper(v) & 0xffff0000u;
}

INLINE half_t half_bf16(pair_t v)
{
    const __m256i lo = (__m256i)(to_upper(v.lo) >> 16), hi = (__m256i)(to_upper(v.hi) >> 16);
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(lo, hi), _MM_SHUFFLE(3, 1, 2, 0));
}

/* Half a line is not worth a way around the caches. */
INLINE void stream16(void *p, half_t v)
{
    _mm256_storeu_si256(p, v);
}

INLINE void stream32(void *p, pair_t v)
{
    put32(true, (cut_t){0}, p, v);
}

#include "gemm/epilogue_body.h"
#endif
