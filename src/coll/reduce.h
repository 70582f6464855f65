/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_COLL_REDUCE_H
#define TWI_COLL_REDUCE_H
/*
 * Element-wise reduction of n_src arrays, and the copies beside it.
 *
 * The arithmetic is part of the contract: element i of the result is src[0][i] op src[1][i] op ...,
 * in that order. 16-bit floats are widened to fp32, reduced there and rounded once (nearest even) at
 * the end; fp32 is reduced in fp32; integers wrap in two's complement. MAX and MIN return NaN if any
 * operand is one, and order -0 below +0. One source: the result is that source, bit for bit. The
 * bits are the same at every ISA level. With two sources or more a NaN result is always the positive
 * quiet NaN 0x7fc00000 (fp16 0x7e00, bf16 0x7fc0), whatever the NaN operands were. Denormals are kept.
 * All of this holds in the mode of cpu/float_mode.h.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TWI_SUM = 0, TWI_MAX = 2, TWI_MIN = 3 }; /* values of tw_hccl_reduce_t */

/*
 * Writes the reduction of n_src >= 1 arrays of n elements to n_dst >= 1 arrays. A destination may be
 * the very same array as a source, but may not overlap one otherwise. Pointers need only the natural alignment
 * of an element.
 */
typedef void (*twi_reduce_fn)(void *const *dst, int n_dst, const void *const *src, int n_src, size_t n);

/*
 * The kernel for a dtype and op at this machine's ISA level; NULL if the pair is not supported.
 * `stream` asks for stores that bypass the cache: right for results much larger than it.
 */
twi_reduce_fn twi_reduce_select(uint32_t dtype, uint32_t op, bool stream);

/* memcpy, with streaming stores if asked for. No overlap. */
void twi_copy(void *dst, const void *src, size_t bytes, bool stream);

/* Rows of `bytes` bytes each, with their own distances on both sides. No overlap. */
typedef struct twi_rows {
    void *dst;
    ptrdiff_t dst_step; /* bytes */
    const void *src;
    ptrdiff_t src_step;
    int64_t n;
    size_t bytes; /* of a row */
} twi_rows_t;

typedef void (*twi_copy_rows_fn)(const twi_rows_t *rows);

/*
 * The kernel at this machine's ISA level. `stream`: whole lines of dst bypass the cache; others that look
 * at them wait for a fence of the calling thread.
 */
twi_copy_rows_fn twi_copy_rows_select(bool stream);

#endif
