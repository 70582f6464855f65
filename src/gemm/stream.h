/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_GEMM_STREAM_H
#define TWI_GEMM_STREAM_H
/*
 * Writing around the caches, for results that are too large to stay there: a line of C is not read
 * before it is overwritten, and nothing that is still needed is pushed out. Kernels do it on the way
 * (twi_gemm_call_t.put); this is for what is left when there are no more steps.
 *
 * Other threads may look at the lines once this one has passed twi_gemm_mode_end and told them so.
 */

#include "gemm/kernels.h"

/* Moves some lines. */
typedef void twi_gemm_stream_fn(const twi_gemm_move_t *move);

#if defined(__x86_64__)
twi_gemm_stream_fn twi_gemm_stream__avx512;
#endif

#endif
