/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_GEMM_EPILOGUE_H
#define TWI_GEMM_EPILOGUE_H
/*
 * From the sums of a tile to elements of the result, while the tile is in cache. Every operation is an
 * fp32 operation rounded to nearest even. In this order, each step only if it is there:
 *     integer sums    s += ibias (wraps); v = (float)s, rounded; v = v * scale[column]; v = v * token[row]
 *     fp32 sums       v = s
 *     both            v = v + fbias[column]
 *     16-bit output   c = round(v); c = round(c + x3)          x3 has the type of the output
 *     fp32 output     v = v + x3                               x3 is fp16, bf16 or fp32
 *     int32 output    s itself: integer sums without any of scale, token, fbias, x3
 *     addends         16-bit output only: the sum of the rounded c and of others' results, of the same type, in the
 *                     order in which they are listed, in fp32, rounded once; with several a NaN is 0x7fc00000, rounded
 * A cast keeps denormals, infinities and the sign of zeros; NaNs stay NaNs (quiet).
 */
#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "cpu/cpu.h"

typedef struct twi_gemm_epilogue {
    int integer;          /* sums are int32 */
    uint32_t out_type;    /* TWI_FP16, TWI_BFP16, TWI_FP32, TWI_INT32 */
    const int32_t *ibias; /* of all columns of the product, as the next three; NULL: none */
    const float *fbias;
    const float *scale;
    const float *token; /* of all rows; NULL: none */
    const void *x3;     /* element (0,0) of the product; NULL: none */
    uint32_t x3_type;
    int64_t x3_ld; /* elements between rows */
} twi_gemm_epilogue_t;

/* Rows of a matrix, or of a part of one. */
typedef struct twi_gemm_rows {
    char *at;     /* of the first element */
    int64_t step; /* bytes from a row to the next */
} twi_gemm_rows_t;

/* A tile: the first element is (row, col). */
typedef struct twi_gemm_part {
    const void *acc; /* 64-byte aligned; fp32 or int32 */
    int64_t ld_acc;  /* a multiple of 16 */
    int64_t row, col;
    int rows, cols;
    void *out; /* of element (row, col), any alignment that its type has */
    int64_t ld_out;
    const twi_gemm_rows_t *also; /* other places, to which it goes as well */
    int n_also;
    int stream; /* rows of all places are whole lines, and may be stored around the caches */
    /* Results to be added up, our own being number `own` of them, which is not looked at; NULL: none. */
    const void *const *addends;
    int n_addends, own;
    int64_t ld_addend;    /* elements between rows */
    int64_t addend_ahead; /* bytes from an element to what will be added after it, which is brought nearer */
} twi_gemm_part_t;

typedef void twi_gemm_finish_fn(const twi_gemm_epilogue_t *epilogue, const twi_gemm_part_t *part);

/* The function of a level. All give the same bits. */
twi_gemm_finish_fn *twi_gemm_finish(twi_isa_t level);

/* One row of a part of TWI_GEMM_ROW_COLS columns, from its sums; rows count from the part's first one. */
typedef void twi_gemm_row_fn(const twi_gemm_epilogue_t *epilogue, const twi_gemm_part_t *part, int row,
                             const void *sums);

#define TWI_GEMM_ROW_COLS 32

/*
 * For who finishes tiles a row at a time, between other work: the function of a level for this epilogue and parts with
 * addends, or without. NULL: there is none below AVX512_BF16.
 */
twi_gemm_row_fn *twi_gemm_row(twi_isa_t level, const twi_gemm_epilogue_t *epilogue, bool adds);

#endif
