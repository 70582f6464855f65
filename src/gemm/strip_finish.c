/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles on their way from sums to results. See strip.h. */
#include <assert.h>

#include "gemm/strip.h"

enum {
    LINE_BYTES = 64,
    ADDEND_TILES = 2, /* addends are asked for this many tiles ahead */
};

void twi_strip_finishing_begin(const strip_work_t *w)
{
    strip_finishing_t *f = w->memory.finishing;
    f->ready = NULL;
    f->turn = 0;
    for (int i = 0; i < 2; i++) {
        f->placed[i].tile.group = w->strip->group;
        f->placed[i].place.part = (twi_gemm_part_t){.ld_acc = w->kernel->nr};
    }
}

/* The lines of a tile in a row-major matrix: those at one place of every row are a range. */
static void touch_lines(const strip_work_t *w, twi_gemm_place_t *place)
{
    const twi_gemm_part_t *part = &place->part;
    const char *row = part->out, *end = row + part->cols * w->out_bytes;
    for (const char *line = row - (uintptr_t)row % LINE_BYTES; line < end; line += LINE_BYTES)
        place->touch[place->n_touch++] =
            (twi_gemm_touch_t){.at = line, .step = part->ld_out * w->out_bytes, .n = part->rows, .write = 1};
}

/* Whatever the hook may have changed for the tile before. */
static void place_in_c(const strip_work_t *w, twi_gemm_place_t *place)
{
    const twi_gemm_problem_t *problem = w->problem;
    twi_gemm_part_t *part = &place->part;
    part->out = problem->c ? (char *)problem->c + (part->row * problem->ldc + part->col) * w->out_bytes : NULL;
    part->ld_out = problem->ldc;
    part->n_also = 0;
    part->stream = false;
    part->addends = NULL;
    place->tag = place->n_touch = 0;
}

static void place_by_hook(const strip_work_t *w, strip_placed_t *placed)
{
    twi_gemm_part_t *part = &placed->place.part;
    w->hook->place(w->hook->user, &placed->tile, &placed->place);
    if (part->addends) {
        part->ld_addend = part->cols;
        part->addend_ahead = ADDEND_TILES * w->kernel->mr * part->cols * w->out_bytes;
    }
}

strip_placed_t *twi_strip_place(const strip_work_t *w, int64_t i, int64_t *n, int64_t col, int cols, const void *sums)
{
    strip_finishing_t *f = w->memory.finishing;
    strip_placed_t *placed = &f->placed[f->turn];
    const twi_gemm_panel_t rows = twi_gemm_strip_panel(w->strip, w->kernel->mr, i);
    twi_gemm_tile_t *tile = &placed->tile;
    twi_gemm_part_t *part = &placed->place.part;
    f->turn ^= 1;
    part->acc = sums;
    part->row = tile->row = rows.row;
    part->col = tile->col = col;
    part->rows = tile->rows = *n > 1 ? (int)*n * w->kernel->mr : rows.rows;
    part->cols = tile->cols = cols;
    tile->panel = w->strip->first_panel + (int)i;
    place_in_c(w, &placed->place);
    if (w->hook)
        place_by_hook(w, placed);
    else if (w->plan->streams && cols * w->out_bytes % LINE_BYTES == 0)
        part->stream = true;
    else
        touch_lines(w, &placed->place);
    if (part->rows < tile->rows) {
        assert(part->rows > 0 && part->rows % w->kernel->mr == 0);
        *n = part->rows / w->kernel->mr;
        tile->rows = part->rows;
    }
    return placed;
}

void twi_strip_ready(const strip_work_t *w, const strip_placed_t *placed, int64_t panel, const char *sums)
{
    strip_finishing_t *f = w->memory.finishing;
    f->ready = placed;
    f->panel = panel;
    f->sums = sums;
}

void twi_strip_done(const strip_work_t *w)
{
    strip_finishing_t *f = w->memory.finishing;
    const strip_placed_t *placed = f->ready;
    const twi_gemm_hook_t *hook = w->hook;
    f->ready = NULL;
    if (hook && hook->done)
        hook->done(hook->user, &placed->tile, &placed->place);
}

void twi_strip_finish(const strip_work_t *w)
{
    const strip_finishing_t *f = w->memory.finishing;
    if (!f->ready)
        return;
    const twi_gemm_part_t *part = &f->ready->place.part;
    const int first = (int)f->panel * w->kernel->mr;
    if (first == 0) {
        w->plan->finish(&w->epilogue, part);
    } else {
        for (int row = first; row < part->rows; row++)
            w->row[part->addends != NULL](&w->epilogue, part, row, f->sums + (row - first) * part->ld_acc * 4);
    }
    twi_strip_done(w);
}

void twi_strip_hand(const strip_work_t *w, twi_gemm_ready_t *ready_out)
{
    const strip_finishing_t *f = w->memory.finishing;
    ready_out->part = NULL;
    if (!f->ready)
        return;
    if (f->ready->place.part.cols == TWI_GEMM_ROW_COLS)
        twi_strip_hand_rows(w, f->ready, f->panel, f->sums, ready_out);
    else
        twi_strip_finish(w);
}

void twi_strip_hand_rows(const strip_work_t *w, const strip_placed_t *placed, int64_t panel, const char *sums,
                         twi_gemm_ready_t *ready_out)
{
    const twi_gemm_part_t *part = &placed->place.part;
    const int mr = w->kernel->mr, first = (int)panel * mr;
    ready_out->part = part;
    ready_out->row = first;
    ready_out->rows = part->rows - first < mr ? part->rows - first : mr;
    ready_out->sums = sums;
    ready_out->epilogue = &w->epilogue;
    ready_out->finish = w->row[part->addends != NULL];
    ready_out->cast = w->rounds && !part->addends;
    ready_out->add = w->rounds && part->addends && w->epilogue.out_type == TWI_BFP16;
}
