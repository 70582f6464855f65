/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions with AVX2, FMA and F16C. Any thread. */
#if defined(__x86_64__)
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define NAME(f) twi_gemm_##f##__avx2
#define BYTES 32
#define VEC __m256i
#define FLOATS __m256
#define HALF __m128i
#define OP(f) _mm256_##f
#define _mm256_and_si _mm256_and_si256
#define _mm256_or_si _mm256_or_si256
#define _mm256_andnot_si _mm256_andnot_si256
#define _mm256_setzero_si _mm256_setzero_si256
#define AS_FLOATS(v) _mm256_castsi256_ps(v)
#define AS_INTS(v) _mm256_castps_si256(v)
#define INLINE static inline __attribute__((always_inline))

INLINE VEC load(const char *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

INLINE void store(char *p, VEC v)
{
    _mm256_storeu_si256((__m256i *)p, v);
}

INLINE void store_part(char *p, VEC v, int bytes)
{
    __m128i rest = _mm256_castsi256_si128(v);
    if (bytes & 16) {
        _mm_storeu_si128((__m128i *)p, rest);
        rest = _mm256_extracti128_si256(v, 1);
        p += 16;
    }
    if (bytes & 8) {
        _mm_storel_epi64((__m128i *)p, rest);
        rest = _mm_srli_si128(rest, 8);
        p += 8;
    }
    if (bytes & 4) {
        const int word = _mm_cvtsi128_si32(rest);
        memcpy(p, &word, sizeof word);
        rest = _mm_srli_si128(rest, 4);
        p += 4;
    }
    if (bytes & 2) {
        const short word = (short)_mm_cvtsi128_si32(rest);
        memcpy(p, &word, sizeof word);
    }
}

INLINE VEC load_s8(const char *p)
{
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p));
}

INLINE VEC load_u16(const char *p)
{
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
}

INLINE VEC load_s8_wide(const char *p)
{
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));
}

INLINE FLOATS from_half(const char *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

INLINE HALF to_half(FLOATS v)
{
    return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
}

INLINE VEC in_order(VEC v)
{
    return _mm256_permute4x64_epi64(v, 0xd8);
}

INLINE VEC odd_words(VEC a, VEC b)
{
    return _mm256_blend_epi16(a, b, 0xaa);
}

INLINE VEC add_where_not_below(VEC v, VEC a, VEC b)
{
    return _mm256_sub_epi16(v, _mm256_cmpeq_epi16(_mm256_max_epu16(a, b), a));
}

INLINE VEC zero_unless_finite(VEC v, VEC of)
{
    const VEC exponent = _mm256_set1_epi32(0x7f800000);
    const VEC special = _mm256_cmpeq_epi32(_mm256_and_si256(of, exponent), exponent);
    return _mm256_andnot_si256(special, v);
}

INLINE int any(VEC v)
{
    return !_mm256_testz_si256(v, v);
}

INLINE VEC per_lane(const char *const *rows, int first, int step, int64_t at)
{
    const __m128i low = _mm_loadu_si128((const __m128i *)(rows[first] + at));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low),
                                   _mm_loadu_si128((const __m128i *)(rows[first + step] + at)), 1);
}

#include "gemm/x86/convert_x86.h"
#endif
