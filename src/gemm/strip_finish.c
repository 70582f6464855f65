/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles on their way from sums to results. See strip.h. */
#include "gemm/strip.h"

enum {
    LINE_BYTES = 64,
    ADDEND_TILES = 2, /* addends are asked for so many tiles ahead */
};

/* The lines of a tile in a row-major matrix: those at one place of every row are a range. */
static int lines_of(const twi_gemm_tile_t *tile, int64_t item_bytes, twi_gemm_touch_t *touch)
{
    const char *row = tile->out, *end = row + tile->cols * item_bytes;
    int n = 0;
    for (const char *line = row - (uintptr_t)row % LINE_BYTES; line < end; line += LINE_BYTES)
        touch[n++] = (twi_gemm_touch_t){.at = line, .step = tile->ld_out * item_bytes, .n = tile->rows, .write = 1};
    return n;
}

/* Where the tile goes, from the hook or in C; *place_out is for the kernel. */
static void place_tile(const strip_work_t *w, twi_gemm_tile_t *tile, twi_gemm_place_t *place_out)
{
    const twi_gemm_hook_t *hook = w->hook;
    const int64_t item_bytes = (int64_t)twi_dtype_bytes(w->epilogue.out_type);
    tile->ld_out = w->problem->ldc;
    tile->out = w->problem->c ? (char *)w->problem->c + (tile->row * tile->ld_out + tile->col) * item_bytes : NULL;
    place_out->out = tile->out;
    place_out->ld_out = tile->ld_out;
    place_out->stream = false;
    place_out->n_also = place_out->n_addends = place_out->own = place_out->n_touch = place_out->tag = 0;
    place_out->also = NULL;
    place_out->addends = NULL;
    if (hook) {
        hook->place(hook->user, tile, place_out);
        tile->out = place_out->out;
        tile->ld_out = place_out->ld_out;
        tile->tag = place_out->tag;
    } else if (w->plan->streams && tile->cols * item_bytes % LINE_BYTES == 0) {
        place_out->stream = true;
    } else {
        place_out->n_touch = lines_of(tile, item_bytes, place_out->touch);
    }
}

void twi_strip_place(const strip_work_t *w, const twi_gemm_tile_t *tile, const void *sums, twi_gemm_place_t *place_out)
{
    strip_finishing_t *f = w->memory.finishing;
    strip_placed_t *placed = &f->placed[f->n_placed++ % 2];
    placed->tile = *tile;
    place_tile(w, &placed->tile, place_out);
    placed->part = (twi_gemm_part_t){
        .acc = sums,
        .ld_acc = w->kernel->nr,
        .row = tile->row,
        .col = tile->col,
        .rows = tile->rows,
        .cols = tile->cols,
        .out = place_out->out,
        .ld_out = place_out->ld_out,
        .also = place_out->also,
        .n_also = place_out->n_also,
        .stream = place_out->stream,
        .addends = place_out->addends,
        .n_addends = place_out->n_addends,
        .own = place_out->own,
        .ld_addend = tile->cols,
        .addend_ahead = ADDEND_TILES * tile->rows * tile->cols * (int64_t)twi_dtype_bytes(w->epilogue.out_type),
    };
}

void twi_strip_done(const strip_work_t *w)
{
    strip_finishing_t *f = w->memory.finishing;
    const twi_gemm_hook_t *hook = w->hook;
    if (hook && hook->done)
        hook->done(hook->user, &f->placed[f->done % 2].tile);
    f->done++;
}

void twi_strip_finish(const strip_work_t *w)
{
    const strip_finishing_t *f = w->memory.finishing;
    if (f->done == f->ready)
        return;
    w->plan->finish(&w->epilogue, &f->placed[f->done % 2].part);
    twi_strip_done(w);
}

/* Whether a tile of whole rows is rounded, and nothing else. Sums of kernels with tiles are not denormal. */
static bool is_cast(const twi_gemm_epilogue_t *e, const twi_gemm_part_t *part)
{
    const bool plain = !e->integer && !e->fbias && !e->x3 && (e->out_type == TWI_FP16 || e->out_type == TWI_BFP16);
    return plain && part->n_also == 0 && !part->addends;
}

twi_gemm_ready_t twi_strip_hand(const strip_work_t *w)
{
    const strip_finishing_t *f = w->memory.finishing;
    const twi_gemm_part_t *part = &f->placed[f->done % 2].part;
    if (f->done == f->ready || part->cols != w->kernel->nr) {
        twi_strip_finish(w);
        return (twi_gemm_ready_t){.part = NULL};
    }
    return (twi_gemm_ready_t){
        .part = part,
        .epilogue = &w->epilogue,
        .row = twi_gemm_row(w->plan->kernel->isa, &w->epilogue, part->addends != NULL),
        .cast = is_cast(&w->epilogue, part),
    };
}
