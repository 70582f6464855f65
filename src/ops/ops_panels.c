/* SPDX-License-Identifier: Apache-2.0 */
/* Panels: addresses, and copies out of them. See panels.h. */
#include "base/sizes.h"
#include "ops/panels.h"

enum { GROUP_PANELS = 8 }; /* that are copied side by side */

void twi_panel_touch(twi_gemm_place_t *place, const void *block, int64_t bytes, int write)
{
    const char *at = block, *line = at - (uintptr_t)at % TWI_OPS_LINE;
    const int64_t n = (at + bytes - line + TWI_OPS_LINE - 1) / TWI_OPS_LINE;
    if (n > 0 && place->n_touch < TWI_GEMM_TOUCH_MAX)
        place->touch[place->n_touch++] =
            (twi_gemm_touch_t){.at = line, .step = TWI_OPS_LINE, .n = (int)n, .write = write};
}

/* The next block of at most mr rows of a panel: rows of `bytes` bytes, one after the other. */
static twi_rows_t block_at(const twi_panels_t *p)
{
    const int64_t row = p->first + p->next_row, cols = twi_least(p->nr, p->n - p->next_col),
                  bytes = cols * p->item_bytes;
    return (twi_rows_t){
        .dst = p->dst + p->next_row * p->dst_step + p->next_col * p->item_bytes,
        .dst_step = p->dst_step,
        .src = twi_panel_at(p->strip, p->strip_rows, row, p->next_col, cols, p->tile_bytes),
        .src_step = bytes,
        .n = twi_least(p->mr, p->rows - p->next_row),
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

/*
 * Rows of some panels side by side: so a row is written in longer pieces, and every panel is read in the order of
 * memory. Only where nothing has been copied yet, and rows of a panel follow each other.
 */
static void copy_groups(const twi_panels_t *p, twi_copy_rows_fn copy)
{
    const int64_t bytes = p->nr * p->item_bytes, whole = p->cols / p->nr;
    for (int64_t panel = 0; panel < whole; panel += GROUP_PANELS) {
        const int64_t col = p->col + panel * p->nr;
        twi_rows_t lines = {
            .dst = p->dst + col * p->item_bytes,
            .dst_step = bytes,
            .src = twi_panel_at(p->strip, p->strip_rows, p->first, col, p->nr, p->item_bytes),
            .src_step = p->strip_rows * bytes,
            .n = twi_least(GROUP_PANELS, whole - panel),
            .bytes = (size_t)bytes,
        };
        for (int64_t i = 0; i < p->rows; i++) {
            copy(&lines);
            lines.dst = (char *)lines.dst + p->dst_step;
            lines.src = (const char *)lines.src + bytes;
        }
    }
}

void twi_panels_copy(twi_panels_t *p, twi_copy_rows_fn copy)
{
    const bool fresh = p->next_row == 0 && p->next_col <= p->col;
    p->next_col = p->next_col < p->col ? p->col : p->next_col;
    if (fresh && p->tile_bytes == p->item_bytes) {
        copy_groups(p, copy);
        const int64_t done = p->cols / p->nr * p->nr;
        p->next_col += done;
        p->col += done;
        p->cols -= done;
    }
    for (; !ended(p); advance(p)) {
        const twi_rows_t rows = block_at(p);
        copy(&rows);
    }
}

bool twi_panels_can_put(const twi_panels_t *p)
{
    const uintptr_t odd = (uintptr_t)p->dst | (uintptr_t)p->dst_step | (uintptr_t)p->strip |
                          (uintptr_t)(p->nr * p->item_bytes) | (uintptr_t)(p->n * p->item_bytes);
    return odd % TWI_OPS_LINE == 0 && p->nr * p->item_bytes <= TWI_GEMM_PUT_MAX * TWI_OPS_LINE;
}

void twi_panels_put_rows(twi_gemm_put_t *put, const char *from, char *to, int64_t to_step, int64_t rows, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += TWI_OPS_LINE)
        put->moves[put->n++] = (twi_gemm_move_t){
            .from = from + at,
            .from_step = bytes,
            .to = to + at,
            .to_step = to_step,
            .n = (int)rows,
        };
}

void twi_panels_put(twi_panels_t *p, twi_gemm_put_t *put)
{
    if (ended(p))
        return;
    const twi_rows_t rows = block_at(p);
    twi_panels_put_rows(put, rows.src, rows.dst, rows.dst_step, rows.n, (int64_t)rows.bytes);
    advance(p);
}

void twi_panels_touch(const twi_panels_t *p, twi_gemm_place_t *place)
{
    if (ended(p))
        return;
    const twi_rows_t rows = block_at(p);
    twi_panel_touch(place, rows.src, rows.n * (int64_t)rows.bytes, 0);
}
