/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_OPS_PRODUCTS_H
#define TWI_OPS_PRODUCTS_H
/*
 * Products of strips by the workers of an operator, in one round of columns or in several. With one worker,
 * or with strips enough for all, a worker packs the strip that it is at; otherwise rounds are cut into
 * chunks of columns. Where a strip is come back to, it is packed once, by the first workers that
 * come to it together. Chunks are this rank's own affair: peers see strips.
 */
#include "ops/op.h"

typedef struct twi_strip_sync {
    _Atomic int32_t claimed; /* panels of A that somebody packs */
    _Atomic int32_t packed;  /* panels that are there (release, acquire) */
} twi_strip_sync_t;

struct twi_products {
    const twi_gemm_plan_t *plan;
    int64_t n_strips;
    int64_t panels_most;          /* of a strip; 0: as many as twi_products_rows make */
    int64_t n_chunks, chunk_cols; /* of a round */
    twi_strip_sync_t *syncs;      /* [n_strips], if strips are come back to */
    twi_buffer_t *panels;         /* for all strips, then */
    size_t strip_bytes;           /* of panels */
    /* Packs rows row..row+rows-1 of the product, one panel of a strip, at dst. */
    void (*pack)(twi_op_t *op, const twi_gemm_strip_t *strip, int64_t row, int rows, void *dst,
                 twi_op_worker_t *worker);
    void (*packed)(twi_op_t *op, int64_t number); /* all of a strip is; once in a run. NULL: nobody wants to know */
};

/*
 * How a product of an operator is computed if the rows that are multiplied together are its own affair. Those of weights
 * that are packed on the way are no more than ranks tell each other of.
 */
void twi_products_plan(twi_gemm_problem_t *problem, twi_gemm_plan_t *plan_out);

/* `plan`, `panels` and `pack` are set. All rounds but the last have round_cols columns. */
tw_status_t twi_products_create(twi_op_t *op, twi_products_t *products, int64_t n_strips, int64_t rounds,
                                int64_t round_cols);
void twi_products_reset(twi_products_t *products);

/* Rows of a strip, at most, that a worker has room for. */
static inline int64_t twi_products_rows(const twi_gemm_plan_t *plan)
{
    return plan->blocks.mb > TWI_STRIP_ROWS ? plan->blocks.mb : TWI_STRIP_ROWS;
}

/*
 * Of `rows` rows those that are multiplied together: as many as in a product alone, but so that all workers have
 * something to do. TWI_STRIP_ROWS of them, or fewer if the plan has fewer, are never cut.
 */
int64_t twi_products_height(const twi_op_t *op, const twi_gemm_plan_t *plan, int64_t rows);

/* Strip `number`, of which `strip` has all but its panels; with no columns it does nothing. */
void twi_products_run(twi_op_t *op, twi_products_t *products, int64_t number, twi_gemm_strip_t *strip,
                      twi_op_worker_t *worker);

/* Columns of a chunk of a round that has `cols`; 0 in a short last round. */
static inline int64_t twi_products_cols(const twi_products_t *products, int64_t chunk, int64_t cols)
{
    const int64_t left = cols - chunk * products->chunk_cols;
    return left < 0 ? 0 : left < products->chunk_cols ? left : products->chunk_cols;
}

/* Rows straight from the left matrix of the plan. */
void twi_products_pack_rows(twi_op_t *op, const twi_gemm_strip_t *strip, int64_t row, int rows, void *dst,
                            twi_op_worker_t *worker);

#endif
