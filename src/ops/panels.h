/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_OPS_PANELS_H
#define TWI_OPS_PANELS_H
/*
 * How a strip of results lies in a slot: panels of nr columns, one after the other, each a matrix of the
 * strip's rows. A tile is contiguous, and so are some rows of a panel.
 */
#include "coll/reduce.h"
#include "ops/op.h"

/* Element (row, col) of a strip at `base`; cols: of its panel, all of them. */
static inline char *twi_panel_at(const void *base, int64_t strip_rows, int64_t row, int64_t col, int64_t cols,
                                 int64_t item_bytes)
{
    return (char *)(uintptr_t)base + (col * strip_rows + row * cols) * item_bytes;
}

/* Whether rows of `row_bytes`, `step` bytes apart, are whole lines, which can be stored around the caches. */
bool twi_panels_lines(const void *at, int64_t step, int64_t row_bytes);

/* Adds the lines of a contiguous block to a place. */
void twi_panel_touch(twi_gemm_place_t *place, const void *block, int64_t bytes, int write);
/* Adds the lines of rows of a row-major matrix, to be written: those at one place of every row are a range. */
void twi_rows_touch(twi_gemm_place_t *place, const char *at, int64_t step, int rows, int64_t row_bytes);

/* Rows of a strip on their way to a row-major matrix. */
typedef struct twi_panels {
    const char *strip;
    int64_t strip_rows;
    int64_t first, rows; /* of the strip */
    int64_t col, cols;   /* col is that of a panel */
    int64_t n;           /* columns of the strip */
    int64_t item_bytes;
    int64_t tile_bytes; /* that an element of a tile takes up: a tile may be shorter than its place */
    char *dst;          /* of element (first, 0) of the strip */
    int64_t dst_step;   /* bytes */
    int mr, nr;
} twi_panels_t;

void twi_panels_copy(const twi_panels_t *panels, twi_copy_rows_fn copy);

#endif
