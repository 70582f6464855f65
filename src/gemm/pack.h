/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_GEMM_PACK_H
#define TWI_GEMM_PACK_H
/*
 * Layout: from the caller's matrices to panels. The left matrix goes straight to the lanes of the
 * kernel; the right one keeps its element type ("stored" panels), so that a packed weight is no larger
 * than the matrix, and is turned into lanes block by block. Pure, any thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "gemm/convert.h"
#include "gemm/kernels.h"

/* A right-hand matrix of k rows and n columns. */
typedef struct twi_gemm_matrix {
    const void *data; /* element (0,0); NULL only if there is none */
    int item_bytes;   /* 1, 2 or 4 */
    int64_t k, n;
    /* ND: distances in elements along k and along n, one of which is 1. */
    int64_t k_stride, n_stride;
    /* NZ: columns of a block, else 0; the strides are not looked at. */
    int64_t nz_c0;
    bool nz_transposed; /* the matrix that was stored is [n][k] */
} twi_gemm_matrix_t;

/* Whether it is stored as [n][k]. */
static inline bool twi_gemm_matrix_transposed(const twi_gemm_matrix_t *matrix)
{
    return matrix->nz_c0 > 0 ? matrix->nz_transposed : matrix->n_stride != 1;
}

/*
 * Columns n0..n0+nr-1 and rows k0..k0+k_count-1 as a stored panel [k_count/kb][nr][kb] at dst; what lies
 * outside the matrix is zero. k0 and k_count are multiples of kb.
 */
void twi_gemm_pack_b(const twi_gemm_convert_t *convert, const twi_gemm_matrix_t *matrix, int64_t k0, int64_t k_count,
                     int64_t n0, int nr, int kb, void *dst);

/*
 * k_count elements (a multiple of ks; from where the panel may be cut) of a stored panel of `kind` to
 * lanes. May be called only if twi_gemm_lanes_differ.
 */
void twi_gemm_lanes_b(const twi_gemm_convert_t *convert, const twi_gemm_kernel_t *kernel, twi_gemm_kind_t kind,
                      const void *stored, int64_t k_count, void *dst);

/* Whether stored panels of a kind have to be turned into lanes, or are used as they are. */
bool twi_gemm_lanes_differ(const twi_gemm_kernel_t *kernel, twi_gemm_kind_t kind);

/*
 * `rows` (1..mr) rows of the left matrix, k elements each, `ld` elements apart, as a panel of lanes
 * with k padded to whole steps; the rows up to mr are zero. Unit stride along k.
 */
void twi_gemm_pack_a(const twi_gemm_convert_t *convert, const twi_gemm_kernel_t *kernel, twi_gemm_kind_t kind,
                     const void *a, int64_t ld, int rows, int64_t k, void *dst);

#endif
