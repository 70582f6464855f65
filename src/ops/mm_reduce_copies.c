/* SPDX-License-Identifier: Apache-2.0 */
/* Results of mm_all_reduce on their way from their owners to y. */
#include "ops/mm_reduce.h"

/* A piece of a peer's results. */
typedef struct copy {
    mm_tiles_t tiles;
    mm_piece_t piece;
    int peer;
    int64_t first, rows; /* of the strip */
} copy_t;

static copy_t copy_of(twi_op_t *op, int peer, int64_t item, twi_op_worker_t *worker)
{
    mm_reduce_t *r = op->state;
    const mm_share_t *share = &r->shares[peer];
    copy_t copy = {.piece = twi_mm_piece(op, r, share->n, item), .peer = peer};
    copy.tiles = twi_mm_tiles(op, r, r->owned[share->first + copy.piece.strip], copy.piece.round, worker);
    copy.rows = twi_mm_common_rows(copy.tiles.strip, share, &copy.first);
    return copy;
}

bool twi_mm_copy_lacks(twi_op_t *op, int peer, int64_t item, int rank)
{
    return rank == peer && !twi_op_has_result(op, peer, item + 1);
}

void twi_mm_copy_run(twi_op_t *op, int peer, int64_t item, twi_op_worker_t *worker)
{
    const copy_t copy = copy_of(op, peer, item, worker);
    if (copy.tiles.r->pushed) { /* it is there */
        twi_reads_finish(op, copy.piece.round);
        return;
    }
    const twi_gemm_strip_t part = {.row = copy.tiles.strip->row + copy.first,
                                   .rows = copy.rows,
                                   .col = copy.tiles.col + copy.piece.col,
                                   .cols = copy.piece.cols};
    const uint64_t begin = twi_trace_begin(op);
    if (op->problem.wire == TW_WIRE_INT8) {
        twi_mm_tiles_dequantise(&copy.tiles, peer, copy.first, copy.rows, &copy.piece);
    } else {
        const twi_panels_t results = twi_mm_tiles_results(&copy.tiles, peer, copy.first, copy.rows, &copy.piece);
        twi_panels_copy(&results, copy.tiles.r->copy_rows);
    }
    twi_trace_end(op, begin, "copy", worker, peer, &part);
    twi_reads_finish(op, copy.piece.round);
}
