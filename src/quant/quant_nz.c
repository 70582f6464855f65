/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NZ: a matrix as columns of blocks of 16 rows by C0 columns. A column of blocks is one contiguous
 * array of padded_rows rows by C0 elements, so a contiguous row of the matrix is copied in runs of C0.
 */
#include <string.h>

#include "base/sizes.h"
#include "base/status.h"
#include "base/tensor.h"
#include "quant/quant.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    ROWS = 256,     /* that are copied at a time */
    RUN_BYTES = 32, /* C0 elements of one or two bytes, which most are */
};

tw_status_t twi_quant_nz_plan(const tw_tensor_t *nd, const char *name, twi_quant_nz_t *plan_out)
{
    const size_t item = twi_tensor_item_bytes(nd);
    twi_quant_nz_t plan = {
        .rows = nd->shape[nd->ndim - 2],
        .cols = nd->shape[nd->ndim - 1],
        .c0 = twi_quant_nz_c0(item),
        .item_bytes = (int64_t)item,
    };
    if (twi_tensor_elements(nd) > 0) {
        plan.n_batch = twi_tensor_count(nd, 0, nd->ndim - 2);
        plan.blocks = twi_ceil_div(plan.cols, plan.c0);
        if (__builtin_mul_overflow(twi_ceil_div(plan.rows, TWI_QUANT_NZ_ROWS), TWI_QUANT_NZ_ROWS, &plan.padded_rows) ||
            __builtin_mul_overflow(plan.padded_rows, plan.c0 * plan.item_bytes, &plan.matrix_bytes) ||
            __builtin_mul_overflow(plan.matrix_bytes, plan.blocks, &plan.matrix_bytes) ||
            __builtin_mul_overflow(plan.matrix_bytes, plan.n_batch, &plan.bytes)) {
            char text[TWI_TENSOR_TEXT_MAX];
            return twi_fail(TW_ERR_ARGUMENT, "%s.shape %s: the bytes of its NZ layout do not fit 64 bits", name,
                            twi_tensor_shape_text(nd->shape, nd->ndim, text, sizeof text));
        }
    }
    *plan_out = plan;
    return TW_OK;
}

/* One side of a copy: an element, and bytes to the next row and column. */
typedef struct side {
    char *at;
    int64_t row, col;
} side_t;

static side_t side_nd(const tw_tensor_t *nd, int64_t batch)
{
    const int64_t item = (int64_t)twi_tensor_item_bytes(nd);
    return (side_t){
        .at = twi_tensor_at(nd, nd->ndim - 2, batch),
        .row = twi_tensor_stride(nd, nd->ndim - 2) * item,
        .col = twi_tensor_stride(nd, nd->ndim - 1) * item,
    };
}

static side_t side_at(side_t side, int64_t row, int64_t col)
{
    return (side_t){side.at + row * side.row + col * side.col, side.row, side.col};
}

/*
 * Along rows, or along columns if those are contiguous in one of the two, which can only be the matrix. Inlined: calls
 * are most of the time of small matrices.
 */
INLINE void copy_part(side_t to, side_t from, int64_t rows, int64_t cols, int64_t item)
{
    if (to.col == item && from.col == item && cols * item == RUN_BYTES) {
        for (int64_t r = 0; r < rows; r++)
            memcpy(to.at + r * to.row, from.at + r * from.row, RUN_BYTES);
    } else if (to.row == item || from.row == item) {
        for (int64_t c = 0; c < cols; c++)
            twi_tensor_copy_elements(to.at + c * to.col, to.row, from.at + c * from.col, from.row, rows, item);
    } else {
        for (int64_t r = 0; r < rows; r++)
            twi_tensor_copy_elements(to.at + r * to.row, to.col, from.at + r * from.row, from.col, cols, item);
    }
}

/*
 * A matrix to or from NZ, some rows of all columns at a time: rows are often a power of two apart, so that the lines of
 * a column of blocks share few places of the caches, and each is needed again for the next column of blocks.
 */
static void copy_matrix(const twi_quant_nz_t *plan, char *nz, side_t nd, bool to_nz)
{
    const int64_t item = plan->item_bytes, run = plan->c0 * item, block_bytes = plan->padded_rows * run;
    for (int64_t row = 0; row < plan->rows; row += ROWS) {
        const int64_t rows = plan->rows - row < ROWS ? plan->rows - row : ROWS;
        for (int64_t block = 0; block < plan->blocks; block++) {
            const int64_t col = block * plan->c0, left = plan->cols - col;
            const side_t blocks = {nz + block * block_bytes + row * run, run, item};
            const side_t part = side_at(nd, row, col);
            const int64_t cols = left < plan->c0 ? left : plan->c0;
            if (to_nz)
                copy_part(blocks, part, rows, cols, item);
            else
                copy_part(part, blocks, rows, cols, item);
        }
    }
}

/* Zeros where no element will be: rows at the end of each column of blocks, columns of the last one. */
static void clear_padding(const twi_quant_nz_t *plan, char *nz)
{
    const int64_t run = plan->c0 * plan->item_bytes, block_bytes = plan->padded_rows * run, filled = plan->rows * run;
    const int64_t whole = plan->cols / plan->c0;
    for (int64_t block = 0; block < whole; block++)
        memset(nz + block * block_bytes + filled, 0, (size_t)(block_bytes - filled));
    if (whole < plan->blocks)
        memset(nz + whole * block_bytes, 0, (size_t)block_bytes);
}

void twi_quant_nz_from_nd(const twi_quant_nz_t *plan, const tw_tensor_t *nd, void *nz)
{
    char *to = nz;
    for (int64_t batch = 0; batch < plan->n_batch; batch++, to += plan->matrix_bytes) {
        clear_padding(plan, to);
        copy_matrix(plan, to, side_nd(nd, batch), true);
    }
}

void twi_quant_nz_to_nd(const twi_quant_nz_t *plan, const void *nz, const tw_tensor_t *nd)
{
    char *from = (char *)(uintptr_t)nz; /* only read */
    for (int64_t batch = 0; batch < plan->n_batch; batch++, from += plan->matrix_bytes)
        copy_matrix(plan, from, side_nd(nd, batch), false);
}
