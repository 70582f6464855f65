/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_GEMM_X86_ADD_AVX512BF16_H
#define TWI_GEMM_X86_ADD_AVX512BF16_H
/* Sums of a line of bf16 results and of its addends. Only for files that are compiled for AVX512_BF16. */
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#include "gemm/epilogue.h"

/* The neighbours of a line: its even places and its odd ones, widened. Their sums need no order before they are rounded. */
typedef struct twi_bf16_line {
    __m512 even, odd;
} twi_bf16_line_t;

static inline __attribute__((always_inline)) twi_bf16_line_t twi_bf16_neighbours(__m512i halves)
{
    return (twi_bf16_line_t){
        (__m512)_mm512_slli_epi32(halves, 16),
        (__m512)_mm512_and_si512(halves, _mm512_set1_epi32((int)0xffff0000u)),
    };
}

static inline __attribute__((always_inline)) twi_bf16_line_t twi_bf16_load(const char *from, int64_t ahead)
{
    _mm_prefetch((const char *)((uintptr_t)from + (uintptr_t)ahead), _MM_HINT_T1); /* may be no memory */
    return twi_bf16_neighbours(_mm512_loadu_si512(from));
}

static inline __attribute__((always_inline)) twi_bf16_line_t twi_bf16_addend(const twi_gemm_part_t *part, int i,
                                                                             int64_t at)
{
    return twi_bf16_load((const char *)part->addends[i] + at, part->addend_ahead);
}

static inline __attribute__((always_inline)) twi_bf16_line_t twi_bf16_add(twi_bf16_line_t a, twi_bf16_line_t b)
{
    return (twi_bf16_line_t){_mm512_add_ps(a.even, b.even), _mm512_add_ps(a.odd, b.odd)};
}

/* As bf16, in the order of the line; false: there are denormals, which would be taken for zero, or NaNs. */
static inline __attribute__((always_inline)) bool twi_bf16_round(twi_bf16_line_t sum, __m512i *out)
{
    enum { CLASSES = 0x20 | 0x81 };
    if (__builtin_expect(
            !_kortestz_mask16_u8(_mm512_fpclass_ps_mask(sum.even, CLASSES), _mm512_fpclass_ps_mask(sum.odd, CLASSES)),
            0))
        return false;
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i order = _mm512_add_epi32(_mm512_or_si512(lanes, _mm512_slli_epi32(lanes, 16)),
                                           _mm512_set1_epi32(0x100000)); /* halves i and 16 + i side by side */
    *out = _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(sum.odd, sum.even));
    return true;
}

/* The sum of our own results, rounded, and of all addends at `at` bytes from their first element. */
static inline __attribute__((always_inline)) twi_bf16_line_t twi_bf16_sum(const twi_gemm_part_t *part, int64_t at,
                                                                          __m512i own)
{
    const twi_bf16_line_t mine = twi_bf16_neighbours(own);
    if (part->n_addends == 2) /* in any order */
        return twi_bf16_add(mine, twi_bf16_addend(part, 1 - part->own, at));
    twi_bf16_line_t sum = part->own == 0 ? mine : twi_bf16_addend(part, 0, at);
    for (int i = 1; i < part->n_addends; i++)
        sum = twi_bf16_add(sum, i == part->own ? mine : twi_bf16_addend(part, i, at));
    return sum;
}

#endif
