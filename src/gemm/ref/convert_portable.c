/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions in plain C, element by element: the definition of what the other levels compute. Any thread. */
#include <string.h>

#include "base/dtype.h"
#include "gemm/convert_sets.h"

/* Elements at any address. */
typedef uint16_t u16_loose __attribute__((aligned(1), may_alias));
typedef int16_t s16_loose __attribute__((aligned(1), may_alias));
typedef uint32_t u32_loose __attribute__((aligned(1), may_alias));
typedef float f32_loose __attribute__((aligned(1), may_alias));
typedef struct line {
    uint8_t bytes[64];
} line_t;

void twi_gemm_widen_bf16__portable(float *dst, const uint16_t *src, int64_t n)
{
    const u16_loose *from = src;
    u32_loose *to = (u32_loose *)dst;
    for (int64_t i = 0; i < n; i++)
        to[i] = (uint32_t)from[i] << 16;
}

void twi_gemm_widen_f16__portable(float *dst, const uint16_t *src, int64_t n)
{
    const u16_loose *from = src;
    f32_loose *to = dst;
    for (int64_t i = 0; i < n; i++)
        to[i] = twi_f32_from_f16(from[i]);
}

void twi_gemm_widen_s8__portable(int16_t *dst, const int8_t *src, int64_t n)
{
    s16_loose *to = dst;
    for (int64_t i = 0; i < n; i++)
        to[i] = src[i];
}

void twi_gemm_bias_s8__portable(uint8_t *dst, const int8_t *src, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = (uint8_t)(src[i] + 128);
}

void twi_gemm_split_f16__portable(uint16_t *hi, uint16_t *lo, const uint16_t *src, int64_t n)
{
    const u16_loose *from = src;
    u16_loose *to_hi = hi, *to_lo = lo;
    for (int64_t i = 0; i < n; i++) {
        const uint16_t half = from[i];
        const float value = twi_f32_from_f16(half);
        const uint32_t top = twi_f32_bits(value) & 0xffff0000u;
        const float rest = (half & 0x7c00u) == 0x7c00u ? 0 : value - twi_f32_from_bits(top);
        to_hi[i] = (uint16_t)(top >> 16);
        to_lo[i] = (uint16_t)(twi_f32_bits(rest) >> 16);
    }
}

void twi_gemm_dequant_bf16__portable(uint16_t *dst, const int8_t *src, int64_t rows, int64_t period, const float *scale,
                                     const float *offset)
{
    const f32_loose *s = scale, *o = offset;
    u16_loose *to = dst;
    for (int64_t r = 0; r < rows; r++, src += period, to += period) {
        for (int64_t i = 0; i < period; i++) {
            const float shifted = o ? (float)src[i] + o[i] : (float)src[i];
            to[i] = twi_bf16_from_f32(shifted * s[i]);
        }
    }
}

void twi_gemm_dequant_f16__portable(uint16_t *dst, const int8_t *src, int64_t rows, int64_t period, const float *scale,
                                    const float *offset)
{
    const f32_loose *s = scale, *o = offset;
    u16_loose *to = dst;
    for (int64_t r = 0; r < rows; r++, src += period, to += period) {
        for (int64_t i = 0; i < period; i++) {
            const float q = (float)src[i];
            const float shifted = o ? twi_f32_from_f16(twi_f16_from_f32(q + o[i])) : q;
            to[i] = twi_f16_from_f32(shifted * s[i]);
        }
    }
}

#define DEFINE_TRANSPOSE(type)                                                                             \
    static void transpose_##type(type *dst, int64_t ld_dst, const char *src, int64_t ld_src, int64_t rows, \
                                 int64_t units)                                                            \
    {                                                                                                      \
        for (int64_t u = 0; u < units; u++, dst += ld_dst, src += sizeof(type)) {                          \
            for (int64_t r = 0; r < rows; r++)                                                             \
                dst[r] = *(const type *)(src + r * ld_src);                                                \
        }                                                                                                  \
    }
DEFINE_TRANSPOSE(uint8_t)
DEFINE_TRANSPOSE(u16_loose)
DEFINE_TRANSPOSE(u32_loose)
DEFINE_TRANSPOSE(line_t)

void twi_gemm_transpose__portable(void *dst, int64_t ld_dst, const void *src, int64_t ld_src_bytes, int64_t rows,
                                  int64_t units, int unit_bytes)
{
    if (unit_bytes == 1)
        transpose_uint8_t(dst, ld_dst, src, ld_src_bytes, rows, units);
    else if (unit_bytes == 2)
        transpose_u16_loose(dst, ld_dst, src, ld_src_bytes, rows, units);
    else if (unit_bytes == 4)
        transpose_u32_loose(dst, ld_dst, src, ld_src_bytes, rows, units);
    else
        transpose_line_t(dst, ld_dst, src, ld_src_bytes, rows, units);
}

static void interleave_u8(uint8_t *dst, const void *const *src, int kb, int64_t n)
{
    for (int i = 0; i < kb; i++) {
        const uint8_t *from = src[i];
        for (int64_t j = 0; j < n; j++)
            dst[j * kb + i] = from[j];
    }
}

static void interleave_u16(u16_loose *dst, const void *const *src, int64_t n)
{
    const u16_loose *first = src[0], *second = src[1];
    for (int64_t j = 0; j < n; j++) {
        dst[2 * j] = first[j];
        dst[2 * j + 1] = second[j];
    }
}

void twi_gemm_interleave__portable(void *dst, const void *const *src, int kb, int64_t n, int item_bytes)
{
    if (n <= 0)
        return;
    if (kb == 1)
        memcpy(dst, src[0], (size_t)n * (size_t)item_bytes);
    else if (item_bytes == 1)
        interleave_u8(dst, src, kb, n);
    else
        interleave_u16(dst, src, n);
}
