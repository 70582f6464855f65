/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_OPS_GATHER_H
#define TWI_OPS_GATHER_H
/*
 * What all_gather_mm and alltoallv_gmm share: every rank shows its rows of the left matrix in its slots,
 * in their order, and a rank packs the rows that it needs straight from there; packing is the gather.
 *
 * Rows of the product are ordered by expert and then by source; all_gather_mm has one expert, and
 * everybody's rows are for everybody. A strip may have rows of several sources.
 *
 * A rank whose rows are in symmetric memory lends them instead: they are packed from where they are.
 *
 * If the rows of all ranks fit their slots at once, they stay there until the call has ended. If not, a
 * source fills its slots round by round; then rows are copied out as they come and packed from the copy, so
 * that no round has to wait for a strip that needs rows of another source's later round.
 */
#include "ops/grouped.h"
#include "ops/shared_expert.h"

/* How a source shows its rows: follows from their number alone. */
typedef struct gather_rows {
    int64_t n;         /* in all */
    int64_t per_round; /* at least 1 */
    int64_t rounds;    /* at least 1 */
} gather_rows_t;

typedef struct gather_strip {
    int group;
    int64_t row, rows; /* of the product */
} gather_strip_t;

enum { GATHER_UNKNOWN, GATHER_DIRECT, GATHER_COPIED };

typedef struct gather {
    bool grouped;
    twi_counts_t counts;    /* if grouped */
    int64_t experts;        /* 1 if not grouped */
    int64_t head;           /* bytes before the rows of the first round */
    int64_t row_bytes;      /* of the elements of a row */
    int64_t token_bytes;    /* of the scale of a row: 4 or 0 */
    const float *own_token; /* scales of our rows */
    float *token;           /* scales of all rows of the product */
    gather_rows_t *shown;   /* [size] */
    /* [size][experts]: rows of the product by their source. */
    int64_t *count;           /* how many there are */
    int64_t *from;            /* the first one, counted at the source */
    int64_t *to;              /* the first one, counted in the product */
    bool copies;              /* some source needs several rounds */
    _Atomic int how;          /* GATHER_...; release, acquire: shown, from and what is to be read are complete */
    bool only_rows;           /* there is no product, but rows_out is wanted */
    char *copy;               /* of all rows of the product: rows_out, or memory of ours if GATHER_COPIED */
    int64_t copy_ld;          /* elements between its rows */
    _Atomic uint8_t **copied; /* [size][rounds of the source], of a run; release, acquire */
    gather_strip_t *strips;   /* by queue: first those whose rows are ours, then those of rank+1, ... */
    int64_t n_strips;
    _Atomic int64_t n_packed; /* strips, in a run */
    int64_t *queue_first;     /* [size + 1] the first strip of each of these queues */
    twi_products_t products;
} gather_t;

/* gather_rows.c: where rows are. */

gather_rows_t twi_gather_shown(const twi_op_t *op, const gather_t *g, int64_t n);
/* Units through which a source has shown its rows up to `row`, which it has. */
int64_t twi_gather_units(const gather_rows_t *shown, int64_t row);
/* If our rows are in our window: they need no slot. */
void twi_gather_lend(twi_op_t *op, const gather_t *g);
/* Bytes of a slot before the scales of its rows. */
int64_t twi_gather_rows_bytes(const twi_op_t *op, const gather_t *g, int source);
/* A row of a source, and its scale, in the slot of the source. */
char *twi_gather_row(const twi_op_t *op, const gather_t *g, int source, int64_t row);
float *twi_gather_token(const twi_op_t *op, const gather_t *g, int source, int64_t row);
/* Rows of `bytes` bytes, with their own distances on both sides. */
void twi_gather_copy_rows(char *dst, int64_t dst_step, const char *src, int64_t src_step, int64_t rows, int64_t bytes);
/* Copies rows of `source`, ours too, to rows of the copy; `to` counts in rows of the product. */
void twi_gather_copy(twi_op_t *op, gather_t *g, int source, int64_t row, int64_t to, int64_t rows);

/* Calls `each` for the rows of a strip from each source: `row` of the source is row `to` of the product. */
typedef void (*twi_gather_each_fn)(void *arg, int source, int64_t row, int64_t to, int64_t rows);
void twi_gather_each(const twi_op_t *op, const gather_t *g, const gather_strip_t *strip, twi_gather_each_fn each,
                     void *arg);

/* For twi_products_t. */
void twi_gather_pack(twi_op_t *op, const twi_gemm_strip_t *strip, int64_t row, int rows, void *dst,
                     twi_op_worker_t *worker);

/* gather_plan.c: tables and strips. */
tw_status_t twi_gather_plan(twi_op_t *op, gather_t *g);
/* Grouped: all have entered. Where their rows are, and whether they are copied. */
tw_status_t twi_gather_meet(twi_op_t *op, gather_t *g);
/* In every run: counts what has to be read of each round, by copies or by packing strips. */
tw_status_t twi_gather_reads(twi_op_t *op, gather_t *g);

#endif
