/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_QUANT_QUANT_WIRE_LEVEL_H
#define TWI_QUANT_QUANT_WIRE_LEVEL_H
/* The levels that there are. Outside quant_wire.c they are reached through twi_wire_kernels. */
#include "quant/quant_wire.h"

extern const twi_wire_kernels_t twi_wire_kernels__portable;
#if defined(__x86_64__)
extern const twi_wire_kernels_t twi_wire_kernels__avx2;
extern const twi_wire_kernels_t twi_wire_kernels__avx512;
#endif

#endif
