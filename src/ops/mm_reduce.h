/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_OPS_MM_REDUCE_H
#define TWI_OPS_MM_REDUCE_H
/*
 * What mm_reduce_scatter and mm_all_reduce share: partial results go to the slots of the rank that
 * computed them, and the owner of a row sums those of all ranks, in the order of the ranks.
 *
 * Rounds are ranges of columns, so that a round has rows of all owners and every rank something to do.
 * Fused, a strip of rows belongs to one owner. A rank computes the first strips of all others, that of rank+1
 * before the rest, then the second ones, and so on, and its own ones some time after peers had those to do: then
 * their partials are there, and are added while the tile is in cache. Panels whose partials come too late are
 * summed later. Strips are low, and some are multiplied together, a batch: so the right matrix goes by as seldom
 * as in a product alone, and the partials of peers are read all the time. Not fused, strips are cut without
 * regard to owners, and everything is summed after the product.
 *
 * The result of mm_all_reduce goes to the y of the other of two ranks if it lends it in its entry. Else it takes the
 * place of the owner's own partial, where peers copy it from. Either way they are told of a piece of a strip at a time.
 *
 * Ranks are never equally fast, and all wait for the last one. So a rank that sees that it is behind leaves its own
 * partials in its slot, as it does with those for others, and marks the pieces as given: whoever has nothing else to do
 * sums them, leaves the result in the owner's slot, and takes it to every y that it is for and that is lent. Nobody can
 * tell from the bits who did it. With more than two ranks mm_all_reduce gives everything if its y is lent: there a sum
 * that is taken to all of them at once is less work than one in the epilogue that everybody copies.
 */
#include "coll/reduce.h"
#include "ops/model.h"
#include "ops/panels.h"
#include "ops/products.h"
#include "quant/quant_wire.h"

typedef struct mm_strip {
    int64_t row, rows; /* of the product; slots have all rows in their order */
} mm_strip_t;

/* Rows of the result that one rank sums. */
typedef struct mm_share {
    int64_t row, rows;
    int64_t first, n; /* strips that have some of them: numbers in `owned` */
} mm_share_t;

/* Strips that are multiplied together: some that others own, then some of our own. This rank's own affair. */
typedef struct mm_batch {
    int64_t send, n_sends; /* numbers in `sends` */
    int64_t own, n_own;    /* of own strips */
    int64_t panel;         /* of A, the first one; all batches count */
    int n_panels;
} mm_batch_t;

enum { MM_BATCH_STRIPS = 16 }; /* at most */

/* How far an own item is: stored (release) by who computes it, loaded (acquire) by who sums it. */
enum { MM_TODO, MM_COMPUTED, MM_GIVEN };

/* Whether the own strips of a batch are given; decided by the first worker that comes to it. */
enum { MM_UNDECIDED, MM_KEEP, MM_GIVE };

/* How a rank comes by the rows of its y. */
typedef enum mm_results {
    MM_OWN_SHARE,     /* mm_reduce_scatter: it sums them, and nobody else wants them */
    MM_COPIED,        /* mm_all_reduce: it sums its share, and gets those of the others from their owners */
    MM_SUMMED_BY_ALL, /* mm_all_reduce: it sums all of them, as every rank does */
} mm_results_t;

typedef struct mm_reduce {
    twi_schedule_t schedule;
    bool all_reduce; /* y has all rows, not those of our share only */
    mm_results_t results;
    bool defer;     /* own partials always go to the slot first */
    bool streams;   /* the result is written around the caches */
    bool lends;     /* others may write to our y */
    bool pushed;    /* the other of two ranks writes its results there */
    bool helps;     /* we sum what others give */
    bool gives_all; /* all own sums are given, whether we are behind or not */
    int64_t marks;  /* own pieces that we mark; those after them are kept */
    uint32_t out_type;
    int64_t wire_bytes, out_bytes; /* of an element */
    int64_t round_cols;            /* of each round but the last */
    int64_t piece_cols;            /* of a strip in a round: what peers are told of at a time */
    twi_products_t products;
    mm_strip_t *strips; /* in the order of the slots; the same on all ranks */
    int64_t n_strips;
    int64_t *sends; /* strips that this rank computes for others, in the order in which it does */
    int64_t n_sends;
    int64_t *owned;     /* strips by share */
    mm_share_t *shares; /* [size] */
    int64_t *needed;    /* [own strip i][rank p]: position of strip i in the sends of p */
    mm_batch_t *batches;
    int64_t n_batches;
    twi_gemm_panel_t *panels;    /* of all batches */
    uint8_t *panel_strip;        /* [panels] which strip of its batch each belongs to */
    _Atomic uint8_t *own;        /* [rounds][own strips][chunks] MM_... */
    int64_t *late;               /* [the same] columns whose partials were not there yet; written before `own` */
    _Atomic int32_t *batch_left; /* [rounds][batches] chunks to compute */
    _Atomic uint8_t *gives;      /* [batches] MM_...; relaxed: it only has to be the same for all chunks */
    _Atomic bool behind;         /* we were at some time in the run, and are taken to be from then on */
    _Atomic int64_t tiles;       /* that are multiplied in the run */
    _Atomic int32_t *own_left;   /* [own pieces] panels to sum */
    twi_reduce_fn reduce;
    twi_copy_rows_fn copy_rows;     /* to our y */
    twi_copy_rows_fn push_rows;     /* to the y of a peer: around the caches where that can be */
    const twi_wire_kernels_t *wire; /* of int8 on the wire; NULL: it has another type */
    float *ratio;                   /* [n] comm_scale_1 / comm_scale_2, with int8 on the wire */
    float *inverse;                 /* [n] 1 / comm_scale_1, likewise */
    bool inverts;                   /* `inverse` may be used in this run */
} mm_reduce_t;

/* mm_reduce_plan.c: schedule, shares and strips. `owner_rows`: rows of a rank's share, 0: as it is best. */
tw_status_t twi_mm_reduce_plan(twi_op_t *op, mm_reduce_t *r, int64_t owner_rows);
/* Then, when it is known who lends and gives what: the order of this rank's products, and what workers count. */
tw_status_t twi_mm_reduce_order(twi_op_t *op, mm_reduce_t *r);

/* Strips that a rank computes for others in a round before strip i of rank + step. */
int64_t twi_mm_sends_before(const twi_op_t *op, const mm_reduce_t *r, int rank, int64_t i, int step);
/* mm_reduce_batches.c: fills batches from sends and own strips. */
tw_status_t twi_mm_batches(const twi_op_t *op, mm_reduce_t *r);

static inline int64_t twi_mm_round_col(const mm_reduce_t *r, int64_t round)
{
    return round * r->round_cols;
}

static inline int64_t twi_mm_round_cols(const twi_op_t *op, const mm_reduce_t *r, int64_t round)
{
    const int64_t left = op->problem.product.n - twi_mm_round_col(r, round);
    return left < r->round_cols ? left : r->round_cols;
}

/* A piece of a strip of some share. */
typedef struct mm_piece {
    int64_t round, strip;
    int64_t col, cols; /* of the round */
} mm_piece_t;

/* Pieces of a strip in a round. */
int64_t twi_mm_pieces(const twi_op_t *op, const mm_reduce_t *r, int64_t round);
/* Pieces of all rounds of `strips` strips; the number of one, and the other way round. */
int64_t twi_mm_all_pieces(const twi_op_t *op, const mm_reduce_t *r, int64_t strips);
int64_t twi_mm_piece_number(const twi_op_t *op, const mm_reduce_t *r, int64_t strips, const mm_piece_t *piece);
mm_piece_t twi_mm_piece(const twi_op_t *op, const mm_reduce_t *r, int64_t strips, int64_t number);

/* Its place in the product. */
twi_gemm_strip_t twi_mm_piece_part(const mm_reduce_t *r, int owner, const mm_piece_t *piece);

/* mm_reduce_tiles.c: what happens to tiles. */

/* A strip in one round, as one worker sees it. Columns in it count from the round's first one on. */
typedef struct mm_rows {
    const mm_strip_t *strip;
    int64_t first, n; /* its rows that are of the share that it is looked at for */
    int64_t index;    /* of an own strip, else -1 */
    bool fused;       /* partials of the peers are there, and are added at once */
    int64_t late;     /* columns multiplied before the peers' partials had come, which are summed in a second pass */
    int64_t told;     /* columns that need not be told of any more: peers know of their results, or they are late */
} mm_rows_t;

/* What a worker needs for the tiles of some strips in one round. */
typedef struct mm_tiles {
    twi_op_t *op;
    mm_reduce_t *r;
    twi_op_worker_t *worker;
    int64_t round, col, cols; /* col: of the product */
    int owner;                /* of the rows that are summed: us, or whom we help */
    bool in_slot;             /* results are left in its slot, and not stored anywhere else */
    bool gives;               /* own rows are left to others */
    char *own;                /* the owner's slot, once it is open */
    const char **bases;       /* [size] everybody's, if they are all there */
    int n_others;             /* peers whose y results are written to: worker->others */
    bool others_lines;        /* all of them as whole lines */
    bool slot_results;        /* there are peers who copy them */
    int turn;                 /* of worker->also */
    int64_t n_rows;           /* of tiles that are multiplied, and not counted yet */
    const uint8_t *strip_of;  /* [panels of A] number in rows */
    mm_rows_t rows[MM_BATCH_STRIPS];
} mm_tiles_t;

/* Own strip i of a rank. */
mm_rows_t twi_mm_rows(const mm_reduce_t *r, int owner, int64_t i);
/* Strip i of a batch. */
mm_rows_t twi_mm_batch_rows(const twi_op_t *op, const mm_reduce_t *r, const mm_batch_t *batch, int64_t i);
/* Of a round, with sums of our own; its rows are left to the caller. */
mm_tiles_t twi_mm_tiles(twi_op_t *op, mm_reduce_t *r, int64_t round, twi_op_worker_t *worker);
/* For a product of the strips in rows. */
twi_gemm_hook_t twi_mm_tiles_hook(mm_tiles_t *tiles);
/* Sums partials of some columns; all of them are in slots. */
void twi_mm_tiles_sum(mm_tiles_t *tiles, const mm_rows_t *rows, int64_t col, int64_t cols);
/* Own columns up to `end` are summed: tells peers who want results, of whole pieces. */
void twi_mm_tiles_tell(const mm_tiles_t *tiles, mm_rows_t *rows, int64_t end);
/* The way of results from their owner to a y. */
twi_panels_t twi_mm_tiles_results(const mm_tiles_t *tiles, const mm_rows_t *rows, int owner, const mm_piece_t *piece,
                                  twi_gemm_rows_t y);
/* Results of the int8 wire. */
void twi_mm_tiles_dequantise(const mm_tiles_t *tiles, const mm_rows_t *rows, int owner, const mm_piece_t *piece);

/* Whether the partial of own strip `own` in a round is not there yet; our own always is. */
bool twi_mm_partial_lacks(twi_op_t *op, const mm_reduce_t *r, int64_t own, int64_t round, int rank);

/* mm_reduce_given.c: sums that are left to whoever has time. */

/* Tiles with `rows` more rows are multiplied. */
void twi_mm_pace(const twi_op_t *op, mm_reduce_t *r, int64_t rows);
/* Whether this rank leaves the sums of a batch to others; all workers get the same answer. */
bool twi_mm_gives(twi_op_t *op, mm_reduce_t *r, int64_t batch);
/* The own strips of a batch are computed by all workers: everybody may see what becomes of them. */
void twi_mm_mark(twi_op_t *op, const mm_reduce_t *r, const mm_batch_t *batch, bool given);
/* Whether an own strip that was given is not summed yet; whether it is `rank` who is at it. */
bool twi_mm_given_lacks(const twi_op_t *op, const mm_reduce_t *r, int64_t own, int rank);
/* Whether a piece of a rank's results, which are there, is one that it gave: then it is in every y that is lent. */
bool twi_mm_was_given(const twi_op_t *op, int owner, int64_t number);
/* An item is a piece of the peer's, be it ourselves. */
bool twi_mm_help_lacks(twi_op_t *op, twi_item_t item, int rank);
void twi_mm_help_run(twi_op_t *op, twi_item_t item, twi_op_worker_t *worker);

/* mm_reduce_copies.c: results on their way from their owner's slot to y. */

/* A piece to a y. */
void twi_mm_move_piece(twi_op_t *op, int owner, const mm_piece_t *piece, twi_gemm_rows_t y, twi_copy_rows_fn copy_rows,
                       twi_op_worker_t *worker);
/* To ours. */
void twi_mm_copy_piece(twi_op_t *op, int owner, const mm_piece_t *piece, twi_op_worker_t *worker);
/* An item is a piece of the peer's. */
bool twi_mm_copy_lacks(twi_op_t *op, twi_item_t item, int rank);
void twi_mm_copy_run(twi_op_t *op, twi_item_t item, twi_op_worker_t *worker);

#endif
