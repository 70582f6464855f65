/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The epilogue with AVX-512 F, BW, DQ and VL. Partial pairs are masked. Any thread. The including file defines
 * EPI_NAME, EPI_BF16 if it has AVX512_BF16, and EPI_ROW_NAME if rows are wanted one at a time.
 */
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#include "gemm/epilogue_level.h"

#define EPI_LANES 16
#define INLINE static inline __attribute__((always_inline))

typedef uint32_t u32v __attribute__((vector_size(64)));
typedef float f32v __attribute__((vector_size(64)));

typedef struct pair {
    u32v lo, hi;
} pair_t;

typedef __m512i half_t;

typedef struct cut {
    __mmask16 lo, hi;
} cut_t;

INLINE cut_t cut(int n)
{
    const uint32_t mask = n < 32 ? (1u << n) - 1 : UINT32_MAX;
    return (cut_t){(__mmask16)mask, (__mmask16)(mask >> 16)};
}

INLINE u32v int_to_f32(u32v s)
{
    return (u32v)_mm512_cvtepi32_ps((__m512i)s);
}

INLINE pair_t get32(bool whole, cut_t some, const void *p)
{
    const int32_t *x = p;
    if (whole)
        return (pair_t){(u32v)_mm512_loadu_si512(x), (u32v)_mm512_loadu_si512(x + 16)};
    return (pair_t){(u32v)_mm512_maskz_loadu_epi32(some.lo, x), (u32v)_mm512_maskz_loadu_epi32(some.hi, x + 16)};
}

INLINE void put32(bool whole, cut_t some, void *p, pair_t v)
{
    int32_t *to = p;
    if (whole) {
        _mm512_storeu_si512(to, (__m512i)v.lo);
        _mm512_storeu_si512(to + 16, (__m512i)v.hi);
    } else {
        _mm512_mask_storeu_epi32(to, some.lo, (__m512i)v.lo);
        _mm512_mask_storeu_epi32(to + 16, some.hi, (__m512i)v.hi);
    }
}

INLINE __m256i get16(bool whole, __mmask16 mask, const uint16_t *p)
{
    return whole ? _mm256_loadu_si256((const __m256i *)p) : _mm256_maskz_loadu_epi16(mask, p);
}

INLINE void put16(bool whole, cut_t some, void *p, half_t v)
{
    if (whole)
        _mm512_storeu_si512(p, v);
    else
        _mm512_mask_storeu_epi16(p, (__mmask32)some.lo | (__mmask32)some.hi << 16, v);
}

INLINE void stream16(void *p, half_t v)
{
    _mm512_stream_si512(p, v);
}

INLINE void stream32(void *p, pair_t v)
{
    _mm512_stream_si512(p, (__m512i)v.lo);
    _mm512_stream_si512((__m512i *)p + 1, (__m512i)v.hi);
}

INLINE pair_t get_f16(bool whole, cut_t some, const void *p)
{
    const uint16_t *x = p;
    return (pair_t){(u32v)_mm512_cvtph_ps(get16(whole, some.lo, x)),
                    (u32v)_mm512_cvtph_ps(get16(whole, some.hi, x + 16))};
}

INLINE pair_t get_bf16(bool whole, cut_t some, const void *p)
{
    const uint16_t *x = p;
    return (pair_t){(u32v)_mm512_cvtepu16_epi32(get16(whole, some.lo, x)) << 16,
                    (u32v)_mm512_cvtepu16_epi32(get16(whole, some.hi, x + 16)) << 16};
}

INLINE __m256i to_half(u32v v)
{
    return _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

INLINE u32v round_f16(u32v v)
{
    return (u32v)_mm512_cvtph_ps(to_half(v));
}

INLINE half_t half_f16(pair_t v)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(to_half(v.lo)), to_half(v.hi), 1);
}

/* The upper half of each lane is v as bf16. The table says: for a NaN, v made quiet. */
INLINE __m512i to_upper(u32v v)
{
    const __m512i bits = (__m512i)v;
    const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    __m512i sum = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
    sum = _mm512_mask_add_epi32(sum, odd, sum, _mm512_set1_epi32(1));
    return (__m512i)_mm512_fixupimm_ps((__m512)sum, (__m512)v, _mm512_set1_epi32(0x22), 0);
}

INLINE u32v round_bf16(u32v v)
{
    return (u32v)to_upper(v) & 0xffff0000u;
}

#ifdef EPI_BF16
enum { DENORMAL = 0x20 }; /* which the instruction would take for zero */

/* Whether any of a pair is of some classes, which are a constant. */
#define HAS_CLASS(v, classes)                                                               \
    __builtin_expect(!_kortestz_mask16_u8(_mm512_fpclass_ps_mask((__m512)(v).lo, classes),  \
                                          _mm512_fpclass_ps_mask((__m512)(v).hi, classes)), \
                     0)
#endif

INLINE half_t half_bf16(pair_t v)
{
#ifdef EPI_BF16
    if (!HAS_CLASS(v, DENORMAL))
        return (half_t)_mm512_cvtne2ps_pbh((__m512)v.hi, (__m512)v.lo);
#endif
    const __m512i lo = _mm512_srli_epi32(to_upper(v.lo), 16), hi = _mm512_srli_epi32(to_upper(v.hi), 16);
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    return _mm512_permutexvar_epi64(order, _mm512_packus_epi32(lo, hi));
}

#ifdef EPI_BF16
#define EPI_ADD_BF16
#include "gemm/x86/add_avx512bf16.h"

INLINE bool add_bf16(const twi_gemm_part_t *part, int64_t at, pair_t v, half_t *sum_out)
{
    if (HAS_CLASS(v, DENORMAL))
        return false;
    const half_t own = (half_t)_mm512_cvtne2ps_pbh((__m512)v.hi, (__m512)v.lo);
    return twi_bf16_round(twi_bf16_sum(part, at, own), sum_out);
}
#endif

#include "gemm/epilogue_body.h"
