/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mm_reduce_scatter and mm_all_reduce: their queues. In the order in which they are looked at: sums of
 * own rows that could not be had on the way, results to be copied from each peer, products; then sums that ranks give
 * away.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/config.h"
#include "base/sizes.h"
#include "ops/agree.h"
#include "ops/mm_reduce.h"

static mm_reduce_t *state_of(const twi_op_t *op)
{
    return op->state;
}

/* Of an item: rounds, in them batches or own strips, in them chunks. */
typedef struct place {
    int64_t round, number, chunk;
} place_t;

static place_t place_of(int64_t item, int64_t n, int64_t n_chunks)
{
    return (place_t){item / n_chunks / n, item / n_chunks % n, item % n_chunks};
}

/* ---- Products ---------------------------------------------------------------------------------- */

/* An item is a chunk of a batch in a round. */
static bool product_lacks(twi_op_t *op, twi_item_t item, int rank)
{
    const mm_reduce_t *r = state_of(op);
    return twi_slot_lacks(op, place_of(item.number, r->n_batches, r->products.n_chunks).round, rank);
}

static void multiply(twi_op_t *op, mm_reduce_t *r, mm_tiles_t *tiles, const place_t *at)
{
    const mm_batch_t *batch = &r->batches[at->number];
    const twi_gemm_hook_t hook = twi_mm_tiles_hook(tiles);
    const twi_gemm_panel_t *panels = r->panels + batch->panel;
    twi_gemm_strip_t product = {
        .row = panels[0].row,
        .panels = panels,
        .n_panels = batch->n_panels,
        .col = tiles->col + at->chunk * r->products.chunk_cols,
        .cols = twi_products_cols(&r->products, at->chunk, tiles->cols),
        .hook = &hook,
    };
    for (int i = 0; i < batch->n_panels; i++)
        product.rows += panels[i].rows;
    const uint64_t begin = twi_trace_begin(op);
    twi_products_run(op, &r->products, at->number, &product, tiles->worker);
    twi_trace_end(op, begin, batch->n_own == 0 ? "product" : "product, sum", tiles->worker, -1, &product);
}

/* A chunk of an own strip is computed, and its columns but for those that are late are summed. */
static void finish_own(twi_op_t *op, mm_reduce_t *r, const mm_tiles_t *tiles, mm_rows_t *rows, const place_t *at)
{
    const int64_t chunks = r->products.n_chunks, col = at->chunk * r->products.chunk_cols;
    const int64_t item = (at->round * r->shares[op->rank].n + rows->index) * chunks + at->chunk;
    const uint8_t state = tiles->gives ? MM_GIVEN : MM_COMPUTED;
    r->late[item] = r->defer || tiles->gives ? tiles->cols : rows->late;
    if (rows->fused)
        twi_mm_tiles_tell(tiles, rows, col + twi_products_cols(&r->products, at->chunk, tiles->cols));
    if (r->late[item] == 0)
        twi_reads_finish(op, at->round);
    atomic_store_explicit(&r->own[item], state, memory_order_release); /* pairs with the load in sum_lacks */
}

/* Whose rows a strip has; -1: those of several ranks, or all ranks want them. */
static int owner_of(const twi_op_t *op, const mm_reduce_t *r, const mm_strip_t *strip)
{
    for (int d = 0; r->results != MM_SUMMED_BY_ALL && d < op->size; d++) {
        const mm_share_t *share = &r->shares[d];
        if (strip->row >= share->row && strip->row + strip->rows <= share->row + share->rows)
            return d;
    }
    return op->size > 1 ? -1 : op->rank;
}

static void trace_sends(twi_op_t *op, const mm_reduce_t *r, const mm_tiles_t *tiles, const mm_batch_t *batch,
                        uint64_t begin)
{
    for (int64_t i = 0; begin != 0 && i < batch->n_sends; i++) {
        const mm_strip_t *strip = &r->strips[r->sends[batch->send + i]];
        const twi_gemm_strip_t part = {.row = strip->row, .rows = strip->rows, .col = tiles->col, .cols = tiles->cols};
        const int owner = owner_of(op, r, strip);
        if (owner != op->rank)
            twi_trace_end(op, begin, "send", tiles->worker, owner, &part);
    }
}

/* All chunks of a batch are computed, and peers may read what it has for them. */
static void finish_batch(twi_op_t *op, mm_reduce_t *r, const mm_tiles_t *tiles, const mm_batch_t *batch)
{
    const uint64_t begin = twi_trace_begin(op);
    if (batch->n_sends > 0)
        twi_units_finish(op, &op->sent, tiles->round * r->n_sends + batch->send, batch->n_sends);
    trace_sends(op, r, tiles, batch, begin);
    twi_mm_mark(op, r, batch, tiles->gives);
}

static void run_product(twi_op_t *op, twi_item_t item, twi_op_worker_t *worker)
{
    mm_reduce_t *r = state_of(op);
    const place_t at = place_of(item.number, r->n_batches, r->products.n_chunks);
    const mm_batch_t *batch = &r->batches[at.number];
    const int64_t unit = at.round * r->n_batches + at.number;
    mm_tiles_t tiles = twi_mm_tiles(op, r, at.round, worker);
    tiles.strip_of = r->panel_strip + batch->panel;
    tiles.gives = twi_mm_gives(op, r, at.number);
    for (int64_t i = 0; i < batch->n_sends + batch->n_own; i++) {
        tiles.rows[i] = twi_mm_batch_rows(op, r, batch, i);
        tiles.rows[i].told = at.chunk * r->products.chunk_cols;
    }
    if (batch->n_own > 0)
        twi_engine_touch_begin(op->ops->engine);
    multiply(op, r, &tiles, &at);
    twi_mm_pace(op, r, tiles.n_rows);
    /* Each worker releases its own chunk; whoever finds that none are left has acquired all. */
    if (atomic_fetch_sub_explicit(&r->batch_left[unit], 1, memory_order_acq_rel) == 1)
        finish_batch(op, r, &tiles, batch);
    for (int64_t i = batch->n_sends; i < batch->n_sends + batch->n_own; i++)
        finish_own(op, r, &tiles, &tiles.rows[i], &at);
    if (batch->n_own > 0)
        twi_engine_touch_end(op->ops->engine);
}

/* ---- Sums -------------------------------------------------------------------------------------- */

/* Fused: an item is what was late of a chunk of an own strip, or given to others. */
static bool sum_lacks(twi_op_t *op, twi_item_t item, int rank)
{
    const mm_reduce_t *r = state_of(op);
    const place_t at = place_of(item.number, r->shares[op->rank].n, r->products.n_chunks);
    const uint8_t state = atomic_load_explicit(&r->own[item.number], memory_order_acquire);
    if (state == MM_GIVEN)
        return twi_mm_given_lacks(op, r, at.number, rank);
    if (rank == op->rank || state == MM_TODO)
        return state == MM_TODO;
    return r->late[item.number] > 0 && twi_mm_partial_lacks(op, r, at.number, at.round, rank);
}

/* Columns of an own strip, up to `end`. */
static void sum_and_tell(mm_tiles_t *tiles, mm_rows_t *rows, int64_t end)
{
    twi_op_t *op = tiles->op;
    const int64_t col = rows->told;
    const twi_gemm_strip_t part = {
        .row = rows->strip->row + rows->first, .rows = rows->n, .col = tiles->col + col, .cols = end - col};
    const uint64_t begin = twi_trace_begin(op);
    twi_engine_touch_begin(op->ops->engine);
    twi_mm_tiles_sum(tiles, rows, col, end - col);
    twi_mm_tiles_tell(tiles, rows, end);
    twi_engine_touch_end(op->ops->engine);
    twi_trace_end(op, begin, "reduce", tiles->worker, -1, &part);
}

/* The same if others have summed them. */
static void finish_given(mm_tiles_t *tiles, mm_rows_t *rows, int64_t end)
{
    const mm_piece_t part = {tiles->round, rows->index, rows->told, end - rows->told};
    if (!tiles->r->lends)
        twi_mm_copy_piece(tiles->op, tiles->op->rank, &part, tiles->worker);
    twi_mm_tiles_tell(tiles, rows, end);
}

static void run_sum(twi_op_t *op, twi_item_t item, twi_op_worker_t *worker)
{
    mm_reduce_t *r = state_of(op);
    const place_t at = place_of(item.number, r->shares[op->rank].n, r->products.n_chunks);
    if (r->late[item.number] == 0) {
        twi_op_did_nothing(op);
        return;
    }
    mm_tiles_t tiles = twi_mm_tiles(op, r, at.round, worker);
    mm_rows_t rows = twi_mm_rows(r, op->rank, at.number);
    rows.told = at.chunk * r->products.chunk_cols;
    const int64_t chunk_end = rows.told + twi_products_cols(&r->products, at.chunk, tiles.cols);
    if (atomic_load_explicit(&r->own[item.number], memory_order_relaxed) == MM_GIVEN)
        finish_given(&tiles, &rows, chunk_end);
    else
        sum_and_tell(&tiles, &rows, r->late[item.number] < chunk_end ? r->late[item.number] : chunk_end);
    twi_reads_finish(op, at.round);
}

/* Not fused: an item is the own rows of a strip, of which everybody, we too, has a partial. */
static bool rows_lack(twi_op_t *op, twi_item_t item, int rank)
{
    const mm_reduce_t *r = state_of(op);
    return !twi_op_has_sent(op, rank, r->owned[r->shares[op->rank].first + item.number] + 1);
}

static void run_rows(twi_op_t *op, twi_item_t item, twi_op_worker_t *worker)
{
    mm_reduce_t *r = state_of(op);
    mm_tiles_t tiles = twi_mm_tiles(op, r, 0, worker);
    mm_rows_t rows = twi_mm_rows(r, op->rank, item.number);
    sum_and_tell(&tiles, &rows, tiles.cols);
    twi_reads_finish(op, 0);
}

/* ---- The operators ----------------------------------------------------------------------------- */

static void count_reads(twi_op_t *op, const mm_reduce_t *r)
{
    const int64_t chunks = r->schedule.fused ? r->products.n_chunks : 1;
    int64_t copied = 0;
    for (int d = 0; r->results == MM_COPIED && d < op->size; d++)
        copied += d == op->rank ? 0 : r->shares[d].n;
    for (int64_t i = 0; i < op->n_rounds; i++)
        op->reads.left[i] = r->shares[op->rank].n * chunks + (copied > 0 ? copied * twi_mm_pieces(op, r, i) : 0);
}

static tw_status_t make_queues(twi_op_t *op, const mm_reduce_t *r)
{
    const bool fused = r->schedule.fused;
    const int64_t rounds = op->problem.product.n > 0 ? op->n_rounds : 0, chunks = r->products.n_chunks;
    const int64_t own = rounds * r->shares[op->rank].n;
    TW_TRY(twi_op_queues(op, 1 + op->size + (r->helps ? op->size : 0)));
    twi_queue_t *queue = op->queues;
    twi_op_queue(queue++, -1, fused ? own * chunks : own, fused ? sum_lacks : rows_lack, fused ? run_sum : run_rows);
    for (int step = 1; step < op->size; step++, queue++) {
        const int peer = (op->rank + step) % op->size;
        const int64_t pieces = r->results == MM_COPIED ? twi_mm_all_pieces(op, r, r->shares[peer].n) : 0;
        twi_op_queue(queue, peer, pieces, twi_mm_copy_lacks, twi_mm_copy_run);
    }
    twi_op_queue(queue++, -1, rounds * r->n_batches * chunks, product_lacks, run_product);
    op->has_optional = r->helps;
    for (int step = 0; r->helps && step < op->size; step++, queue++) {
        const int peer = (op->rank + step) % op->size;
        const int64_t pieces = twi_mm_all_pieces(op, r, r->shares[peer].n);
        queue->optional = step > 0;
        twi_op_queue(queue, peer, twi_min(pieces, TWI_MARKS_MOST), twi_mm_help_lacks, twi_mm_help_run);
    }
    return TW_OK;
}

/*
 * Whether it pays to do work of ranks that are late: there is enough of it, and there are cores for all, so that who
 * has taken a piece is at it.
 */
static bool is_worth_helping(const twi_op_t *op, const mm_reduce_t *r)
{
    const twi_gemm_problem_t *product = &op->problem.product;
    const int64_t bytes = product->m * product->n * r->out_bytes, least = (int64_t)twi_config()->stream_bytes / 8;
    return op->size > 1 && r->results != MM_SUMMED_BY_ALL && op->n_rounds == 1 && op->problem.wire != TW_WIRE_INT8 &&
           bytes > 0 && bytes >= least && op->transport->spin_ns > 0;
}

/*
 * If y is in our window, others may write results there, around the caches: else they would wait for lines that we
 * have. With two ranks the owner does so for every tile; with more of them it would store every line to all of them at
 * once, which is slower than that peers come for it. Each rank decides for itself whether it lends its y, and whether
 * it helps.
 */
static void lend_y(twi_op_t *op, mm_reduce_t *r)
{
    const twi_gemm_problem_t *product = &op->problem.product;
    const int64_t bytes = r->out_bytes, rows = r->all_reduce ? product->m : r->shares[op->rank].rows;
    const bool pushes = r->results == MM_COPIED && op->size == 2 && op->problem.wire != TW_WIRE_INT8;
    r->helps = r->schedule.fused && is_worth_helping(op, r);
    if (r->helps)
        r->marks = twi_min(twi_mm_all_pieces(op, r, r->shares[op->rank].n), TWI_MARKS_MOST);
    op->entry.marks = r->marks;
    r->lends = (r->helps || pushes) && twi_gemm_can_stream(&op->plan, r->out_type) &&
               twi_entry_lend(op, product->c, rows, product->n * bytes, product->ldc * bytes);
    r->pushed = r->lends && pushes;
    r->gives_all = r->lends && r->all_reduce && op->size > 2;
}

/* For what is worked out of the scales of the int8 wire. */
static tw_status_t wire_memory(const twi_op_t *op, mm_reduce_t *r)
{
    if (op->problem.wire != TW_WIRE_INT8)
        return TW_OK;
    r->wire = twi_wire_kernels(twi_cpu_isa());
    r->inverse = twi_op_alloc(op, (size_t)op->problem.product.n, sizeof *r->inverse);
    r->ratio = twi_op_alloc(op, (size_t)op->problem.product.n, sizeof *r->ratio);
    return r->inverse && r->ratio ? TW_OK : TW_ERR_NO_MEMORY;
}

static void plan_product(twi_op_t *op, mm_reduce_t *r)
{
    static const twi_gemm_hook_t some_hook; /* strips have their own */
    op->problem.product.hook = &some_hook;
    twi_products_plan(&op->problem.product, &op->plan);
    r->products = (twi_products_t){.plan = &op->plan, .panels = &op->memory->panels[0], .pack = twi_products_pack_rows};
}

static tw_status_t make_counters(twi_op_t *op, const mm_reduce_t *r)
{
    twi_ops_board_t *board = twi_board(op->transport, op->rank);
    TW_TRY(twi_units_create(op, &op->sent, &board->sent, op->n_rounds * r->n_sends));
    TW_TRY(twi_units_create(op, &op->result, &board->result, twi_mm_all_pieces(op, r, r->shares[op->rank].n)));
    int64_t *left = twi_op_alloc(op, (size_t)op->n_rounds, sizeof *left);
    return twi_reads_create(&op->reads, left, op->n_rounds);
}

static void set_types(const twi_op_t *op, mm_reduce_t *r)
{
    const tw_wire_t wire = op->problem.wire;
    r->out_type = op->problem.product.epilogue.out_type;
    r->out_bytes = (int64_t)twi_dtype_bytes(r->out_type);
    r->wire_bytes = wire == TW_WIRE_F32 ? 4 : wire == TW_WIRE_INT8 ? 1 : r->out_bytes;
    r->reduce = twi_reduce_select(wire == TW_WIRE_F32 ? TWI_FP32 : r->out_type, TWI_SUM, false);
}

/*
 * The order matters. The entry names the kernel, and the type of y, not that of partials. Strips are as high as the
 * kernel's tiles. What is lent goes into the entry, and depends on rounds and pieces. The order of products depends on
 * whether all sums are given. Counters and queues have an item for each of all that.
 */
static tw_status_t create(twi_op_t *op, bool all_reduce, int64_t owner_rows)
{
    mm_reduce_t *r = twi_op_alloc(op, 1, sizeof *r);
    twi_gemm_problem_t *product = &op->problem.product;
    if (!r)
        return TW_ERR_NO_MEMORY;
    op->state = r;
    r->all_reduce = all_reduce;
    set_types(op, r);
    TW_TRY(wire_memory(op, r));
    plan_product(op, r);
    twi_entry_fill(op, product->m);
    if (op->problem.wire == TW_WIRE_F32)
        product->epilogue.out_type = TWI_FP32; /* of a partial */
    TW_TRY(twi_mm_reduce_plan(op, r, owner_rows));
    r->streams = twi_gemm_streams(&op->plan, product->c, product->ldc, product->m, r->out_type);
    r->copy_rows = twi_copy_rows_select(r->streams);
    r->push_rows = twi_copy_rows_select(true);
    lend_y(op, r);
    TW_TRY(twi_mm_reduce_order(op, r));
    TW_TRY(make_counters(op, r));
    TW_TRY(make_queues(op, r));
    return twi_op_worker_memory(op);
}

static tw_status_t create_reduce_scatter(twi_op_t *op)
{
    return create(op, false, op->problem.product.m / op->size);
}

static tw_status_t create_all_reduce(twi_op_t *op)
{
    return create(op, true, 0);
}

/* Scales may change from run to run. */
static void invert_scales(const twi_op_t *op, mm_reduce_t *r)
{
    const twi_op_problem_t *problem = &op->problem;
    const twi_float_mode_t mode = twi_float_mode_begin();
    r->inverts =
        r->wire->invert(problem->comm_scale_1, problem->comm_scale_2, problem->product.n, r->inverse, r->ratio);
    twi_float_mode_end(mode);
}

static void start(twi_op_t *op)
{
    mm_reduce_t *r = state_of(op);
    if (r->wire)
        invert_scales(op, r);
    const int64_t own = op->n_rounds * r->shares[op->rank].n, chunks = r->products.n_chunks;
    twi_products_reset(&r->products);
    count_reads(op, r);
    twi_reads_begin(op);
    for (int64_t i = 0; i < op->n_rounds * r->n_batches; i++)
        atomic_store_explicit(&r->batch_left[i], (int32_t)chunks, memory_order_relaxed);
    for (int64_t i = 0; i < twi_mm_all_pieces(op, r, r->shares[op->rank].n); i++) {
        const int64_t cols = twi_mm_piece(op, r, r->shares[op->rank].n, i).cols;
        atomic_store_explicit(&r->own_left[i], (int32_t)twi_ceil_div(cols, op->plan.kernel->nr), memory_order_relaxed);
    }
    for (int64_t i = 0; i < own * chunks; i++)
        atomic_store_explicit(&r->own[i], MM_TODO, memory_order_relaxed);
    for (int64_t i = 0; i < r->n_batches; i++)
        atomic_store_explicit(&r->gives[i], MM_UNDECIDED, memory_order_relaxed);
    atomic_store_explicit(&r->behind, false, memory_order_relaxed);
    atomic_store_explicit(&r->tiles, 0, memory_order_relaxed);
}

static void explain(const twi_op_t *op, char *text, size_t bytes)
{
    const twi_schedule_t *schedule = &state_of(op)->schedule;
    char how[160];
    (void)snprintf(how, sizeof how, "%s, %" PRId64 " round%s (%s)", schedule->fused ? "fused" : "not fused",
                   schedule->rounds, schedule->rounds == 1 ? "" : "s", schedule->why);
    twi_model_explain(op, how, &schedule->estimate, text, bytes);
}

const twi_op_class_t twi_op_mm_reduce_scatter = {
    .create = create_reduce_scatter,
    .start = start,
    .explain = explain,
};

const twi_op_class_t twi_op_mm_all_reduce = {
    .create = create_all_reduce,
    .start = start,
    .explain = explain,
};
