/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_GEMM_STREAM_H
#define TWI_GEMM_STREAM_H
/*
 * Writing around the caches, for results that are too large to stay there, or that another core has in its
 * own: a line of C is not read before it is overwritten, and nothing that is still needed is pushed out.
 * Epilogues do it where they are told to (twi_gemm_part_t.stream).
 */
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

/* Such stores are in no order with those that follow, which may tell others that they are there. */
static inline void twi_stream_fence(void)
{
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

#endif
