/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_GEMM_STREAM_H
#define TWI_GEMM_STREAM_H
/*
 * Writing around the caches, for results that are too large to stay there: a line of C is not read
 * before it is overwritten, and nothing that is still needed is pushed out.
 */
#include <stdint.h>

/*
 * Copies `rows` rows of row_bytes, whole lines, from src, where they follow each other, to lines of dst.
 * Other threads may look at dst once this one has passed twi_gemm_mode_end and told them so.
 */
typedef void twi_gemm_stream_fn(void *dst, int64_t ld_dst_bytes, const void *src, int64_t rows, int64_t row_bytes);

#if defined(__x86_64__)
twi_gemm_stream_fn twi_gemm_stream__avx512;
#endif

#endif
