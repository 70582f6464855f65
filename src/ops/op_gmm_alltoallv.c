/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gmm_alltoallv: its queues. In the order in which they are looked at: meeting, products, the shared expert, rows of
 * each source. See gmm.h.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/sizes.h"
#include "ops/agree.h"
#include "ops/gmm.h"
#include "ops/model.h"

/* ---- Queues ------------------------------------------------------------------------------------ */

static gmm_t *state_of(const twi_op_t *op)
{
    return op->state;
}

enum { QUEUE_MEET, QUEUE_PRODUCTS, QUEUE_SHARED, QUEUE_COPIES }; /* the last for each source */

static twi_queue_t *copies_from(twi_op_t *op, int source)
{
    return &op->queues[QUEUE_COPIES + twi_op_distance(op, source)];
}

static tw_status_t meet(twi_op_t *op)
{
    gmm_t *g = state_of(op);
    const int64_t e = g->counts.experts;
    int64_t last = 0;
    TW_TRY(twi_counts_agree(op, &g->counts));
    for (int d = 0; d < op->size; d++)
        for (int64_t j = 0; j < e; j++)
            g->y_row[d * e + j] = twi_counts_before(twi_counts_of(op, &g->counts, d, 1), op->rank * e + j);
    if (op->size == 1 || op->problem.product.n == 0)
        return TW_OK;
    for (int s = 0; s < op->size; s++) {
        int64_t n = 0;
        TW_TRY(twi_gmm_list_pieces(op, g, s, &n, &last));
        atomic_store_explicit(&copies_from(op, s)->n, n, memory_order_release);
    }
    int64_t *left = twi_op_alloc_run(op, (size_t)last + 1, sizeof *left);
    TW_TRY(twi_reads_create(&op->reads, left, last + 1));
    for (int s = 0; s < op->size; s++)
        for (int64_t i = 0; i < copies_from(op, s)->n; i++)
            op->reads.left[g->pieces[s][i].round]++;
    twi_reads_begin(op);
    return TW_OK;
}

static void run_meet(twi_op_t *op, twi_item_t item, twi_op_worker_t *worker)
{
    (void)item;
    (void)worker;
    const tw_status_t status = meet(op);
    if (status == TW_OK)
        atomic_store_explicit(&state_of(op)->met, true, memory_order_release);
    else
        twi_op_trouble(op, status); /* and nothing goes anywhere */
}

static bool copy_lacks(twi_op_t *op, twi_item_t item, int rank)
{
    const gmm_t *g = state_of(op);
    if (rank == op->rank && !atomic_load_explicit(&g->met, memory_order_acquire))
        return true;
    return rank == item.peer && !twi_op_has_sent(op, item.peer, g->pieces[item.peer][item.number].unit + 1);
}

static twi_panels_t rows_of(const twi_op_t *op, int peer, const gmm_piece_t *piece)
{
    const twi_gemm_problem_t *product = &op->problem.product;
    const int64_t item_bytes = (int64_t)twi_dtype_bytes(product->epilogue.out_type);
    return (twi_panels_t){
        .strip = twi_op_slot(op, peer, piece->round) + piece->at,
        .strip_rows = piece->strip_rows,
        .first = piece->first,
        .rows = piece->rows,
        .cols = product->n,
        .n = product->n,
        .item_bytes = item_bytes,
        .tile_bytes = item_bytes,
        .dst = (char *)product->c + piece->y_row * product->ldc * item_bytes,
        .dst_step = product->ldc * item_bytes,
        .mr = op->plan.kernel->mr,
        .nr = op->plan.kernel->nr,
    };
}

static void run_copy(twi_op_t *op, twi_item_t item, twi_op_worker_t *worker)
{
    const gmm_piece_t *piece = &state_of(op)->pieces[item.peer][item.number];
    const twi_panels_t rows = rows_of(op, item.peer, piece);
    const uint64_t begin = twi_trace_begin(op);
    if (item.peer != op->rank && !state_of(op)->lends) /* else they are there */
        twi_panels_copy(&rows, state_of(op)->copy_rows);
    twi_trace_end(op, begin, "copy", worker, item.peer,
                  &(twi_gemm_strip_t){.row = piece->y_row, .rows = piece->rows, .cols = op->problem.product.n});
    twi_reads_finish(op, piece->round);
}

/* ---- Products ---------------------------------------------------------------------------------- */

/* Where rows go is known when all have entered; as every rank has to compute after that, nobody loses by the wait. */
static bool product_lacks(twi_op_t *op, twi_item_t item, int rank)
{
    const gmm_t *g = state_of(op);
    if (op->size == 1)
        return false;
    if (!atomic_load_explicit(&g->met, memory_order_acquire))
        return rank == op->rank || twi_counts_lack(op, item, rank);
    return twi_slot_lacks(op, g->strips[item.number / g->products.n_chunks].round, rank);
}

static void trace_sends(twi_op_t *op, const gmm_t *g, const gmm_strip_t *strip, twi_op_worker_t *worker, uint64_t begin)
{
    const int64_t end = strip->first + strip->rows, group_row = g->group_row[strip->expert];
    for (int s = 0; begin != 0 && s < op->size; s++) {
        const int64_t *first_row = g->first_row + s * g->counts.experts + strip->expert;
        const int64_t first = strip->first > first_row[0] ? strip->first : first_row[0];
        const int64_t rows = twi_min(end, first_row[g->counts.experts]) - first;
        const twi_gemm_strip_t part = {.row = group_row + first, .rows = rows, .cols = op->problem.product.n};
        if (s != op->rank && rows > 0)
            twi_trace_end(op, begin, "send", worker, s, &part);
    }
}

/* All chunks of a strip are computed, and its receivers may have their rows. */
static void finish_strip(twi_op_t *op, const gmm_t *g, int64_t number, twi_op_worker_t *worker)
{
    const uint64_t begin = twi_trace_begin(op);
    twi_units_finish(op, &op->sent, number, 1);
    trace_sends(op, g, &g->strips[number], worker, begin);
}

/* A chunk of a strip to its receivers. */
static void run_sent(twi_op_t *op, gmm_t *g, const gmm_strip_t *strip, int64_t number, twi_gemm_strip_t *product,
                     twi_op_worker_t *worker)
{
    gmm_tiles_t tiles = {
        .g = g,
        .worker = worker,
        .strip = strip,
        .base = twi_op_slot(op, op->rank, strip->round) + strip->at,
        .row = product->row,
        .rows = product->rows,
        .item_bytes = (int64_t)twi_dtype_bytes(op->problem.product.epilogue.out_type),
        .mr = op->plan.kernel->mr,
    };
    const twi_gemm_hook_t hook = twi_gmm_tiles_hook(&tiles);
    product->hook = &hook;
    const uint64_t begin = twi_trace_begin(op);
    twi_engine_touch_begin(op->ops->engine);
    twi_gmm_find_lent(op, worker);
    twi_products_run(op, &g->products, number, product, worker);
    twi_stream_fence(); /* of copies */
    twi_engine_touch_end(op->ops->engine);
    twi_trace_end(op, begin, "product", worker, -1, product);
    if (atomic_fetch_sub_explicit(&g->strip_left[number], 1, memory_order_acq_rel) == 1)
        finish_strip(op, g, number, worker);
}

static void run_product(twi_op_t *op, twi_item_t item, twi_op_worker_t *worker)
{
    gmm_t *g = state_of(op);
    const int64_t number = item.number / g->products.n_chunks, chunk = item.number % g->products.n_chunks;
    const gmm_strip_t *strip = &g->strips[number];
    twi_gemm_strip_t product = {
        .group = (int)strip->expert,
        .row = g->group_row[strip->expert] + strip->first,
        .rows = strip->rows,
        .col = chunk * g->products.chunk_cols,
        .cols = twi_products_cols(&g->products, chunk, op->problem.product.n),
    };
    if (op->size > 1)
        run_sent(op, g, strip, number, &product, worker);
    else
        twi_products_run(op, &g->products, number, &product, worker);
}

/* Products take copies along; the shared expert fills the time until copies are there. */
static tw_status_t make_queues(twi_op_t *op, gmm_t *g)
{
    const bool empty = op->problem.product.n == 0;
    TW_TRY(twi_op_queues(op, QUEUE_COPIES + op->size));
    twi_op_queue(&op->queues[QUEUE_MEET], -1, 1, twi_counts_lack, run_meet);
    twi_op_queue(&op->queues[QUEUE_PRODUCTS], -1, empty ? 0 : g->n_strips * g->products.n_chunks, product_lacks,
                 run_product);
    twi_shared_queue(op, &op->queues[QUEUE_SHARED]);
    for (int s = 0; s < op->size; s++)
        twi_op_queue(copies_from(op, s), s, 0, copy_lacks, run_copy); /* `meet` says how many */
    return TW_OK;
}

/* ---- The operator ------------------------------------------------------------------------------ */

static void plan_product(twi_op_t *op, gmm_t *g)
{
    static const twi_gemm_hook_t some_hook; /* strips have their own */
    twi_gemm_problem_t *product = &op->problem.product;
    product->blocks.mb = TWI_STRIP_ROWS; /* peers know the strips */
    product->hook = op->size > 1 ? &some_hook : NULL;
    twi_gemm_plan(product, &op->plan);
    product->hook = NULL;
    g->products = (twi_products_t){.plan = &op->plan, .panels = &op->memory->panels[0], .pack = twi_products_pack_rows};
}

/* Ours, from our count list: strips, receivers of their rows, and where experts begin. */
static tw_status_t list_rows(twi_op_t *op, gmm_t *g)
{
    TW_TRY(twi_gmm_list_strips(op, g));
    TW_TRY(twi_gmm_list_receivers(op, g));
    const int64_t *send = twi_counts_of(op, &g->counts, op->rank, 0);
    for (int64_t j = 1; j < op->problem.product.n_groups; j++)
        g->group_row[j] = g->group_row[j - 1] + twi_gmm_expert_rows(op, send, g->counts.experts, j - 1);
    return TW_OK;
}

static void lend_y(twi_op_t *op, gmm_t *g)
{
    const twi_gemm_problem_t *product = &op->problem.product;
    const int64_t y_rows = twi_counts_before(twi_counts_of(op, &g->counts, op->rank, 1), g->counts.experts * op->size);
    const int64_t rows = product->m > y_rows ? product->m : y_rows;
    g->streams = twi_gemm_streams(&op->plan, product->c, product->ldc, rows, product->epilogue.out_type);
    g->copy_rows = twi_copy_rows_select(g->streams);
    g->lends = twi_entry_lend(op, product->c, y_rows, g->row_bytes,
                              product->ldc * (int64_t)twi_dtype_bytes(product->epilogue.out_type));
}

/*
 * The order matters. The entry names the kernel, and gets what is lent later. Strips need the count lists, which
 * begin the first slot. Counters and queues have an item for each strip and chunk.
 */
static tw_status_t create(twi_op_t *op)
{
    gmm_t *g = twi_op_alloc(op, 1, sizeof *g);
    const twi_gemm_problem_t *product = &op->problem.product;
    if (!g)
        return TW_ERR_NO_MEMORY;
    op->state = g;
    g->row_bytes = product->n * (int64_t)twi_dtype_bytes(product->epilogue.out_type);
    g->group_row = twi_op_alloc(op, (size_t)product->n_groups, sizeof *g->group_row);
    g->pieces = twi_op_alloc(op, (size_t)op->size, sizeof *g->pieces);
    if (!g->group_row || !g->pieces)
        return TW_ERR_NO_MEMORY;
    plan_product(op, g);
    twi_entry_fill(op, -1);
    TW_TRY(twi_counts_create(op, &g->counts));
    TW_TRY(list_rows(op, g));
    TW_TRY(twi_products_create(op, &g->products, g->n_strips, 1, product->n));
    lend_y(op, g);
    TW_TRY(twi_shared_create(op));
    TW_TRY(twi_units_create(op, &op->sent, &twi_board(op->transport, op->rank)->sent, op->size > 1 ? g->n_strips : 0));
    TW_TRY(make_queues(op, g));
    return twi_op_worker_memory(op);
}

static void start(twi_op_t *op)
{
    gmm_t *g = state_of(op);
    twi_products_reset(&g->products);
    twi_shared_reset(op);
    for (int64_t i = 0; i < g->n_strips; i++)
        atomic_store_explicit(&g->strip_left[i], (int32_t)g->products.n_chunks, memory_order_relaxed);
    for (int s = 0; s < op->size; s++)
        atomic_store_explicit(&copies_from(op, s)->n, 0, memory_order_relaxed);
    atomic_store_explicit(&g->met, false, memory_order_relaxed);
}

static void explain(const twi_op_t *op, char *text, size_t bytes)
{
    const gmm_t *g = state_of(op);
    const int64_t rows = op->problem.product.m;
    const twi_estimate_t estimate = twi_model_estimate(&op->plan, rows, rows * g->row_bytes);
    char how[160];
    if (op->size == 1)
        (void)snprintf(how, sizeof how, "rows go to y");
    else
        (void)snprintf(how, sizeof how, "%s, own slots are filled in %" PRId64 " round%s",
                       g->lends ? "peers store to our y" : "rows of peers are copied from their slots", op->n_rounds,
                       op->n_rounds == 1 ? "" : "s");
    twi_model_explain(op, how, &estimate, text, bytes);
}

const twi_op_class_t twi_op_gmm_alltoallv = {
    .create = create,
    .start = start,
    .explain = explain,
};
