/* SPDX-License-Identifier: Apache-2.0 */
/* Panels: addresses, and copies out of them. See panels.h. */
#include "ops/panels.h"

int twi_panel_touch(const void **touch, int n, const void *block, int64_t bytes)
{
    const char *at = block, *line = at - (uintptr_t)at % TWI_OPS_LINE;
    for (; line < at + bytes && n < TWI_GEMM_TOUCH_MAX; line += TWI_OPS_LINE)
        touch[n++] = line;
    return n;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The next block of at most mr rows of a panel: rows of `bytes` bytes, one after the other. */
static twi_rows_t block_at(const twi_panels_t *p)
{
    const int64_t row = p->first + p->next_row, cols = least(p->nr, p->n - p->next_col), bytes = cols * p->item_bytes;
    return (twi_rows_t){
        .dst = p->dst + p->next_row * p->dst_step + p->next_col * p->item_bytes,
        .dst_step = p->dst_step,
        .src = twi_panel_at(p->strip, p->strip_rows, row, p->next_col, cols, p->tile_bytes),
        .src_step = bytes,
        .n = least(p->mr, p->rows - p->next_row),
        .bytes = (size_t)bytes,
    };
}

static bool ended(const twi_panels_t *p)
{
    return p->next_row >= p->rows || p->cols <= 0;
}

/* Panels first: so the rows that are written stay the same for a while. */
static void advance(twi_panels_t *p)
{
    p->next_col += p->nr;
    if (p->next_col < p->col + p->cols)
        return;
    p->next_col = p->col;
    p->next_row += p->mr;
}

void twi_panels_copy(twi_panels_t *p, twi_copy_rows_fn copy)
{
    for (; !ended(p); advance(p)) {
        const twi_rows_t rows = block_at(p);
        copy(&rows);
    }
}

bool twi_panels_can_put(const twi_panels_t *p)
{
    const uintptr_t odd = (uintptr_t)p->dst | (uintptr_t)p->dst_step | (uintptr_t)p->strip |
                          (uintptr_t)(p->nr * p->item_bytes) | (uintptr_t)(p->n * p->item_bytes);
    return odd % TWI_OPS_LINE == 0 && p->nr * p->item_bytes * p->mr <= TWI_GEMM_PUT_MAX * TWI_OPS_LINE;
}

bool twi_panels_put(twi_panels_t *p, twi_gemm_put_t *put)
{
    if (ended(p))
        return false;
    const twi_rows_t rows = block_at(p);
    put->from = rows.src;
    for (int64_t i = 0; i < rows.n; i++)
        for (size_t at = 0; at < rows.bytes; at += TWI_OPS_LINE)
            put->to[put->n++] = (char *)rows.dst + i * rows.dst_step + at;
    advance(p);
    return true;
}

int twi_panels_touch(const twi_panels_t *p, const void **touch, int n)
{
    if (ended(p))
        return n;
    const twi_rows_t rows = block_at(p);
    return twi_panel_touch(touch, n, rows.src, rows.n * (int64_t)rows.bytes);
}
