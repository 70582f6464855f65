/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions with AVX-512 F, BW, DQ and VL. Any thread. */
#if defined(__x86_64__)
#include <immintrin.h>
#include <stdint.h>

#define NAME(f) twi_gemm_##f##__avx512
#define BYTES 64
#define VEC __m512i
#define FLOATS __m512
#define HALF __m256i
#define OP(f) _mm512_##f
#define _mm512_and_si _mm512_and_si512
#define _mm512_or_si _mm512_or_si512
#define _mm512_andnot_si _mm512_andnot_si512
#define _mm512_setzero_si _mm512_setzero_si512
#define AS_FLOATS(v) _mm512_castsi512_ps(v)
#define AS_INTS(v) _mm512_castps_si512(v)
#define ROUNDING (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define INLINE static inline __attribute__((always_inline))

INLINE VEC load(const char *p)
{
    return _mm512_loadu_si512(p);
}

INLINE void store(char *p, VEC v)
{
    _mm512_storeu_si512(p, v);
}

INLINE void store_part(char *p, VEC v, int bytes)
{
    _mm512_mask_storeu_epi8(p, UINT64_MAX >> (64 - bytes), v);
}

INLINE VEC load_s8(const char *p)
{
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p));
}

INLINE VEC load_u16(const char *p)
{
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
}

INLINE VEC load_s8_wide(const char *p)
{
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p));
}

INLINE FLOATS from_half(const char *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

INLINE HALF to_half(FLOATS v)
{
    return _mm512_cvtps_ph(v, ROUNDING);
}

INLINE VEC in_order(VEC v)
{
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), v);
}

INLINE VEC odd_words(VEC a, VEC b)
{
    return _mm512_mask_blend_epi16(0xaaaaaaaau, a, b);
}

INLINE VEC add_where_not_below(VEC v, VEC a, VEC b)
{
    return _mm512_mask_add_epi16(v, _mm512_cmpge_epu16_mask(a, b), v, _mm512_set1_epi16(1));
}

INLINE VEC zero_unless_finite(VEC v, VEC of)
{
    const __mmask16 special = _mm512_fpclass_ps_mask(AS_FLOATS(of), 0x99); /* NaNs and infinities */
    return _mm512_maskz_mov_epi32((__mmask16)~special, v);
}

INLINE int any(VEC v)
{
    return _mm512_test_epi32_mask(v, v) != 0;
}

INLINE VEC per_lane(const char *const *rows, int first, int step, int64_t at)
{
    const char *const *row = rows + first;
    VEC v = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(row[0] + at)));
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(row[step] + at)), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(row[2 * step] + at)), 2);
    return _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(row[3 * step] + at)), 3);
}

#include "gemm/x86/convert_x86.h"
#endif
