/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_GEMM_MODEL_AVX512_H
#define TEST_GEMM_MODEL_AVX512_H
/*
 * The instructions of AVX-512 (F, BW, DQ, VL, VNNI) that our sources use, for machines that have AVX2 and not them:
 * put in the place of the intrinsics in sources included after this header. Where AVX2 does the same with half as many
 * lanes it is done twice; the rest is written lane by lane. Loads and stores that want whole lines fail the test
 * elsewhere (those that the compiler makes of plain variables only at half of them), and lanes that are masked out are
 * neither read nor written.
 */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "harness/test.h"

#define MODEL_INLINE static inline __attribute__((always_inline, unused))
#define MODEL_CALLED static __attribute__((noinline, unused)) /* kernels have hundreds of them in a row */

enum { MODEL_VECTOR = 64, MODEL_LANES = 16, MODEL_WORDS = 32 };

typedef uint8_t model_u8_t __attribute__((vector_size(MODEL_VECTOR)));
typedef uint16_t model_u16_t __attribute__((vector_size(MODEL_VECTOR)));
typedef int32_t model_s32_t __attribute__((vector_size(MODEL_VECTOR)));
typedef uint32_t model_u32_t __attribute__((vector_size(MODEL_VECTOR)));

typedef union model_vector {
    __m512 ps;
    __m512i si;
    __m256 half_ps[2];
    __m256i half_si[2];
    __m128i quarter[4];
    int8_t s8[64];
    uint8_t u8[64];
    uint16_t u16[MODEL_WORDS];
    int32_t s32[MODEL_LANES];
    uint32_t u32[MODEL_LANES];
    uint64_t u64[8];
} model_vector_t;

/* ---- Memory ------------------------------------------------------------------------------------ */

MODEL_INLINE void model_aligned(const void *p)
{
    CHECK_EQ((uintptr_t)p % MODEL_VECTOR, 0);
}

MODEL_INLINE __m512i model_loadu(const void *p)
{
    __m512i v;
    memcpy(&v, p, sizeof v);
    return v;
}

MODEL_INLINE __m512i model_load(const void *p)
{
    model_aligned(p);
    return model_loadu(p);
}

MODEL_INLINE void model_storeu(void *p, __m512i v)
{
    memcpy(p, &v, sizeof v);
}

MODEL_INLINE void model_store(void *p, __m512i v)
{
    model_aligned(p);
    model_storeu(p, v);
}

/* The lanes of a mask, of some bytes each. */
MODEL_CALLED void model_some(char *to, const char *from, uint64_t mask, size_t bytes)
{
    for (; mask != 0; mask >>= 1, to += bytes, from += bytes)
        if (mask & 1)
            memcpy(to, from, bytes);
}

MODEL_INLINE __m512i model_loadz(uint64_t mask, const void *p, size_t bytes)
{
    __m512i v = {0};
    model_some((char *)&v, p, mask, bytes);
    return v;
}

MODEL_INLINE __m256i model_loadz_256(uint64_t mask, const void *p, size_t bytes)
{
    __m256i v = {0};
    model_some((char *)&v, p, mask, bytes);
    return v;
}

MODEL_INLINE __m128i model_loadz_128(uint64_t mask, const void *p, size_t bytes)
{
    __m128i v = {0};
    model_some((char *)&v, p, mask, bytes);
    return v;
}

MODEL_INLINE void model_store_some(void *p, uint64_t mask, __m512i v, size_t bytes)
{
    model_some(p, (const char *)&v, mask, bytes);
}

MODEL_INLINE void model_store_some_256(void *p, uint64_t mask, __m256i v, size_t bytes)
{
    model_some(p, (const char *)&v, mask, bytes);
}

MODEL_INLINE void model_store_some_128(void *p, uint64_t mask, __m128i v, size_t bytes)
{
    model_some(p, (const char *)&v, mask, bytes);
}

MODEL_INLINE __m512i model_both(__m256i half)
{
    const model_vector_t x = {.half_si = {half, half}};
    return x.si;
}

/* ---- Twice what AVX2 does ---------------------------------------------------------------------- */

#define MODEL_TWICE(name, type, member)                                                          \
    MODEL_CALLED type model_##name(type a, type b)                                               \
    {                                                                                            \
        model_vector_t x = {.member = a};                                                        \
        const model_vector_t y = {.member = b};                                                  \
        for (int half = 0; half < 2; half++)                                                     \
            x.half_##member[half] = _mm256_##name(x.half_##member[half], y.half_##member[half]); \
        return x.member;                                                                         \
    }
MODEL_TWICE(min_ps, __m512, ps)
MODEL_TWICE(max_epi8, __m512i, si)
MODEL_TWICE(max_epi16, __m512i, si)
MODEL_TWICE(max_epi32, __m512i, si)
MODEL_TWICE(min_epi8, __m512i, si)
MODEL_TWICE(min_epi16, __m512i, si)
MODEL_TWICE(min_epi32, __m512i, si)
MODEL_TWICE(madd_epi16, __m512i, si)
MODEL_TWICE(packus_epi32, __m512i, si)
MODEL_TWICE(unpacklo_epi16, __m512i, si)
MODEL_TWICE(unpackhi_epi16, __m512i, si)
MODEL_TWICE(unpacklo_epi32, __m512i, si)
MODEL_TWICE(unpackhi_epi32, __m512i, si)
MODEL_TWICE(unpacklo_epi64, __m512i, si)
MODEL_TWICE(unpackhi_epi64, __m512i, si)
#undef MODEL_TWICE

/* The immediate operand has to be a constant for the compiler. */
#define model_shuffle_ps(a, b, order)                                                           \
    ({                                                                                          \
        model_vector_t x_ = {.ps = a};                                                          \
        const model_vector_t y_ = {.ps = b};                                                    \
        for (int half_ = 0; half_ < 2; half_++)                                                 \
            x_.half_ps[half_] = _mm256_shuffle_ps(x_.half_ps[half_], y_.half_ps[half_], order); \
        x_.ps;                                                                                  \
    })

MODEL_INLINE __m512 model_fmadd_ps(__m512 a, __m512 b, __m512 c)
{
    const model_vector_t x = {.ps = a}, y = {.ps = b}, z = {.ps = c};
    model_vector_t sum;
    for (int i = 0; i < 2; i++)
        sum.half_ps[i] = _mm256_fmadd_ps(x.half_ps[i], y.half_ps[i], z.half_ps[i]);
    return sum.ps;
}

MODEL_CALLED __m512 model_cvtepi32_ps(__m512i v)
{
    model_vector_t x = {.si = v};
    for (int i = 0; i < 2; i++)
        x.half_ps[i] = _mm256_cvtepi32_ps(x.half_si[i]);
    return x.ps;
}

MODEL_CALLED __m512i model_cvtps_epi32(__m512 v)
{
    model_vector_t x = {.ps = v};
    for (int i = 0; i < 2; i++)
        x.half_si[i] = _mm256_cvtps_epi32(x.half_ps[i]);
    return x.si;
}

/* Lanes of twice their bytes. */
#define MODEL_WIDER(name, type, member)                       \
    MODEL_CALLED type model_##name(__m256i v)                 \
    {                                                         \
        const model_vector_t x = {.half_si = {v}};            \
        model_vector_t y;                                     \
        for (int i = 0; i < 2; i++)                           \
            y.half_##member[i] = _mm256_##name(x.quarter[i]); \
        return y.member;                                      \
    }
MODEL_WIDER(cvtph_ps, __m512, ps)
MODEL_WIDER(cvtepu16_epi32, __m512i, si)
MODEL_WIDER(cvtepi8_epi16, __m512i, si)
#undef MODEL_WIDER

MODEL_CALLED __m256i model_cvtps_ph(__m512 v, int rounding)
{
    CHECK_EQ(rounding & ~_MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT);
    const model_vector_t x = {.ps = v};
    model_vector_t y;
    for (int i = 0; i < 2; i++)
        y.quarter[i] = _mm256_cvtps_ph(x.half_ps[i], _MM_FROUND_TO_NEAREST_INT);
    return y.half_si[0];
}

MODEL_CALLED __m512i model_cvtepi8_epi32(__m128i v)
{
    model_vector_t y;
    y.half_si[0] = _mm256_cvtepi8_epi32(v);
    y.half_si[1] = _mm256_cvtepi8_epi32(_mm_srli_si128(v, 8));
    return y.si;
}

/* ---- Lane by lane ------------------------------------------------------------------------------ */

/* The lanes of a comparison, all bits set where it holds, as a mask. */
MODEL_CALLED __mmask16 model_lanes(model_s32_t holds)
{
    const model_vector_t x = {.si = (__m512i)holds};
    uint32_t mask = 0;
    for (int i = 0; i < 2; i++)
        mask |= (uint32_t)_mm256_movemask_ps(x.half_ps[i]) << 8 * i;
    return (__mmask16)mask;
}

MODEL_CALLED model_s32_t model_spread(__mmask16 mask)
{
    const model_s32_t bits = {1 << 0, 1 << 1, 1 << 2,  1 << 3,  1 << 4,  1 << 5,  1 << 6,  1 << 7,
                              1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15};
    return (bits & mask) != 0;
}

MODEL_CALLED __m512i model_choose(model_s32_t where, __m512i yes, __m512i no)
{
    return (__m512i)(((model_s32_t)yes & where) | ((model_s32_t)no & ~where));
}

MODEL_CALLED __mmask16 model_cmp_ps_mask(__m512 a, __m512 b, int how)
{
    const __mmask16 ordered = model_lanes((a == a) & (b == b));
    CHECK(how == _CMP_ORD_Q || how == _CMP_UNORD_Q);
    return how == _CMP_ORD_Q ? ordered : (__mmask16)~ordered;
}

MODEL_CALLED __mmask16 model_fpclass_ps_mask(__m512 v, int classes)
{
    const model_s32_t bits = (model_s32_t)v, magnitude = bits & 0x7fffffff, none = {0};
    const model_s32_t nan = magnitude > 0x7f800000, quiet = (bits & 0x400000) != 0, infinite = magnitude == 0x7f800000;
    const model_s32_t denormal = (magnitude > 0) & (magnitude < 0x800000);
    CHECK_EQ(classes & ~(0x01 | 0x08 | 0x10 | 0x20 | 0x80), 0);
    return model_lanes((classes & 0x01 ? nan & quiet : none) | (classes & 0x80 ? nan & ~quiet : none) |
                       (classes & 0x08 ? infinite & (bits > 0) : none) |
                       (classes & 0x10 ? infinite & (bits < 0) : none) | (classes & 0x20 ? denormal : none));
}

/* Tokens of the table: quiet NaN, signalling NaN, zero, one, -infinity, infinity, negative, positive. */
MODEL_INLINE uint32_t model_fix(uint32_t kept, uint32_t x, uint32_t table)
{
    const uint32_t magnitude = x & 0x7fffffff, sign = x >> 31;
    int token = sign ? 6 : 7;
    if (magnitude > 0x7f800000)
        token = x & 0x400000 ? 0 : 1;
    else if (magnitude == 0x7f800000)
        token = sign ? 4 : 5;
    else if (magnitude == 0)
        token = 2;
    else if (x == 0x3f800000)
        token = 3;
    const uint32_t response = table >> 4 * token & 15;
    CHECK(response <= 2 || response == 8);
    return response == 0 ? kept : response == 1 ? x : response == 2 ? x | 0x7fc00000 : 0;
}

MODEL_CALLED __m512 model_fixupimm_ps(__m512 kept, __m512 v, __m512i table)
{
    model_vector_t x = {.ps = kept};
    const model_vector_t y = {.ps = v}, z = {.si = table};
    for (int i = 0; i < MODEL_LANES; i++)
        x.u32[i] = model_fix(x.u32[i], y.u32[i], z.u32[i]);
    return x.ps;
}

MODEL_CALLED __m512i model_dpbusd(__m512i sums, __m512i a, __m512i b)
{
    model_vector_t sum = {.si = sums};
    const model_vector_t x = {.si = a}, y = {.si = b};
    for (int i = 0; i < MODEL_VECTOR; i++)
        sum.u32[i / 4] += (uint32_t)(x.u8[i] * y.s8[i]);
    return sum.si;
}

MODEL_CALLED __m512i model_permute_64(__m512i order, __m512i v)
{
    const model_vector_t from = {.si = v}, at = {.si = order};
    model_vector_t to;
    for (int i = 0; i < 8; i++)
        to.u64[i] = from.u64[at.u64[i] & 7];
    return to.si;
}

MODEL_CALLED __m512i model_permute_16(__m512i order, __m512i v)
{
    const model_vector_t from = {.si = v}, at = {.si = order};
    model_vector_t to;
    for (int i = 0; i < MODEL_WORDS; i++)
        to.u16[i] = from.u16[at.u16[i] & 31];
    return to.si;
}

MODEL_CALLED __m256i model_low_words(__m512i v)
{
    const model_vector_t from = {.si = v};
    model_vector_t to;
    for (int i = 0; i < MODEL_LANES; i++)
        to.u16[i] = (uint16_t)from.u32[i];
    return to.half_si[0];
}

MODEL_CALLED __m128i model_saturate_8(__m512i v)
{
    const model_vector_t from = {.si = v};
    model_vector_t to;
    for (int i = 0; i < MODEL_LANES; i++)
        to.s8[i] = (int8_t)(from.s32[i] < -128 ? -128 : from.s32[i] > 127 ? 127 : from.s32[i]);
    return to.quarter[0];
}

MODEL_CALLED __mmask32 model_not_below_16(__m512i a, __m512i b)
{
    const model_vector_t x = {.si = a}, y = {.si = b};
    __mmask32 mask = 0;
    for (int i = 0; i < MODEL_WORDS; i++)
        mask |= (__mmask32)(x.u16[i] >= y.u16[i]) << i;
    return mask;
}

MODEL_CALLED __m512i model_blend_16(__mmask32 mask, __m512i no, __m512i yes)
{
    model_vector_t to = {.si = no};
    const model_vector_t from = {.si = yes};
    for (int i = 0; i < MODEL_WORDS; i++)
        to.u16[i] = mask >> i & 1 ? from.u16[i] : to.u16[i];
    return to.si;
}

MODEL_INLINE __m512i model_insert_256(__m512i v, __m256i half, int at)
{
    model_vector_t x = {.si = v};
    x.half_si[at] = half;
    return x.si;
}

MODEL_INLINE __m512i model_insert_128(__m512i v, __m128i quarter, int at)
{
    model_vector_t x = {.si = v};
    x.quarter[at] = quarter;
    return x.si;
}

MODEL_INLINE __m256i model_extract_256(__m512i v, int at)
{
    const model_vector_t x = {.si = v};
    return x.half_si[at];
}

/* ---- In place of the intrinsics ---------------------------------------------------------------- */

/* Those that compilers may have as macros. */
#undef _mm512_cmp_ps_mask
#undef _mm512_cvtps_ph
#undef _mm512_extracti64x4_epi64
#undef _mm512_fixupimm_ps
#undef _mm512_fpclass_ps_mask
#undef _mm512_inserti32x4
#undef _mm512_inserti64x4
#undef _mm512_shuffle_ps
#undef _mm512_cmpge_epu16_mask
#undef _mm512_dpbusd_epi32
#undef _mm512_setr_epi32
#undef _mm512_setr_epi64

#define _mm512_loadu_ps(p) ((__m512)model_loadu(p))
#define _mm512_load_ps(p) ((__m512)model_load(p))
#define _mm512_loadu_si512(p) model_loadu(p)
#define _mm512_load_si512(p) model_load(p)
#define _mm512_storeu_ps(p, v) model_storeu(p, (__m512i)(v))
#define _mm512_store_ps(p, v) model_store(p, (__m512i)(v))
#define _mm512_storeu_si512(p, v) model_storeu(p, v)
#define _mm512_store_si512(p, v) model_store(p, v)
#define _mm512_stream_si512(p, v) model_store(p, v)
#define _mm512_maskz_loadu_ps(mask, p) ((__m512)model_loadz(mask, p, 4))
#define _mm512_maskz_loadu_epi32(mask, p) model_loadz(mask, p, 4)
#define _mm512_maskz_loadu_epi16(mask, p) model_loadz(mask, p, 2)
#define _mm256_maskz_loadu_epi16(mask, p) model_loadz_256(mask, p, 2)
#define _mm_maskz_loadu_epi8(mask, p) model_loadz_128(mask, p, 1)
#define _mm512_mask_store_ps(p, mask, v) (model_aligned(p), model_store_some(p, mask, (__m512i)(v), 4))
#define _mm512_mask_storeu_epi32(p, mask, v) model_store_some(p, mask, v, 4)
#define _mm512_mask_storeu_ps(p, mask, v) model_store_some(p, mask, (__m512i)(v), 4)
#define _mm512_mask_storeu_epi16(p, mask, v) model_store_some(p, mask, v, 2)
#define _mm512_mask_storeu_epi8(p, mask, v) model_store_some(p, mask, v, 1)
#define _mm256_mask_storeu_epi16(p, mask, v) model_store_some_256(p, mask, v, 2)
#define _mm_mask_storeu_epi8(p, mask, v) model_store_some_128(p, mask, v, 1)

#define _mm512_castsi512_ps(v) ((__m512)(v))
#define _mm512_castps_si512(v) ((__m512i)(v))
#define _mm512_castsi512_si256(v) model_extract_256(v, 0)
#define _mm512_castsi256_si512(v) model_insert_256(_mm512_set1_epi8(0x5a), v, 0) /* the rest may be anything */
#define _mm512_castsi128_si512(v) model_insert_128(_mm512_set1_epi8(0x5a), v, 0)
#define _mm512_extracti64x4_epi64(v, at) model_extract_256(v, at)
#define _mm512_inserti64x4(v, half, at) model_insert_256(v, half, at)
#define _mm512_inserti32x4(v, quarter, at) model_insert_128(v, quarter, at)

#define _mm512_setzero_ps() ((__m512){0})
#define _mm512_setzero_si512() ((__m512i){0})
#define _mm512_set1_ps(x) ((__m512)model_both((__m256i)_mm256_set1_ps(x)))
#define _mm512_set1_epi32(x) model_both(_mm256_set1_epi32(x))
#define _mm512_set1_epi16(x) model_both(_mm256_set1_epi16(x))
#define _mm512_set1_epi8(x) model_both(_mm256_set1_epi8(x))
#define _mm512_setr_epi32(...) ((__m512i)(model_s32_t){__VA_ARGS__})
#define _mm512_setr_epi64(...) ((__m512i){__VA_ARGS__})

#define _mm512_add_ps(a, b) ((__m512)(a) + (__m512)(b))
#define _mm512_sub_ps(a, b) ((__m512)(a) - (__m512)(b))
#define _mm512_mul_ps(a, b) ((__m512)(a) * (__m512)(b))
#define _mm512_min_ps(a, b) model_min_ps(a, b)
#define _mm512_fmadd_ps(a, b, c) model_fmadd_ps(a, b, c)
#define _mm512_shuffle_ps(a, b, order) model_shuffle_ps(a, b, order)
#define _mm512_mask_mov_ps(no, mask, yes) ((__m512)model_choose(model_spread(mask), (__m512i)(yes), (__m512i)(no)))
#define _mm512_cmp_ps_mask(a, b, how) model_cmp_ps_mask(a, b, how)
#define _mm512_fpclass_ps_mask(v, classes) model_fpclass_ps_mask(v, classes)
#define _mm512_fixupimm_ps(kept, v, table, flags) model_fixupimm_ps(kept, v, table)

#define _mm512_and_si512(a, b) ((__m512i)((a) & (b)))
#define _mm512_or_si512(a, b) ((__m512i)((a) | (b)))
#define _mm512_andnot_si512(a, b) ((__m512i)(~(a) & (b)))
#define _mm512_add_epi8(a, b) ((__m512i)((model_u8_t)(a) + (model_u8_t)(b)))
#define _mm512_add_epi32(a, b) ((__m512i)((model_u32_t)(a) + (model_u32_t)(b)))
#define _mm512_slli_epi32(v, n) ((__m512i)((model_u32_t)(v) << (n)))
#define _mm512_srli_epi32(v, n) ((__m512i)((model_u32_t)(v) >> (n)))
#define _mm512_srai_epi32(v, n) ((__m512i)((model_s32_t)(v) >> (n)))
#define _mm512_mask_add_epi32(no, mask, a, b) model_choose(model_spread(mask), _mm512_add_epi32(a, b), no)
#define _mm512_maskz_mov_epi32(mask, v) model_choose(model_spread(mask), v, (__m512i){0})
#define _mm512_mask_add_epi16(no, mask, a, b) model_blend_16(mask, no, (__m512i)((model_u16_t)(a) + (model_u16_t)(b)))
#define _mm512_mask_blend_epi16(mask, no, yes) model_blend_16(mask, no, yes)
#define _mm512_test_epi32_mask(a, b) model_lanes((model_s32_t)((a) & (b)) != 0)
#define _mm512_cmpge_epu16_mask(a, b) model_not_below_16(a, b)
#define _kortestz_mask16_u8(a, b) (((a) | (b)) == 0)
#define _mm512_max_epi8(a, b) model_max_epi8(a, b)
#define _mm512_max_epi16(a, b) model_max_epi16(a, b)
#define _mm512_max_epi32(a, b) model_max_epi32(a, b)
#define _mm512_min_epi8(a, b) model_min_epi8(a, b)
#define _mm512_min_epi16(a, b) model_min_epi16(a, b)
#define _mm512_min_epi32(a, b) model_min_epi32(a, b)
#define _mm512_madd_epi16(a, b) model_madd_epi16(a, b)
#define _mm512_dpbusd_epi32(sums, a, b) model_dpbusd(sums, a, b)
#define _mm512_packus_epi32(a, b) model_packus_epi32(a, b)
#define _mm512_unpacklo_epi16(a, b) model_unpacklo_epi16(a, b)
#define _mm512_unpackhi_epi16(a, b) model_unpackhi_epi16(a, b)
#define _mm512_unpacklo_epi32(a, b) model_unpacklo_epi32(a, b)
#define _mm512_unpackhi_epi32(a, b) model_unpackhi_epi32(a, b)
#define _mm512_unpacklo_epi64(a, b) model_unpacklo_epi64(a, b)
#define _mm512_unpackhi_epi64(a, b) model_unpackhi_epi64(a, b)
#define _mm512_permutexvar_epi64(order, v) model_permute_64(order, v)
#define _mm512_permutexvar_epi16(order, v) model_permute_16(order, v)

#define _mm512_cvtph_ps(v) model_cvtph_ps(v)
#define _mm512_cvtps_ph(v, rounding) model_cvtps_ph(v, rounding)
#define _mm512_cvtepi32_ps(v) model_cvtepi32_ps(v)
#define _mm512_cvtps_epi32(v) model_cvtps_epi32(v)
#define _mm512_maskz_cvtps_epi32(mask, v) model_choose(model_spread(mask), model_cvtps_epi32(v), (__m512i){0})
#define _mm512_cvtepu16_epi32(v) model_cvtepu16_epi32(v)
#define _mm512_cvtepi8_epi32(v) model_cvtepi8_epi32(v)
#define _mm512_cvtepi8_epi16(v) model_cvtepi8_epi16(v)
#define _mm512_cvtepi32_epi16(v) model_low_words(v)
#define _mm512_cvtsepi32_epi8(v) model_saturate_8(v)

#endif
