/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_OPS_PANELS_H
#define TWI_OPS_PANELS_H
/*
 * How a strip of results lies in a slot: panels of nr columns, one after the other, each a matrix of the
 * strip's rows. A tile is contiguous, and so are some rows of a panel.
 *
 * A rank that copies rows out of a peer's strip does it on the side while it computes, if the kernel can:
 * a tile goes to its place during the call of the kernel for another tile.
 */
#include "coll/reduce.h"
#include "ops/op.h"

/* Element (row, col) of a strip at `base`; cols: of its panel, all of them. */
static inline char *twi_panel_at(const void *base, int64_t strip_rows, int64_t row, int64_t col, int64_t cols,
                                 int64_t item_bytes)
{
    return (char *)(uintptr_t)base + (col * strip_rows + row * cols) * item_bytes;
}

/* Adds the lines of a contiguous block to a place. */
void twi_panel_touch(twi_gemm_place_t *place, const void *block, int64_t bytes, int write);

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
    int64_t next_row, next_col; /* of what is not copied yet */
} twi_panels_t;

/* Copies all that is left. */
void twi_panels_copy(twi_panels_t *panels, twi_copy_rows_fn copy);

/* Whether lines of it can be put. */
bool twi_panels_can_put(const twi_panels_t *panels);
/* Adds the next tile to what is put, if there is one. */
void twi_panels_put(twi_panels_t *panels, twi_gemm_put_t *put);
/* Adds the lines of the next tile, which will be read, to a place. */
void twi_panels_touch(const twi_panels_t *panels, twi_gemm_place_t *place);
/* Adds rows of whole lines, which follow each other at `from`, to what is put. */
void twi_panels_put_rows(twi_gemm_put_t *put, const char *from, char *to, int64_t to_step, int64_t rows, int64_t bytes);

#endif
