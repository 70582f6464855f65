/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles of mm_reduce_scatter and mm_all_reduce: to a slot, summed with those of the peers, copied out of it. */
#include <string.h>

#include "ops/mm_reduce.h"

static char *tile_at(const mm_tiles_t *t, const char *base, int64_t first, int64_t col, int64_t cols)
{
    return twi_panel_at(base, t->strip->rows, first, col, cols, t->r->wire_bytes);
}

/* Element (first, col) of the strip in y. */
static char *y_at(const mm_tiles_t *t, int64_t first, int64_t col)
{
    const twi_gemm_problem_t *problem = &t->op->problem.product;
    const int64_t y_row = t->r->gathers || t->r->everything ? 0 : t->r->shares[t->op->rank].row;
    return (char *)problem->c + ((t->strip->row + first - y_row) * problem->ldc + t->col + col) * t->r->out_bytes;
}

static char *slot_of(const mm_tiles_t *t, int rank)
{
    return twi_op_slot(t->op, rank, t->round) + t->strip->before * t->cols * t->r->wire_bytes;
}

/* ---- Sums -------------------------------------------------------------------------------------- */

static void store_rows(const mm_tiles_t *t, int64_t first, int64_t rows, int64_t col, int64_t cols, const char *tile)
{
    const twi_rows_t copy = {
        .dst = y_at(t, first, col),
        .dst_step = t->op->problem.product.ldc * t->r->out_bytes,
        .src = tile,
        .src_step = cols * t->r->out_bytes,
        .n = rows,
        .bytes = (size_t)(cols * t->r->out_bytes),
    };
    t->r->copy_rows(&copy);
}

/* fp32 sums, contiguous, to the type of the result, contiguous. */
static void round_sums(const mm_tiles_t *t, int64_t rows, int64_t cols, const char *sums, char *out)
{
    const twi_gemm_epilogue_t epilogue = {.out_type = t->r->out_type};
    float *padded = (float *)(void *)t->worker->tiles[0];
    const int64_t ld = (cols + 15) / 16 * 16;
    for (int64_t i = 0; i < rows; i++)
        memcpy(padded + i * ld, sums + i * cols * 4, (size_t)cols * 4);
    const twi_gemm_part_t part = {
        .acc = padded,
        .ld_acc = ld,
        .rows = (int)rows,
        .cols = (int)cols,
        .out = out,
        .ld_out = cols,
    };
    t->op->plan.finish(&epilogue, &part);
}

/*
 * One block of at most mr rows of a panel: the partials at worker->sources are summed, and the result is
 * left in our slot for peers, or in tiles[2]. tiles[0] may hold our own partial.
 */
static char *sum_block(const mm_tiles_t *t, int64_t first, int64_t rows, int64_t col, int64_t cols)
{
    const mm_reduce_t *r = t->r;
    const twi_op_problem_t *problem = &t->op->problem;
    const void **sources = t->worker->sources;
    const size_t n = (size_t)(rows * cols);
    void *out = r->gathers ? tile_at(t, t->own, first, col, cols) : t->worker->tiles[2];
    if (problem->wire == TW_WIRE_INT8) {
        const float *s1 = problem->comm_scale_1 + t->col + col, *s2 = problem->comm_scale_2 + t->col + col;
        r->wire->requantise((const int8_t *const *)sources, t->op->size, rows, cols, s1, s2, out);
    } else if (problem->wire == TW_WIRE_F32) {
        void *sums = t->worker->tiles[1];
        r->reduce(&sums, 1, sources, t->op->size, n);
        round_sums(t, rows, cols, sums, out);
    } else {
        r->reduce(&out, 1, sources, t->op->size, n);
    }
    return out;
}

/* Its result to y. */
static void store_block(const mm_tiles_t *t, int64_t first, int64_t rows, int64_t col, int64_t cols, const char *block)
{
    const twi_op_problem_t *problem = &t->op->problem;
    if (problem->wire == TW_WIRE_INT8)
        t->r->wire->dequantise(t->r->out_type, (const int8_t *)block, rows, cols, problem->comm_scale_2 + t->col + col,
                               y_at(t, first, col), problem->product.ldc);
    else
        store_rows(t, first, rows, col, cols, block);
}

static void find_bases(mm_tiles_t *t)
{
    for (int p = 0; p < t->op->size; p++)
        t->bases[p] = slot_of(t, p);
}

static void set_sources(const mm_tiles_t *t, int64_t first, int64_t col, int64_t cols)
{
    for (int p = 0; p < t->op->size; p++)
        t->worker->sources[p] = tile_at(t, t->bases[p], first, col, cols);
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

void twi_mm_tiles_sum(mm_tiles_t *t, int64_t first, int64_t rows, int64_t col, int64_t cols)
{
    const twi_gemm_kernel_t *kernel = t->op->plan.kernel;
    find_bases(t);
    for (int64_t i = first; i < first + rows; i += kernel->mr)
        for (int64_t c = col; c < col + cols; c += kernel->nr) {
            const int64_t block_rows = least(first + rows - i, kernel->mr),
                          block_cols = least(col + cols - c, kernel->nr);
            set_sources(t, i, c, block_cols);
            store_block(t, i, block_rows, c, block_cols, sum_block(t, i, block_rows, c, block_cols));
        }
}

/* ---- Results ----------------------------------------------------------------------------------- */

twi_panels_t twi_mm_tiles_results(const mm_tiles_t *t, int owner, int64_t first, int64_t rows)
{
    const twi_gemm_kernel_t *kernel = t->op->plan.kernel;
    return (twi_panels_t){
        .strip = slot_of(t, owner),
        .strip_rows = t->strip->rows,
        .first = first,
        .rows = rows,
        .cols = t->cols,
        .n = t->cols,
        .item_bytes = t->r->out_bytes,
        .tile_bytes = t->r->wire_bytes,
        .dst = y_at(t, first, 0),
        .dst_step = t->op->problem.product.ldc * t->r->out_bytes,
        .mr = kernel->mr,
        .nr = kernel->nr,
    };
}

void twi_mm_tiles_dequantise(const mm_tiles_t *t, int owner, int64_t first, int64_t rows)
{
    const int nr = t->op->plan.kernel->nr;
    for (int64_t c = 0; c < t->cols; c += nr)
        store_block(t, first, rows, c, least(t->cols - c, nr),
                    tile_at(t, slot_of(t, owner), first, c, least(t->cols - c, nr)));
}

/* ---- Tiles of the product ---------------------------------------------------------------------- */

bool twi_mm_partials_there(twi_op_t *op, const mm_reduce_t *r, int64_t own, int64_t round)
{
    for (int p = 0; p < op->size; p++) {
        const int64_t sends = r->n_strips - r->shares[p].n;
        if (p != op->rank && !twi_op_has_sent(op, p, round * sends + r->needed[own * op->size + p] + 1))
            return false;
    }
    return true;
}

/* At the first tile of a panel: are the partials there by now? Columns come in order, so those that are late do too. */
static void look_for_partials(mm_tiles_t *t, int64_t col, int64_t cols)
{
    if (t->index < 0 || t->fused || t->r->defer)
        return;
    t->fused = twi_mm_partials_there(t->op, t->r, t->index, t->round);
    if (t->fused)
        find_bases(t);
    else
        t->late = col + cols;
}

/* Partials of a fused tile are read, and its result written, right after it is finished. */
static void touch_fused(const mm_tiles_t *t, const twi_gemm_tile_t *tile, int64_t first, twi_gemm_place_t *place)
{
    const int64_t col = tile->col - t->col, bytes = tile->rows * tile->cols * t->r->wire_bytes;
    int n = place->n_touch;
    set_sources(t, first, col, tile->cols);
    for (int p = 0; p < t->op->size; p++)
        if (p != t->op->rank)
            n = twi_panel_touch(place->touch, n, t->worker->sources[p], bytes);
    const int n_read = n;
    if (t->r->gathers)
        n = twi_panel_touch(place->touch, n, t->worker->sources[t->op->rank], bytes);
    for (int i = 0; i < tile->rows && !t->r->streams; i++)
        n = twi_panel_touch(place->touch, n, y_at(t, first + i, col), tile->cols * t->r->out_bytes);
    place->n_touch = n;
    place->n_touch_write = n - n_read;
}

static void place_tile(void *user, const twi_gemm_tile_t *tile, twi_gemm_place_t *place)
{
    mm_tiles_t *t = user;
    const int64_t first = tile->row - t->strip->row, col = tile->col - t->col;
    if (first == 0)
        look_for_partials(t, col, tile->cols);
    char *slot = tile_at(t, t->own, first, col, tile->cols);
    const bool scratch = t->fused || t->op->problem.wire == TW_WIRE_INT8;
    place->out = scratch ? t->worker->tiles[0] : slot;
    place->ld_out = tile->cols;
    if (t->aside)
        place->n_touch = twi_panels_touch(t->aside, place->touch, 0);
    if (t->fused) {
        touch_fused(t, tile, first, place);
        return;
    }
    const int n_read = place->n_touch;
    place->n_touch = twi_panel_touch(place->touch, n_read, slot, tile->rows * tile->cols * t->r->wire_bytes);
    place->n_touch_write = place->n_touch - n_read;
}

/* The result of a fused tile to y: on the side, or at once. */
static void store_fused(const mm_tiles_t *t, const twi_gemm_tile_t *tile, const char *block, twi_gemm_put_t *put)
{
    const int64_t first = tile->row - t->strip->row, col = tile->col - t->col, bytes = tile->cols * t->r->out_bytes;
    const bool whole = bytes % TWI_OPS_LINE == 0 && (uintptr_t)block % TWI_OPS_LINE == 0;
    if (!put || !whole || !t->r->streams || t->op->problem.wire == TW_WIRE_INT8) {
        store_block(t, first, tile->rows, col, tile->cols, block);
        return;
    }
    put->from = block;
    for (int i = 0; i < tile->rows; i++)
        for (int64_t at = 0; at < bytes; at += TWI_OPS_LINE)
            put->to[put->n++] = y_at(t, first + i, col) + at;
}

static void finish_tile(void *user, const twi_gemm_tile_t *tile, twi_gemm_put_t *put)
{
    mm_tiles_t *t = user;
    const int64_t first = tile->row - t->strip->row, col = tile->col - t->col;
    const void *own = t->worker->tiles[0];
    if (t->op->problem.wire == TW_WIRE_INT8) {
        void *q = t->fused ? t->worker->tiles[1] : tile_at(t, t->own, first, col, tile->cols);
        t->r->wire->quantise(t->r->out_type, own, tile->rows, tile->cols, t->op->problem.comm_scale_1 + tile->col, q);
        own = q;
    }
    if (t->fused) {
        t->worker->sources[t->op->rank] = own;
        store_fused(t, tile, sum_block(t, first, tile->rows, col, tile->cols), put);
    } else if (t->aside) {
        (void)twi_panels_put(t->aside, put);
    }
}

const twi_gemm_hook_t twi_mm_reduce_hook = {.place = place_tile, .done = finish_tile};

mm_tiles_t twi_mm_tiles(twi_op_t *op, mm_reduce_t *r, int64_t strip, int64_t round, twi_op_worker_t *worker)
{
    mm_tiles_t t = {
        .op = op,
        .r = r,
        .worker = worker,
        .strip = &r->strips[strip],
        .round = round,
        .col = twi_mm_round_col(r, round),
        .cols = twi_mm_round_cols(op, r, round),
        .bases = worker->bases,
        .index = -1,
    };
    t.own = slot_of(&t, op->rank);
    return t;
}
