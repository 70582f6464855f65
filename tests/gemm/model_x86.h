/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_GEMM_MODEL_X86_H
#define TEST_GEMM_MODEL_X86_H
/*
 * Tile and bf16 instructions in software, as their documentation has them, put in the place of the
 * intrinsics: sources included after this header run on any machine with AVX-512, or with AVX2 if they
 * are not compiled for more. Their order of operations and their flushing are those of the documentation;
 * a result that is tiny before it is rounded and not after it may come out otherwise on a machine.
 */
#include <immintrin.h>

#include "base/dtype.h"
#include "gemm/model_tiles.h"
#if defined(MODEL_AVX512)
#include "gemm/model_avx512.h"
#endif

typedef int32_t model_bits_t __attribute__((vector_size(64)));

static inline __m512 model_flush(__m512 values)
{
    const model_bits_t bits = (model_bits_t)values, tiny = (bits & 0x7f800000) == 0;
    return (__m512)(bits & ~(tiny & 0x7fffffff));
}

/* The even or the odd places of pairs of bf16, as the instructions take them. */
static inline __m512 model_factors(__m512i pairs, int odd)
{
    const __m512i top = _mm512_set1_epi32((int32_t)0xffff0000u);
    return model_flush(_mm512_castsi512_ps(odd ? _mm512_and_si512(pairs, top) : _mm512_slli_epi32(pairs, 16)));
}

/* Two fused steps, the odd place first. */
static __attribute__((noinline, unused)) __m512 model_mm512_dpbf16_ps(__m512 src, __m512bh a, __m512bh b)
{
    const __m512i x = (__m512i)a, y = (__m512i)b;
    __m512 sum = model_flush(src);
    for (int odd = 1; odd >= 0; odd--)
        sum = model_flush(_mm512_fmadd_ps(model_factors(x, odd), model_factors(y, odd), sum));
    return sum;
}

static __attribute__((noinline, unused)) void model_narrow(const __m512 *src, uint16_t *dst)
{
    const __m512 flushed = model_flush(*src);
    float value[16];
    memcpy(value, &flushed, sizeof value);
    for (int i = 0; i < 16; i++)
        dst[i] = twi_bf16_from_f32(value[i]);
}

static inline __m256bh model_mm512_cvtneps_pbh(__m512 src)
{
    uint16_t bits[16];
    __m256bh dst;
    model_narrow(&src, bits);
    memcpy(&dst, bits, sizeof dst);
    return dst;
}

/* The second operand becomes the lower half. */
static inline __m512bh model_mm512_cvtne2ps_pbh(__m512 high, __m512 low)
{
    uint16_t bits[32];
    __m512bh dst;
    model_narrow(&low, bits);
    model_narrow(&high, bits + 16);
    memcpy(&dst, bits, sizeof dst);
    return dst;
}

#define _mm512_dpbf16_ps(src, a, b) model_mm512_dpbf16_ps(src, a, b)
#define _mm512_cvtneps_pbh(src) model_mm512_cvtneps_pbh(src)
#define _mm512_cvtne2ps_pbh(high, low) model_mm512_cvtne2ps_pbh(high, low)

#endif
