/* SPDX-License-Identifier: Apache-2.0 */
/* Results of mm_reduce_scatter and mm_all_reduce on their way from their owner's slot to y. */
#include "ops/mm_reduce.h"

void twi_mm_move_piece(twi_op_t *op, int owner, const mm_piece_t *piece, twi_gemm_rows_t y, twi_copy_rows_fn copy_rows,
                       twi_op_worker_t *worker)
{
    mm_reduce_t *r = op->state;
    const mm_tiles_t tiles = twi_mm_tiles(op, r, piece->round, worker);
    const mm_rows_t rows = twi_mm_rows(r, owner, piece->strip);
    if (op->problem.wire == TW_WIRE_INT8) {
        twi_mm_tiles_dequantise(&tiles, &rows, owner, piece);
    } else {
        const twi_panels_t results = twi_mm_tiles_results(&tiles, &rows, owner, piece, y);
        twi_panels_copy(&results, copy_rows);
    }
}

void twi_mm_copy_piece(twi_op_t *op, int owner, const mm_piece_t *piece, twi_op_worker_t *worker)
{
    const mm_reduce_t *r = op->state;
    const twi_gemm_problem_t *product = &op->problem.product;
    const twi_gemm_rows_t y = {.at = product->c, .step = product->ldc * r->out_bytes};
    const twi_gemm_strip_t part = twi_mm_piece_part(r, owner, piece);
    const uint64_t begin = twi_trace_begin(op);
    twi_mm_move_piece(op, owner, piece, y, r->copy_rows, worker);
    twi_trace_end(op, begin, "copy", worker, owner, &part);
}

/* An item is a piece of a peer's results. */
bool twi_mm_copy_lacks(twi_op_t *op, twi_item_t item, int rank)
{
    return rank == item.peer && !twi_op_has_result(op, item.peer, item.number + 1);
}

/* Whether who summed a piece has left it in our y. */
static bool is_there(const twi_op_t *op, const mm_reduce_t *r, int owner, int64_t number)
{
    return r->pushed || (r->lends && twi_mm_was_given(op, owner, number));
}

void twi_mm_copy_run(twi_op_t *op, twi_item_t item, twi_op_worker_t *worker)
{
    const mm_reduce_t *r = op->state;
    const int owner = item.peer;
    const mm_piece_t piece = twi_mm_piece(op, r, r->shares[owner].n, item.number);
    if (is_there(op, r, owner, item.number))
        twi_op_did_nothing(op);
    else
        twi_mm_copy_piece(op, owner, &piece, worker);
    twi_reads_finish(op, piece.round);
}
