/* SPDX-License-Identifier: Apache-2.0 */
/* Results of mm_all_reduce on their way from their owners to y. An item is a piece of a peer's results. */
#include "ops/mm_reduce.h"

bool twi_mm_copy_lacks(twi_op_t *op, int peer, int64_t item, int rank)
{
    return rank == peer && !twi_op_has_result(op, peer, item + 1);
}

static void copy_piece(mm_reduce_t *r, int peer, const mm_piece_t *piece, twi_op_t *op, twi_op_worker_t *worker)
{
    const mm_tiles_t tiles = twi_mm_tiles(op, r, piece->round, worker);
    const mm_rows_t rows = twi_mm_rows(r, peer, piece->strip);
    const twi_gemm_strip_t part = {
        .row = rows.strip->row + rows.first, .rows = rows.n, .col = tiles.col + piece->col, .cols = piece->cols};
    const uint64_t begin = twi_trace_begin(op);
    if (op->problem.wire == TW_WIRE_INT8) {
        twi_mm_tiles_dequantise(&tiles, &rows, peer, piece);
    } else {
        const twi_panels_t results = twi_mm_tiles_results(&tiles, &rows, peer, piece);
        twi_panels_copy(&results, r->copy_rows);
    }
    twi_trace_end(op, begin, "copy", worker, peer, &part);
}

void twi_mm_copy_run(twi_op_t *op, int peer, int64_t item, twi_op_worker_t *worker)
{
    mm_reduce_t *r = op->state;
    const mm_piece_t piece = twi_mm_piece(op, r, r->shares[peer].n, item);
    if (!r->pushed) /* else it is there */
        copy_piece(r, peer, &piece, op, worker);
    twi_reads_finish(op, piece.round);
}
