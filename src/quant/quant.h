/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_QUANT_QUANT_H
#define TWI_QUANT_QUANT_H
/*
 * Conversions between number formats and layouts: dequantisation patterns, NZ, per-token int8. The
 * arithmetic is part of the contract and, but for tokens, holds in the mode of cpu/float_mode.h. Callers have
 * checked tensors, types and shapes. Any thread.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tilewire/tilewire.h>

#include "base/dtype.h"
#include "cpu/team.h"

/* To the nearest integer, ties to even; |value| is at most 2^22. */
static inline int32_t twi_quant_rne(float value)
{
    return (int32_t)(twi_f32_bits(value + 0x1.8p23f) - 0x4b400000u); /* the last bit of the sum is worth 1 */
}

/* ---- Dequantisation patterns ------------------------------------------------------------------ */

enum { TWI_QUANT_TRUNCATE = 0, TWI_QUANT_NEAREST = 1 }; /* round_mode */

uint64_t twi_quant_param(float scale, float offset, int round_mode);

/* The scale that a product multiplies by: an fp32 with 10 bits of mantissa. */
static inline float twi_quant_param_scale(uint64_t param)
{
    return twi_f32_from_bits((uint32_t)param & 0xffffe000u);
}

/* Along the last dimension of out; an operand of one element goes with all. offset may be NULL. */
void twi_quant_param_fill(const tw_tensor_t *scale, const tw_tensor_t *offset, int round_mode, const tw_tensor_t *out);

/* ---- NZ --------------------------------------------------------------------------------------- */

#define TWI_QUANT_NZ_ROWS 16 /* rows of a block */

typedef struct twi_quant_nz {
    int64_t n_batch;             /* matrices */
    int64_t rows, cols;          /* of a matrix */
    int64_t c0;                  /* columns of a block */
    int64_t padded_rows, blocks; /* rows of a column of blocks, and how many of those a matrix has */
    int64_t item_bytes;
    int64_t matrix_bytes;
    int64_t bytes; /* all matrices */
} twi_quant_nz_t;

/* Columns of a block, for elements of that size. */
static inline int64_t twi_quant_nz_c0(size_t item_bytes)
{
    return item_bytes == 1 ? 32 : 16;
}

/* Plans the layout of a tensor of two dimensions or more; fails when a size does not fit. */
tw_status_t twi_quant_nz_plan(const tw_tensor_t *nd, const char *name, twi_quant_nz_t *plan_out);

void twi_quant_nz_from_nd(const twi_quant_nz_t *plan, const tw_tensor_t *nd, void *nz);
void twi_quant_nz_to_nd(const twi_quant_nz_t *plan, const void *nz, const tw_tensor_t *nd);

/* ---- Per-token int8 --------------------------------------------------------------------------- */

/* The arithmetic of tw_dynamic_quant, in any floating-point mode. NULL: by the calling thread. */
void twi_quant_tokens(twi_team_t *team, const tw_tensor_t *x, const tw_tensor_t *y, const tw_tensor_t *scale);

#endif
