/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles of mm_reduce_scatter and mm_all_reduce: to a slot, summed with those of the peers, copied out of it. */
#include <string.h>

#include "base/sizes.h"
#include "ops/agree.h"
#include "ops/mm_reduce.h"

/* Scratch tiles of a worker. */
enum { TILE_OWN, TILE_SUMS, TILE_RESULT, TILE_PADDED };

enum { TAG_FUSED = 1 };

/* Element (first, col) of a strip in the slot at `base`; cols: of its panel. */
static char *tile_at(const mm_tiles_t *t, const mm_strip_t *strip, const char *base, int64_t first, int64_t col,
                     int64_t cols)
{
    const int64_t bytes = t->r->wire_bytes;
    return twi_panel_at(base + strip->row * t->cols * bytes, strip->rows, first, col, cols, bytes);
}

/* The row of the product that the y of a rank begins with. */
static int64_t first_row(const mm_reduce_t *r, int rank)
{
    return r->all_reduce ? 0 : r->shares[rank].row;
}

/* Element (row, col) of the product in y. */
static char *y_at(const mm_tiles_t *t, int64_t row, int64_t col)
{
    const twi_gemm_problem_t *problem = &t->op->problem.product;
    const int64_t y_row = row - first_row(t->r, t->op->rank);
    return (char *)problem->c + (y_row * problem->ldc + t->col + col) * t->r->out_bytes;
}

/* ---- Sums -------------------------------------------------------------------------------------- */

/* fp32 sums, contiguous, to the type of the result, contiguous. */
static void round_sums(const mm_tiles_t *t, int64_t rows, int64_t cols, const char *sums, char *out)
{
    const twi_gemm_epilogue_t epilogue = {.out_type = t->r->out_type};
    float *padded = (float *)(void *)t->worker->tiles[TILE_PADDED];
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
 * Some rows of a panel, at most mr: the partials at worker->sources are summed, and the result is left at `out`.
 */
static void sum_rows(const mm_tiles_t *t, int64_t rows, int64_t col, int64_t cols, void *out)
{
    const mm_reduce_t *r = t->r;
    const twi_op_problem_t *problem = &t->op->problem;
    const void **sources = t->worker->sources;
    const size_t n = (size_t)(rows * cols);
    if (problem->wire == TW_WIRE_INT8) {
        r->wire->requantise((const int8_t *const *)sources, t->op->size, rows, cols, r->ratio + t->col + col, out);
    } else if (problem->wire == TW_WIRE_F32) {
        void *sums = t->worker->tiles[TILE_SUMS];
        r->reduce(&sums, 1, sources, t->op->size, n);
        round_sums(t, rows, cols, sums, out);
    } else {
        r->reduce(&out, 1, sources, t->op->size, n);
    }
}

/* Where the result of a block that begins at row `first` is left: in the owner's slot for others, or here. */
static char *result_at(const mm_tiles_t *t, const mm_strip_t *strip, int64_t first, int64_t col, int64_t cols)
{
    return t->r->results == MM_COPIED || t->in_slot ? tile_at(t, strip, t->own, first, col, cols)
                                                    : t->worker->tiles[TILE_RESULT];
}

/*
 * Where results go besides our y: with two ranks to that of the other, if it lends it, else to our slot. All peers have
 * sent something, so their entries are there. Who has given up since does not lend us its y any more:
 * twi_engine_touch_begin came before.
 */
static void find_others(mm_tiles_t *t)
{
    const twi_op_t *op = t->op;
    const int other = 1 - op->rank;
    twi_gemm_rows_t y = {.at = NULL};
    if (t->r->results == MM_COPIED && op->size == 2)
        y = twi_entry_lent(op, other);
    t->slot_results = t->r->results == MM_COPIED && !y.at;
    t->n_others = 0;
    t->others_lines = true;
    if (!y.at || twi_transport_health(op->transport, other) != TWI_HEALTH_OK)
        return;
    t->worker->others[t->n_others++] = y;
    t->others_lines = twi_panels_lines(y.at, y.step, 0);
}

static void find_bases(mm_tiles_t *t)
{
    for (int p = 0; p < t->op->size; p++)
        t->bases[p] = twi_op_slot(t->op, p, t->round);
    t->own = twi_op_slot(t->op, t->owner, t->round);
    find_others(t);
}

/* Element (row, col) of the product in the y of a peer. */
static twi_gemm_rows_t other_at(const mm_tiles_t *t, int i, int64_t row, int64_t col)
{
    const twi_gemm_rows_t *other = &t->worker->others[i];
    const int64_t at = row * other->step + (t->col + col) * t->r->out_bytes;
    return (twi_gemm_rows_t){.at = other->at + at, .step = other->step};
}

static void store_rows(const mm_tiles_t *t, const char *tile, int64_t rows, int64_t cols, twi_gemm_rows_t to,
                       twi_copy_rows_fn copy_rows)
{
    const twi_rows_t copy = {
        .dst = to.at,
        .dst_step = to.step,
        .src = tile,
        .src_step = cols * t->r->out_bytes,
        .n = rows,
        .bytes = (size_t)(cols * t->r->out_bytes),
    };
    copy_rows(&copy);
}

/* The result of a block from `row` of the product on to our y, and to those of peers. */
static void store_block(const mm_tiles_t *t, int64_t row, int64_t rows, int64_t col, int64_t cols, const char *block)
{
    const twi_op_problem_t *problem = &t->op->problem;
    const twi_gemm_rows_t y = {.at = y_at(t, row, col), .step = problem->product.ldc * t->r->out_bytes};
    if (problem->wire == TW_WIRE_INT8) {
        const bool stream = t->r->streams && twi_panels_lines(y.at, y.step, cols * t->r->out_bytes);
        t->r->wire->dequantise(t->r->out_type, (const int8_t *)block, rows, cols, problem->comm_scale_2 + t->col + col,
                               y.at, problem->product.ldc, stream);
        return;
    }
    store_rows(t, block, rows, cols, y, t->r->copy_rows);
    for (int i = 0; i < t->n_others; i++)
        store_rows(t, block, rows, cols, other_at(t, i, row, col), t->r->push_rows);
}

static void set_sources(const mm_tiles_t *t, const mm_strip_t *strip, int64_t first, int64_t col, int64_t cols)
{
    for (int p = 0; p < t->op->size; p++)
        t->worker->sources[p] = tile_at(t, strip, t->bases[p], first, col, cols);
}

void twi_mm_tiles_sum(mm_tiles_t *t, const mm_rows_t *rows, int64_t col, int64_t cols)
{
    const twi_gemm_kernel_t *kernel = t->op->plan.kernel;
    const mm_strip_t *strip = rows->strip;
    const int64_t end = rows->first + rows->n;
    find_bases(t);
    for (int64_t c = col; c < col + cols; c += kernel->nr)
        for (int64_t i = rows->first; i < end; i += kernel->mr) {
            const int64_t block_rows = twi_min(end - i, kernel->mr), block_cols = twi_min(col + cols - c, kernel->nr);
            char *result = result_at(t, strip, i, c, block_cols);
            set_sources(t, strip, i, c, block_cols);
            sum_rows(t, block_rows, c, block_cols, result);
            if (!t->in_slot)
                store_block(t, strip->row + i, block_rows, c, block_cols, result);
        }
}

/* ---- Results ----------------------------------------------------------------------------------- */

twi_panels_t twi_mm_tiles_results(const mm_tiles_t *t, const mm_rows_t *rows, int owner, const mm_piece_t *piece,
                                  twi_gemm_rows_t y)
{
    const twi_gemm_kernel_t *kernel = t->op->plan.kernel;
    const mm_strip_t *strip = rows->strip;
    return (twi_panels_t){
        .strip = tile_at(t, strip, twi_op_slot(t->op, owner, t->round), 0, 0, 0),
        .strip_rows = strip->rows,
        .first = rows->first,
        .rows = rows->n,
        .col = piece->col,
        .cols = piece->cols,
        .n = t->cols,
        .item_bytes = t->r->out_bytes,
        .tile_bytes = t->r->wire_bytes,
        .dst = y.at + (strip->row + rows->first - first_row(t->r, owner)) * y.step + t->col * t->r->out_bytes,
        .dst_step = y.step,
        .mr = kernel->mr,
        .nr = kernel->nr,
    };
}

void twi_mm_tiles_dequantise(const mm_tiles_t *t, const mm_rows_t *rows, int owner, const mm_piece_t *piece)
{
    const mm_strip_t *strip = rows->strip;
    const twi_gemm_kernel_t *kernel = t->op->plan.kernel;
    const char *slot = twi_op_slot(t->op, owner, t->round);
    const int64_t end = rows->first + rows->n;
    for (int64_t row = rows->first; row < end; row += kernel->mr)
        for (int64_t c = piece->col; c < piece->col + piece->cols; c += kernel->nr) {
            const int64_t n = twi_min(end - row, kernel->mr), cols = twi_min(t->cols - c, kernel->nr);
            store_block(t, strip->row + row, n, c, cols, tile_at(t, strip, slot, row, c, cols));
        }
}

/* ---- Tiles of the product ---------------------------------------------------------------------- */

bool twi_mm_partial_lacks(twi_op_t *op, const mm_reduce_t *r, int64_t own, int64_t round, int rank)
{
    const int64_t sends = r->n_strips - r->shares[rank].n;
    return rank != op->rank && !twi_op_has_sent(op, rank, round * sends + r->needed[own * op->size + rank] + 1);
}

static bool partials_there(const mm_tiles_t *t, const mm_rows_t *rows)
{
    for (int p = 0; p < t->op->size; p++)
        if (twi_mm_partial_lacks(t->op, t->r, rows->index, t->round, p))
            return false;
    return true;
}

void twi_mm_tiles_tell(const mm_tiles_t *t, mm_rows_t *rows, int64_t end)
{
    const mm_reduce_t *r = t->r;
    const int64_t strips = r->shares[t->op->rank].n;
    if (r->results != MM_COPIED)
        return;
    twi_stream_fence();
    while (rows->told < end) {
        const int64_t stop = twi_min((rows->told / r->piece_cols + 1) * r->piece_cols, end);
        const mm_piece_t piece = {.round = t->round, .strip = rows->index, .col = rows->told};
        const int64_t number = twi_mm_piece_number(t->op, r, strips, &piece);
        const int32_t panels = (int32_t)twi_ceil_div(stop - rows->told, t->op->plan.kernel->nr);
        /* Each worker releases its own panels; whoever finds that none are left has acquired all. */
        if (atomic_fetch_sub_explicit(&r->own_left[number], panels, memory_order_acq_rel) == panels)
            twi_units_finish(t->op, &t->op->result, number, 1);
        rows->told = stop;
    }
}

/* At the first tile of a panel: are the partials there by now? Columns come in order, so those that are late do too. */
static void look_for_partials(mm_tiles_t *t, mm_rows_t *rows, int64_t col, int64_t cols)
{
    if (rows->index < 0 || rows->fused || t->r->defer || t->gives)
        return;
    rows->fused = partials_there(t, rows);
    if (rows->fused)
        find_bases(t);
    else
        rows->late = rows->told = col + cols;
}

/* The places of a result besides our y; they last until the one after the next is asked for. */
static int list_places(mm_tiles_t *t, const twi_gemm_tile_t *tile, char *slot, const twi_gemm_rows_t **also_out)
{
    t->turn ^= 1;
    twi_gemm_rows_t *also = t->worker->also + t->turn * (t->op->size + 1);
    int n = 0;
    for (; n < t->n_others; n++)
        also[n] = other_at(t, n, tile->row, tile->col - t->col);
    if (t->slot_results)
        also[n++] = (twi_gemm_rows_t){.at = slot, .step = tile->cols * t->r->out_bytes};
    *also_out = also;
    return n;
}

/*
 * A result straight to where it goes: around the caches if it is large, and lines to lines. If a peer's y is among the
 * places, at any size: its lines are in the cache of another core, and a store would wait for each of them.
 */
static void place_result(mm_tiles_t *t, const twi_gemm_tile_t *tile, char *slot, twi_gemm_place_t *place)
{
    const int64_t row_bytes = tile->cols * t->r->out_bytes, y_step = t->op->problem.product.ldc * t->r->out_bytes;
    place->part.out = y_at(t, tile->row, tile->col - t->col);
    place->part.ld_out = t->op->problem.product.ldc;
    place->part.n_also = list_places(t, tile, slot, &place->part.also);
    place->part.stream =
        (t->r->streams || t->n_others > 0) && t->others_lines && tile->col * t->r->out_bytes % TWI_OPS_LINE == 0 &&
        twi_panels_lines(place->part.out, y_step, row_bytes) && twi_panels_lines(slot, row_bytes, row_bytes);
    if (place->part.stream)
        return;
    if (t->slot_results)
        twi_panel_touch(place, slot, place->part.rows * row_bytes, 1);
    twi_rows_touch(place, place->part.out, y_step, place->part.rows, row_bytes);
}

/* A fused tile of 16-bit partials is summed by the epilogue itself; others pass through a scratch tile. */
static void place_fused(mm_tiles_t *t, const mm_strip_t *strip, const twi_gemm_tile_t *tile, char *slot,
                        twi_gemm_place_t *place)
{
    place->tag = TAG_FUSED;
    place->part.out = t->worker->tiles[TILE_OWN];
    place->part.ld_out = tile->cols;
    if (t->op->problem.wire != TW_WIRE_OUT)
        return;
    const void **all = t->worker->all_sources;
    t->worker->sources = t->worker->sources == all ? all + t->op->size : all;
    set_sources(t, strip, tile->row - strip->row, tile->col - t->col, tile->cols);
    place->part.addends = t->worker->sources;
    place->part.n_addends = t->op->size;
    place->part.own = t->op->rank;
    place_result(t, tile, slot, place);
}

/* A partial goes to the slot: around the caches if it is large, so that who reads it does not find it in ours. */
static void place_partial(const mm_tiles_t *t, const twi_gemm_tile_t *tile, char *slot, twi_gemm_place_t *place)
{
    const int64_t row_bytes = tile->cols * t->r->wire_bytes;
    const bool quantised = t->op->problem.wire == TW_WIRE_INT8;
    place->part.out = quantised ? t->worker->tiles[TILE_OWN] : slot;
    place->part.ld_out = tile->cols;
    place->part.stream = !quantised && t->r->streams && twi_panels_lines(slot, row_bytes, row_bytes);
    if (!place->part.stream)
        twi_panel_touch(place, slot, place->part.rows * row_bytes, 1);
}

/* Rows of a tile, from its first one on, of one strip; what goes through a scratch tile is a panel at a time. */
static int rows_together(const mm_tiles_t *t, const mm_strip_t *strip, const twi_gemm_tile_t *tile)
{
    const bool scratch = t->op->problem.wire != TW_WIRE_OUT;
    const int64_t most = scratch ? t->op->plan.kernel->mr : strip->row + strip->rows - tile->row;
    return (int)twi_min(tile->rows, most);
}

static void place_tile(void *user, const twi_gemm_tile_t *tile, twi_gemm_place_t *place)
{
    mm_tiles_t *t = user;
    mm_rows_t *rows = &t->rows[t->strip_of[tile->panel]];
    const mm_strip_t *strip = rows->strip;
    const int64_t first = tile->row - strip->row, col = tile->col - t->col;
    char *slot = tile_at(t, strip, t->own, first, col, tile->cols);
    place->part.rows = rows_together(t, strip, tile);
    if (tile->panel == 0) {
        twi_mm_pace(t->op, t->r, t->n_rows);
        t->n_rows = 0;
    }
    t->n_rows += place->part.rows;
    if (first == 0)
        look_for_partials(t, rows, col, tile->cols);
    if (rows->fused && col >= rows->late) /* a second stack of the strip begins with the first column again */
        place_fused(t, strip, tile, slot, place);
    else
        place_partial(t, tile, slot, place);
}

/* A tile of the int8 wire from its scratch tile to where it is sent or summed from. */
static void quantise_tile(const mm_tiles_t *t, const mm_strip_t *strip, const twi_gemm_tile_t *tile, bool fused)
{
    const mm_reduce_t *r = t->r;
    char *slot = tile_at(t, strip, t->own, tile->row - strip->row, tile->col - t->col, tile->cols);
    r->wire->quantise(r->out_type, t->worker->tiles[TILE_OWN], tile->rows, tile->cols,
                      t->op->problem.comm_scale_1 + tile->col, r->inverts ? r->inverse + tile->col : NULL,
                      (int8_t *)(fused ? t->worker->tiles[TILE_SUMS] : slot));
}

/* Partials of all ranks for a fused tile of another wire than the result's type, our own being in a scratch tile. */
static void sum_tile(const mm_tiles_t *t, const mm_strip_t *strip, const twi_gemm_tile_t *tile)
{
    const int64_t first = tile->row - strip->row, col = tile->col - t->col;
    const int own = t->op->problem.wire == TW_WIRE_INT8 ? TILE_SUMS : TILE_OWN;
    char *result = result_at(t, strip, first, col, tile->cols);
    set_sources(t, strip, first, col, tile->cols);
    t->worker->sources[t->op->rank] = t->worker->tiles[own];
    sum_rows(t, tile->rows, col, tile->cols, result);
    store_block(t, tile->row, tile->rows, col, tile->cols, result);
}

/* Besides, peers are told of results when a piece is through. */
static void finish_tile(void *user, const twi_gemm_tile_t *tile, const twi_gemm_place_t *place)
{
    mm_tiles_t *t = user;
    mm_rows_t *rows = &t->rows[t->strip_of[tile->panel]];
    const int64_t end = tile->col - t->col + tile->cols;
    const bool fused = place->tag == TAG_FUSED;
    if (t->op->problem.wire == TW_WIRE_INT8)
        quantise_tile(t, rows->strip, tile, fused);
    if (fused && t->op->problem.wire != TW_WIRE_OUT)
        sum_tile(t, rows->strip, tile);
    const bool last = tile->row + tile->rows == rows->strip->row + rows->strip->rows;
    if (fused && last && end % t->r->piece_cols == 0)
        twi_mm_tiles_tell(t, rows, end);
}

twi_gemm_hook_t twi_mm_tiles_hook(mm_tiles_t *tiles)
{
    tiles->own = twi_op_slot(tiles->op, tiles->op->rank, tiles->round);
    return (twi_gemm_hook_t){
        .user = tiles,
        .place = place_tile,
        .done = tiles->r->results == MM_COPIED || tiles->op->problem.wire != TW_WIRE_OUT ? finish_tile : NULL,
    };
}

mm_rows_t twi_mm_rows(const mm_reduce_t *r, int owner, int64_t i)
{
    const mm_share_t *share = &r->shares[owner];
    const mm_strip_t *strip = &r->strips[r->owned[share->first + i]];
    const int64_t from = strip->row > share->row ? strip->row : share->row;
    return (mm_rows_t){
        .strip = strip,
        .first = from - strip->row,
        .n = twi_min(strip->row + strip->rows, share->row + share->rows) - from,
        .index = i,
    };
}

mm_tiles_t twi_mm_tiles(twi_op_t *op, mm_reduce_t *r, int64_t round, twi_op_worker_t *worker)
{
    return (mm_tiles_t){
        .op = op,
        .r = r,
        .worker = worker,
        .round = round,
        .col = twi_mm_round_col(r, round),
        .cols = twi_mm_round_cols(op, r, round),
        .owner = op->rank,
        .bases = worker->bases,
    };
}
