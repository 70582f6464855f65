/* SPDX-License-Identifier: Apache-2.0 */
/* Results of mm_all_reduce on their way from their owners to y. */
#include "ops/agree.h"
#include "ops/mm_reduce.h"

static mm_reduce_t *state_of(const twi_op_t *op)
{
    return op->state;
}

/* Pieces of a rank's results. */
static int64_t pieces_of(const twi_op_t *op, int rank)
{
    const mm_reduce_t *r = state_of(op);
    return twi_mm_all_pieces(op, r, r->shares[rank].n);
}

/* Those of ours that are there. */
static int64_t own_results(const twi_op_t *op)
{
    return twi_epoch_count(twi_board_load(&twi_board(op->transport, op->rank)->result), op->call);
}

static void move_piece(twi_op_t *op, int owner, const mm_piece_t *piece, twi_gemm_also_t y, twi_copy_rows_fn copy_rows,
                       twi_op_worker_t *worker)
{
    mm_reduce_t *r = state_of(op);
    const mm_tiles_t tiles = twi_mm_tiles(op, r, piece->round, worker);
    const mm_rows_t rows = twi_mm_rows(r, owner, piece->strip);
    if (op->problem.wire == TW_WIRE_INT8) {
        twi_mm_tiles_dequantise(&tiles, &rows, owner, piece);
    } else {
        const twi_panels_t results = twi_mm_tiles_results(&tiles, &rows, owner, piece, y);
        twi_panels_copy(&results, copy_rows);
    }
}

static twi_gemm_strip_t part_of(const twi_op_t *op, int owner, const mm_piece_t *piece)
{
    const mm_reduce_t *r = state_of(op);
    const mm_rows_t rows = twi_mm_rows(r, owner, piece->strip);
    return (twi_gemm_strip_t){.row = rows.strip->row + rows.first,
                              .rows = rows.n,
                              .col = twi_mm_round_col(r, piece->round) + piece->col,
                              .cols = piece->cols};
}

/* ---- Copies ------------------------------------------------------------------------------------ */

bool twi_mm_copy_lacks(twi_op_t *op, int peer, int64_t item, int rank)
{
    return rank == peer && !twi_op_has_result(op, peer, item + 1);
}

static void copy_piece(twi_op_t *op, int peer, const mm_piece_t *piece, twi_op_worker_t *worker)
{
    const mm_reduce_t *r = state_of(op);
    const twi_gemm_problem_t *product = &op->problem.product;
    const twi_gemm_strip_t part = part_of(op, peer, piece);
    const uint64_t begin = twi_trace_begin(op);
    move_piece(op, peer, piece, (twi_gemm_also_t){.at = product->c, .step = product->ldc * r->out_bytes}, r->copy_rows,
               worker);
    twi_trace_end(op, begin, "copy", worker, peer, &part);
}

/*
 * With claims an item is whatever is not claimed of the pieces up to this one, which are all there: when the items have
 * run, whoever ran them and in whatever order, nothing is left.
 */
static void copy_claimed(twi_op_t *op, int peer, int64_t item, twi_op_worker_t *worker)
{
    mm_reduce_t *r = state_of(op);
    _Atomic uint64_t *claimed = &twi_board(op->transport, op->rank)->peers[peer].claimed;
    for (int64_t number; twi_claim(claimed, op->call, item + 1, &number);) {
        const mm_piece_t piece = twi_mm_piece(op, r, r->shares[peer].n, number);
        copy_piece(op, peer, &piece, worker);
        /* Pairs with the load in twi_mm_arrive_lacks: who says that we have taken the slot knows that it is read. */
        (void)atomic_fetch_add_explicit(&r->copied[peer], 1, memory_order_release);
    }
}

void twi_mm_copy_run(twi_op_t *op, int peer, int64_t item, twi_op_worker_t *worker)
{
    mm_reduce_t *r = state_of(op);
    if (r->claims) {
        copy_claimed(op, peer, item, worker);
        return;
    }
    const mm_piece_t piece = twi_mm_piece(op, r, r->shares[peer].n, item);
    if (!r->pushed) /* else it is there */
        copy_piece(op, peer, &piece, worker);
    twi_reads_finish(op, piece.round);
}

/* ---- Pieces that their owner brings ------------------------------------------------------------ */

/* An item is a piece of ours for one peer after the other. */
static int bring_to(const twi_op_t *op, int64_t item)
{
    return (op->rank + 1 + (int)(item % (op->size - 1))) % op->size;
}

bool twi_mm_bring_lacks(twi_op_t *op, int peer, int64_t item, int rank)
{
    (void)peer;
    if (rank == op->rank)
        return own_results(op) <= item / (op->size - 1);
    return rank == bring_to(op, item) && !twi_op_agrees(op, rank);
}

static void bring_piece(twi_op_t *op, int peer, twi_gemm_also_t y, int64_t number, twi_op_worker_t *worker)
{
    const mm_reduce_t *r = state_of(op);
    const mm_piece_t piece = twi_mm_piece(op, r, r->shares[op->rank].n, number);
    const twi_gemm_strip_t part = part_of(op, op->rank, &piece);
    const uint64_t begin = twi_trace_begin(op);
    move_piece(op, op->rank, &piece, y, r->push_rows, worker);
    twi_stream_fence();
    twi_trace_end(op, begin, "send", worker, peer, &part);
}

/* Some piece for a peer, if it lends us its y and somebody still has to move one. Who has given up lends nothing. */
void twi_mm_bring_run(twi_op_t *op, int peer, int64_t item, twi_op_worker_t *worker)
{
    const int to = bring_to(op, item);
    twi_ops_peer_t *words = &twi_board(op->transport, to)->peers[op->rank];
    twi_gemm_also_t y = {.at = NULL};
    int64_t number;
    (void)peer;
    twi_engine_touch_begin(op->ops->engine);
    if (twi_transport_health(op->transport, to) == TWI_HEALTH_OK)
        y = twi_entry_lent(op, to);
    if (y.at && twi_claim(&words->claimed, op->call, own_results(op), &number)) {
        bring_piece(op, to, y, number, worker);
        twi_count_one(&words->brought, op->call);
        twi_transport_wake(op->transport);
    }
    twi_engine_touch_end(op->ops->engine);
}

/* An item is a peer all of whose results are to be there. */
static int arrive_from(const twi_op_t *op, int64_t item)
{
    return (op->rank + 1 + (int)item) % op->size;
}

bool twi_mm_arrive_lacks(twi_op_t *op, int peer, int64_t item, int rank)
{
    const mm_reduce_t *r = state_of(op);
    (void)peer;
    if (rank != arrive_from(op, item))
        return false;
    const uint64_t brought = twi_board_load(&twi_board(op->transport, op->rank)->peers[rank].brought);
    return atomic_load_explicit(&r->copied[rank], memory_order_acquire) + twi_epoch_count(brought, op->call) <
           pieces_of(op, rank);
}

void twi_mm_arrive_run(twi_op_t *op, int peer, int64_t item, twi_op_worker_t *worker)
{
    (void)peer;
    (void)item;
    (void)worker;
    twi_reads_finish(op, 0);
}
