/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_QUANT_QUANT_TOKEN_H
#define TWI_QUANT_QUANT_TOKEN_H
/*
 * The two steps of per-token int8, on n contiguous elements of `type`: TWI_FP32, TWI_FP16 or TWI_BFP16. No alignment
 * beyond that of the type is asked for, nothing outside the arrays is touched, n may be 0. They hold in the
 * mode of cpu/float_mode.h. Any thread.
 */
#include <stdint.h>

#include "cpu/cpu.h"

typedef struct twi_token_kernels {
    /* The bits of the largest magnitude, as fp32; above those of infinity if there is a NaN. */
    uint32_t (*largest)(uint32_t type, const void *x, int64_t n);
    /* y = int8(x / scale), rounded to nearest even; quotients are below 2^22. */
    void (*divide)(uint32_t type, const void *x, int64_t n, float scale, int8_t *y);
} twi_token_kernels_t;

/* The kernels of a level, or of the highest one below it that has its own. All levels give the same bits. */
const twi_token_kernels_t *twi_token_kernels(twi_isa_t level);

#endif
