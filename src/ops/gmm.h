/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_OPS_GMM_H
#define TWI_OPS_GMM_H
/*
 * Insides of gmm_alltoallv. A rank computes its experts one after the other, the one with the most rows first, in
 * strips of rows that may go to several ranks; each starts with the rows of rank+1. Rows go straight to the y of a
 * receiver that lends it, and to our own. Others lie in a slot, a strip as panels of nr columns, each a matrix of its
 * rows, and their receiver copies them out. Where a peer's strips are follows from its count list, so nothing but the
 * list has to be told.
 *
 * With one rank rows go straight to the result, whose order is the same.
 */
#include "ops/grouped.h"
#include "ops/panels.h"
#include "ops/shared_expert.h"

/* A strip of some rank, as all ranks see it. */
typedef struct gmm_strip {
    int64_t expert;
    int64_t first, rows; /* among the rows of the expert */
    int64_t round;
    size_t at; /* in the slot */
} gmm_strip_t;

/* Rows that we get from a strip of a peer. */
typedef struct gmm_piece {
    int64_t unit;
    int64_t round;
    size_t at;
    int64_t strip_rows;
    int64_t first, rows; /* of the strip */
    int64_t y_row;
} gmm_piece_t;

typedef struct gmm {
    twi_counts_t counts;
    twi_products_t products;
    gmm_strip_t *strips; /* ours, in the order in which they are computed */
    int64_t n_strips;
    int64_t *group_row;          /* [experts] first row of each in the product */
    _Atomic int32_t *strip_left; /* [n_strips] chunks to compute */
    size_t *slot_bytes;          /* [rounds] */
    int64_t row_bytes;
    bool streams; /* the result is written around the caches */
    bool lends;   /* our y to peers */
    twi_copy_rows_fn copy_rows;
    int64_t *first_row;      /* [size + 1][experts] the first of our rows of an expert for each receiver */
    int64_t *y_row;          /* [size][experts] where these begin in the receiver's y; known when all have entered */
    struct gmm_sized *order; /* [experts] of whichever rank is looked at */
    gmm_piece_t **pieces;    /* [size], made when all have entered */
    _Atomic bool met;        /* pieces and y_row are there: release, acquire */
} gmm_t;

/* gmm_plan.c: strips, from count lists. */
tw_status_t twi_gmm_list_strips(twi_op_t *op, gmm_t *g);
/* Our rows for each receiver. */
tw_status_t twi_gmm_list_receivers(const twi_op_t *op, gmm_t *g);
/* What we get from a source: *n_out pieces; *last_out: the last round of the source, if that is later. */
tw_status_t twi_gmm_list_pieces(twi_op_t *op, gmm_t *g, int source, int64_t *n_out, int64_t *last_out);
int64_t twi_gmm_expert_rows(const twi_op_t *op, const int64_t *send, int64_t e, int64_t j);

/* gmm_tiles.c: where tiles go. */

/* The tiles of a strip, as one worker sees them. */
typedef struct gmm_tiles {
    const gmm_t *g;
    twi_op_worker_t *worker;
    const gmm_strip_t *strip;
    char *base;         /* of the strip in our slot */
    int64_t row, rows;  /* of the strip in the product */
    int64_t item_bytes; /* of the result */
    int mr;             /* rows of a panel */
    int turn;           /* of the worker's tiles: one may be asked for before the last one is through */
} gmm_tiles_t;

/* What ranks lend us, our own y too, to worker->others. After twi_engine_touch_begin: who gave up lends nothing. */
void twi_gmm_find_lent(const twi_op_t *op, const twi_op_worker_t *worker);
twi_gemm_hook_t twi_gmm_tiles_hook(gmm_tiles_t *tiles);

#endif
