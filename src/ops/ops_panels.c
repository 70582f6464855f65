/* SPDX-License-Identifier: Apache-2.0 */
/* Panels: addresses, and copies out of them. See panels.h. */
#include "base/sizes.h"
#include "ops/panels.h"

enum { GROUP_PANELS = 8 }; /* that are copied side by side */

bool twi_panels_lines(const void *at, int64_t step, int64_t row_bytes)
{
    return ((uintptr_t)at | (uintptr_t)step | (uintptr_t)row_bytes) % TWI_OPS_LINE == 0;
}

void twi_panel_touch(twi_gemm_place_t *place, const void *block, int64_t bytes, int write)
{
    const char *at = block, *line = at - (uintptr_t)at % TWI_OPS_LINE;
    const int64_t n = (at + bytes - line + TWI_OPS_LINE - 1) / TWI_OPS_LINE;
    if (n > 0 && place->n_touch < TWI_GEMM_TOUCH_MAX)
        place->touch[place->n_touch++] =
            (twi_gemm_touch_t){.at = line, .step = TWI_OPS_LINE, .n = (int)n, .write = write};
}

void twi_rows_touch(twi_gemm_place_t *place, const char *at, int64_t step, int rows, int64_t row_bytes)
{
    for (const char *line = at - (uintptr_t)at % TWI_OPS_LINE; line < at + row_bytes; line += TWI_OPS_LINE)
        if (place->n_touch < TWI_GEMM_TOUCH_MAX)
            place->touch[place->n_touch++] = (twi_gemm_touch_t){.at = line, .step = step, .n = rows, .write = 1};
}

/* A block of at most mr rows of the panel at `col`: rows one after the other. */
static void copy_block(const twi_panels_t *p, int64_t row, int64_t col, twi_copy_rows_fn copy)
{
    const int64_t cols = twi_min(p->nr, p->n - col), bytes = cols * p->item_bytes;
    const twi_rows_t rows = {
        .dst = p->dst + row * p->dst_step + col * p->item_bytes,
        .dst_step = p->dst_step,
        .src = twi_panel_at(p->strip, p->strip_rows, p->first + row, col, cols, p->tile_bytes),
        .src_step = bytes,
        .n = twi_min(p->mr, p->rows - row),
        .bytes = (size_t)bytes,
    };
    copy(&rows);
}

/*
 * Rows of some panels side by side: so a row is written in longer pieces, and every panel is read in the order of
 * memory. Only where rows of a panel follow each other.
 */
static void copy_group(const twi_panels_t *p, int64_t col, int64_t panels, twi_copy_rows_fn copy)
{
    const int64_t bytes = p->nr * p->item_bytes;
    twi_rows_t lines = {
        .dst = p->dst + col * p->item_bytes,
        .dst_step = bytes,
        .src = twi_panel_at(p->strip, p->strip_rows, p->first, col, p->nr, p->item_bytes),
        .src_step = p->strip_rows * bytes,
        .n = panels,
        .bytes = (size_t)bytes,
    };
    for (int64_t i = 0; i < p->rows; i++) {
        copy(&lines);
        lines.dst = (char *)lines.dst + p->dst_step;
        lines.src = (const char *)lines.src + bytes;
    }
}

void twi_panels_copy(const twi_panels_t *p, twi_copy_rows_fn copy)
{
    const int64_t end = p->col + p->cols;
    int64_t col = p->col;
    while (p->tile_bytes == p->item_bytes && end - col >= p->nr) {
        const int64_t panels = twi_min(GROUP_PANELS, (end - col) / p->nr);
        copy_group(p, col, panels, copy);
        col += panels * p->nr;
    }
    for (; col < end; col += p->nr)
        for (int64_t row = 0; row < p->rows; row += p->mr)
            copy_block(p, row, col, copy);
}
