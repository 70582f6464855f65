/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums of mm_reduce_scatter and mm_all_reduce that a rank leaves to others because it is behind. See mm_reduce.h, and
 * board.h for the words.
 */
#include "base/sizes.h"
#include "ops/agree.h"
#include "ops/mm_reduce.h"

static _Atomic uint64_t *mark_at(const twi_op_t *op, int owner, int64_t number)
{
    return &twi_board(op->transport, owner)->marks[op->call % 2][number];
}

/* TWI_MARK_... */
static int64_t mark_of(const twi_op_t *op, int owner, int64_t number)
{
    return twi_epoch_count(twi_board_load(mark_at(op, owner, number)), op->call);
}

/* ---- Giving ------------------------------------------------------------------------------------ */

static int64_t tiles_of(const twi_op_t *op)
{
    const twi_gemm_problem_t *product = &op->problem.product;
    return twi_ceil_div(product->m, op->plan.kernel->mr) * twi_ceil_div(product->n, op->plan.kernel->nr);
}

static int64_t pace_of(const twi_op_t *op, int rank)
{
    const uint64_t pace = atomic_load_explicit(&twi_board(op->transport, rank)->pace, memory_order_relaxed);
    return twi_min(twi_epoch_count(pace, op->call), tiles_of(op));
}

void twi_mm_pace(const twi_op_t *op, mm_reduce_t *r, int64_t rows)
{
    if (!r->helps || rows == 0)
        return;
    int64_t tiles = twi_ceil_div(rows, op->plan.kernel->mr);
    tiles += atomic_fetch_add_explicit(&r->tiles, tiles, memory_order_relaxed);
    atomic_store_explicit(&twi_board(op->transport, op->rank)->pace,
                          TWI_CALL_EPOCH(op->call, twi_min(tiles, TWI_CALL_UNITS_MAX)), memory_order_relaxed);
}

/*
 * Whether peers will have time for our sums: if one of RANKS is faster by an eighth, or several are together. It
 * does little harm to give too much: what nobody has taken we sum ourselves in the end. But with two ranks a sum in the
 * epilogue costs next to nothing, so the other one has to be faster by a half.
 */
static bool is_behind(const twi_op_t *op)
{
    enum { RANKS = 8, FIRST = 4 };
    const int64_t parts = op->size == 2 ? 2 : 8;
    const int64_t ours = pace_of(op, op->rank), first = tiles_of(op) / FIRST;
    int64_t ahead = 0;
    for (int p = 0; p < op->size; p++) {
        const int64_t lead = pace_of(op, p) - ours;
        ahead += lead > 0 ? lead : 0;
    }
    return ahead * parts > (ours > first ? ours : first) * twi_ceil_div(op->size, RANKS);
}

/* Pieces of the own strips of a batch end here. */
static int64_t pieces_end(const twi_op_t *op, const mm_reduce_t *r, const mm_batch_t *batch)
{
    return (batch->own + batch->n_own) * twi_mm_pieces(op, r, 0);
}

bool twi_mm_gives(twi_op_t *op, mm_reduce_t *r, int64_t batch)
{
    if (r->batches[batch].n_own == 0 || pieces_end(op, r, &r->batches[batch]) > r->marks)
        return false;
    uint8_t gives = atomic_load_explicit(&r->gives[batch], memory_order_relaxed);
    if (gives != MM_UNDECIDED)
        return gives == MM_GIVE;
    const bool behind = r->gives_all || atomic_load_explicit(&r->behind, memory_order_relaxed) || is_behind(op);
    if (behind)
        atomic_store_explicit(&r->behind, true, memory_order_relaxed);
    const uint8_t choice = behind ? MM_GIVE : MM_KEEP;
    if (atomic_compare_exchange_strong_explicit(&r->gives[batch], &gives, choice, memory_order_relaxed,
                                                memory_order_relaxed))
        return behind;
    return gives == MM_GIVE;
}

void twi_mm_mark(twi_op_t *op, const mm_reduce_t *r, const mm_batch_t *batch, bool given)
{
    const int64_t end = twi_min(pieces_end(op, r, batch), r->marks);
    const uint64_t mark = TWI_CALL_EPOCH(op->call, given ? TWI_MARK_GIVEN : TWI_MARK_KEPT);
    int64_t i = batch->own * twi_mm_pieces(op, r, 0);
    if (i >= end)
        return;
    for (; i < end; i++)
        twi_board_store(mark_at(op, op->rank, i), mark);
    twi_transport_wake(op->transport);
}

/* The answer for our own rank decides; those for others only name whom we wait for, in messages. */
bool twi_mm_given_lacks(const twi_op_t *op, const mm_reduce_t *r, int64_t own, int rank)
{
    const int64_t pieces = twi_mm_pieces(op, r, 0);
    for (int64_t i = own * pieces; i < (own + 1) * pieces; i++) {
        const int64_t mark = mark_of(op, op->rank, i);
        if (rank == op->rank ? mark < TWI_MARK_DONE(op->size) : mark == TWI_MARK_TAKEN + rank)
            return true;
    }
    return false;
}

bool twi_mm_was_given(const twi_op_t *op, int owner, int64_t number)
{
    return number < twi_entry_of(op, owner)->marks && mark_of(op, owner, number) >= TWI_MARK_GIVEN;
}

/* ---- Helping ----------------------------------------------------------------------------------- */

/* Whether a strip of `owner` lacks the partial of `rank`. */
static bool strip_lacks(twi_op_t *op, const mm_reduce_t *r, int owner, int64_t strip, int rank)
{
    const int step = (owner - rank + op->size) % op->size;
    return !twi_op_has_sent(op, rank, twi_mm_sends_before(op, r, rank, strip, step) + 1);
}

/*
 * What lacks of the owner is its mark; of another rank its partial, if the piece is given or, for all we know, may be:
 * the owner is not always asked first.
 */
bool twi_mm_help_lacks(twi_op_t *op, twi_item_t item, int rank)
{
    const mm_reduce_t *r = op->state;
    const int owner = item.peer;
    const bool agrees = twi_op_agrees(op, owner);
    if (agrees && item.number >= twi_entry_of(op, owner)->marks)
        return false;
    const int64_t mark = agrees ? mark_of(op, owner, item.number) : TWI_MARK_NONE;
    if (rank == owner)
        return mark == TWI_MARK_NONE;
    const mm_piece_t piece = twi_mm_piece(op, r, r->shares[owner].n, item.number);
    return (mark == TWI_MARK_NONE || mark == TWI_MARK_GIVEN) && strip_lacks(op, r, owner, piece.strip, rank);
}

static bool is_healthy(const twi_op_t *op, int rank)
{
    return rank == op->rank || twi_transport_health(op->transport, rank) == TWI_HEALTH_OK;
}

/* What a rank lends; at NULL: nothing, or it has given up. */
static twi_gemm_rows_t y_of(const twi_op_t *op, int rank)
{
    return is_healthy(op, rank) ? twi_entry_lent(op, rank) : (twi_gemm_rows_t){.at = NULL};
}

static bool take(const twi_op_t *op, int owner, int64_t number)
{
    uint64_t given = TWI_CALL_EPOCH(op->call, TWI_MARK_GIVEN);
    return atomic_compare_exchange_strong_explicit(mark_at(op, owner, number), &given,
                                                   TWI_CALL_EPOCH(op->call, TWI_MARK_TAKEN + op->rank),
                                                   memory_order_acquire, memory_order_relaxed);
}

/* To the y of a rank, if it lends it and the piece is for it. */
static void deliver(twi_op_t *op, int owner, const mm_piece_t *piece, int rank, twi_op_worker_t *worker)
{
    const mm_reduce_t *r = op->state;
    const twi_gemm_rows_t y = y_of(op, rank);
    if (y.at && (r->all_reduce || rank == owner))
        twi_mm_move_piece(op, owner, piece, y, rank == op->rank ? r->copy_rows : r->push_rows, worker);
}

static void sum_piece(twi_op_t *op, int owner, int64_t number, twi_op_worker_t *worker)
{
    mm_reduce_t *r = op->state;
    const mm_piece_t piece = twi_mm_piece(op, r, r->shares[owner].n, number);
    const mm_rows_t rows = twi_mm_rows(r, owner, piece.strip);
    const twi_gemm_strip_t part = twi_mm_piece_part(r, owner, &piece);
    const uint64_t begin = twi_trace_begin(op);
    mm_tiles_t tiles = twi_mm_tiles(op, r, piece.round, worker);
    tiles.owner = owner;
    tiles.in_slot = true;
    twi_mm_tiles_sum(&tiles, &rows, piece.col, piece.cols);
    for (int step = 0; step < op->size; step++)
        deliver(op, owner, &piece, (owner + step) % op->size, worker);
    twi_stream_fence();
    twi_trace_end(op, begin, "reduce", worker, owner == op->rank ? -1 : owner, &part);
}

void twi_mm_help_run(twi_op_t *op, twi_item_t item, twi_op_worker_t *worker)
{
    const int owner = item.peer;
    const int64_t number = item.number;
    if (number >= twi_entry_of(op, owner)->marks || mark_of(op, owner, number) != TWI_MARK_GIVEN) {
        twi_op_did_nothing(op);
        return;
    }
    twi_engine_touch_begin(op->ops->engine);
    if (is_healthy(op, owner) && take(op, owner, number)) {
        sum_piece(op, owner, number, worker);
        twi_board_store(mark_at(op, owner, number), TWI_CALL_EPOCH(op->call, TWI_MARK_DONE(op->size)));
        twi_transport_wake(op->transport);
    }
    twi_engine_touch_end(op->ops->engine);
}
