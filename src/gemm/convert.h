/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_GEMM_CONVERT_H
#define TWI_GEMM_CONVERT_H
/*
 * Loops over many elements that turn what the caller has into what panels hold: one set of functions
 * per ISA level, which all give the same bits (but for the flush of dequant_bf16, see there). No
 * alignment is asked for, nothing outside the arrays is touched, n and rows may be 0. They hold in the
 * mode of cpu/float_mode.h.
 */
#include <stdint.h>

#include "cpu/cpu.h"

typedef struct twi_gemm_convert {
    twi_isa_t isa;
    void (*widen_bf16)(float *dst, const uint16_t *src, int64_t n);
    void (*widen_f16)(float *dst, const uint16_t *src, int64_t n); /* NaNs become quiet */
    void (*widen_s8)(int16_t *dst, const int8_t *src, int64_t n);
    void (*bias_s8)(uint8_t *dst, const int8_t *src, int64_t n); /* + 128; dst may be src */
    /* The two bf16 whose exact sum an fp16 is: see TWI_LANE_F16X2. */
    void (*split_f16)(uint16_t *hi, uint16_t *lo, const uint16_t *src, int64_t n);
    /*
     * int8 weights to bf16 or fp16: rows of `period` elements, a multiple of 16, where element i of a row goes
     * with scale[i] and offset[i]; offset may be NULL. bf16: (q + offset) * scale in fp32, each operation
     * rounded, then rounded to bf16; levels with AVX512_BF16 take a product below 2^-126 for zero, as
     * their kernels do. fp16: q + offset rounded to fp16, times scale rounded to fp16; scale and
     * offset are fp16 values.
     */
    void (*dequant_bf16)(uint16_t *dst, const int8_t *src, int64_t rows, int64_t period, const float *scale,
                         const float *offset);
    void (*dequant_f16)(uint16_t *dst, const int8_t *src, int64_t rows, int64_t period, const float *scale,
                        const float *offset);
    /*
     * Units of 1, 2, 4 or 64 bytes: unit u * ld_dst + r of dst is unit u of row r of src, for r < rows and
     * u < units. Rows of src are ld_src_bytes apart, any number of any sign, and may start at any byte.
     */
    void (*transpose)(void *dst, int64_t ld_dst, const void *src, int64_t ld_src_bytes, int64_t rows, int64_t units,
                      int unit_bytes);
    /*
     * kb (1, 2 or 4) rows of n elements of item_bytes (1, 2 or 4; kb * item_bytes is at most 4) into one:
     * dst[j * kb + i] = src[i][j].
     */
    void (*interleave)(void *dst, const void *const *src, int kb, int64_t n, int item_bytes);
} twi_gemm_convert_t;

/* The set of a level, or of the highest one below it that has its own. */
const twi_gemm_convert_t *twi_gemm_convert(twi_isa_t level);

#endif
