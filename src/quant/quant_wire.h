/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_QUANT_QUANT_WIRE_H
#define TWI_QUANT_QUANT_WIRE_H
/*
 * The arithmetic of sums that travel as int8: quantise at the source, sum and requantise at the owner,
 * dequantise at the end. All in fp32, each operation rounded to nearest even. half() rounds fp32 to
 * fp16, keeping denormals and going to infinity; int8() rounds to nearest even and saturates, and a NaN
 * gives 0. No alignment beyond that of the pointer's type is asked for, but where results are streamed; nothing outside
 * the arrays is touched, rows and cols may be 0. They hold in the mode of cpu/float_mode.h. Any thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "cpu/cpu.h"

/*
 * Tiles of rows x cols elements; those without a distance of their own are contiguous. Scales, and what is worked out of
 * them once, are of their columns.
 */
typedef struct twi_wire_kernels {
    /* 1 / s1 and s1 / s2 of some columns. Whether the first may be multiplied by: no s1 is a denormal. */
    bool (*invert)(const float *s1, const float *s2, int64_t cols, float *inverse, float *ratio);
    /*
     * q = int8(half(c / s1)): c and s1 are values of `type`, TWI_FP16 or TWI_BFP16. inverse: 1 / s1, if it may be
     * multiplied by, else NULL. Where both are fp16, half() of the fp32 quotient is the fp16 quotient. The product is
     * not always the quotient, but gives the same q: see quant_wire_body.h.
     */
    void (*quantise)(uint32_t type, const void *c, int64_t rows, int64_t cols, const float *s1, const float *inverse,
                     int8_t *q);
    /* p = int8(half(sum of q over n_src sources, in order * ratio)), ratio = s1 / s2; p may be one of the sources. */
    void (*requantise)(const int8_t *const *q, int n_src, int64_t rows, int64_t cols, const float *ratio, int8_t *p);
    /*
     * y = p * s2 rounded to `type`; rows of y are ld elements apart. stream: around the caches; then rows are whole lines
     * of 64 bytes, and twi_stream_fence comes before anybody is told.
     */
    void (*dequantise)(uint32_t type, const int8_t *p, int64_t rows, int64_t cols, const float *s2, void *y, int64_t ld,
                       bool stream);
} twi_wire_kernels_t;

/* The kernels of a level, or of the highest one below it that has its own. All levels give the same bits. */
const twi_wire_kernels_t *twi_wire_kernels(twi_isa_t level);

#endif
