/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_QUANT_QUANT_LEVEL_H
#define TWI_QUANT_QUANT_LEVEL_H
/* The levels that there are. Outside quant_level.c they are reached through twi_wire_kernels and twi_token_kernels. */
#include "quant/quant_token.h"
#include "quant/quant_wire.h"

extern const twi_wire_kernels_t twi_wire_kernels__portable;
extern const twi_token_kernels_t twi_token_kernels__portable;
#if defined(__x86_64__)
extern const twi_wire_kernels_t twi_wire_kernels__avx2;
extern const twi_token_kernels_t twi_token_kernels__avx2;
extern const twi_wire_kernels_t twi_wire_kernels__avx512;
extern const twi_token_kernels_t twi_token_kernels__avx512;
#endif

#endif
