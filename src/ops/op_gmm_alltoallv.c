/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gmm_alltoallv. A rank computes its experts one after the other, the one with the most rows first, in
 * strips of rows that may go to several ranks; each starts with the rows of rank+1. A finished strip lies
 * in a slot as panels of nr columns, each a matrix of its rows, and every receiver copies its rows out.
 * Where a peer's strips are follows from its count list, so nothing but the list has to be told.
 *
 * With one rank rows go straight to the result, whose order is the same.
 */
#include <stdlib.h>
#include <string.h>

#include "base/sizes.h"
#include "ops/agree.h"
#include "ops/grouped.h"
#include "ops/model.h"
#include "ops/panels.h"
#include "ops/shared_expert.h"

/* A strip of some rank, as all ranks see it. */
typedef struct strip {
    int64_t expert;
    int64_t first, rows; /* among the rows of the expert */
    int64_t round;
    size_t at; /* in the slot */
} strip_t;

/* Rows that we copy from a strip of a peer. */
typedef struct piece {
    int64_t unit;
    int64_t round;
    size_t at;
    int64_t strip_rows;
    int64_t first, rows; /* of the strip */
    int64_t y_row;
} piece_t;

typedef struct gmm {
    twi_schedule_t schedule;
    twi_counts_t counts;
    twi_products_t products, shared;
    strip_t *strips; /* ours, in the order in which they are computed */
    int64_t n_strips;
    int64_t *group_row;          /* [experts] first row of each in the product */
    _Atomic int32_t *strip_left; /* [n_strips] chunks to compute */
    size_t *slot_bytes;          /* [rounds] */
    int64_t row_bytes;
    bool streams; /* the result is written around the caches */
    twi_copy_rows_fn copy_rows;
    piece_t **pieces; /* [size], made when all have entered */
    _Atomic bool met; /* they are there: release, acquire */
} gmm_t;

/* ---- Strips of any rank, from its list ------------------------------------------------------------ */

static int64_t expert_rows(const twi_op_t *op, const int64_t *send, int64_t e, int64_t j)
{
    int64_t rows = 0;
    for (int d = 0; d < op->size; d++)
        rows += send[d * e + j];
    return rows;
}

typedef struct sized {
    int64_t rows, expert;
} sized_t;

static int larger_first(const void *a, const void *b)
{
    const sized_t *x = a, *y = b;
    if (x->rows != y->rows)
        return x->rows > y->rows ? -1 : 1;
    return x->expert < y->expert ? -1 : 1;
}

/* A walk over the strips of a rank in the order in which it computes them. */
typedef struct walk {
    const twi_op_t *op;
    const int64_t *send; /* its list */
    int64_t experts;
    int rank;
    int64_t row_bytes;
    int64_t strip_rows;
    int64_t round_bytes; /* about as many as a round may have */
    sized_t *order;      /* [experts] */
    strip_t at;
    size_t end; /* of the slot so far */
} walk_t;

typedef void (*each_fn)(void *arg, const strip_t *strip);

/* Cuts rows first..end-1 of the expert at hand. */
static void walk_rows(walk_t *w, int64_t first, int64_t end, each_fn each, void *arg)
{
    for (w->at.first = first; w->at.first < end; w->at.first += w->strip_rows) {
        w->at.rows = end - w->at.first < w->strip_rows ? end - w->at.first : w->strip_rows;
        const size_t bytes = (size_t)twi_round_up(w->at.rows * w->row_bytes, TWI_OPS_LINE);
        if (w->end > 0 && (int64_t)(w->end + bytes) > w->round_bytes) {
            w->at.round++;
            w->end = 0;
        }
        w->at.at = w->end;
        w->end += bytes;
        each(arg, &w->at);
    }
}

static void walk_all(walk_t *w, size_t lists_bytes, each_fn each, void *arg)
{
    const int64_t e = w->experts;
    for (int64_t j = 0; j < e; j++)
        w->order[j] = (sized_t){expert_rows(w->op, w->send, e, j), j};
    qsort(w->order, (size_t)e, sizeof *w->order, larger_first);
    w->end = lists_bytes;
    for (int64_t i = 0; i < e; i++) {
        w->at.expert = w->order[i].expert;
        const int next = (w->rank + 1) % w->op->size;
        int64_t start = 0; /* the first row for rank+1 */
        for (int d = 0; d < next; d++)
            start += w->send[d * e + w->at.expert];
        walk_rows(w, start, w->order[i].rows, each, arg);
        walk_rows(w, 0, start, each, arg);
    }
}

static walk_t walk_of(const twi_op_t *op, const gmm_t *g, int rank, sized_t *order)
{
    const int64_t half = (int64_t)(op->ops->slots_bytes / 2);
    const int64_t fit = g->row_bytes > 0 ? (half - TWI_OPS_LINE) / g->row_bytes : TWI_STRIP_ROWS;
    int64_t limit = half;
    const int64_t *send = twi_counts_of(op, &g->counts, rank, 0);
    if (op->problem.rounds > 1) {
        const int64_t rows = twi_counts_before(send, g->counts.experts * op->size);
        limit = twi_ceil_div(rows, op->problem.rounds) * g->row_bytes + (int64_t)g->counts.bytes;
        limit = limit < half ? limit : half;
    }
    return (walk_t){
        .op = op,
        .send = send,
        .experts = g->counts.experts,
        .rank = rank,
        .row_bytes = g->row_bytes,
        .strip_rows = fit < 1                ? 1
                      : fit < TWI_STRIP_ROWS ? fit
                                             : TWI_STRIP_ROWS,
        .round_bytes = limit,
        .order = order,
    };
}

/* ---- Our strips ------------------------------------------------------------------------------------ */

typedef struct listing {
    gmm_t *g; /* its strips may be NULL: they are counted */
    int64_t n, rounds;
} listing_t;

static void list_strip(void *arg, const strip_t *strip)
{
    listing_t *listing = arg;
    gmm_t *g = listing->g;
    if (g->strips) {
        g->strips[listing->n] = *strip;
        const size_t end = strip->at + (size_t)twi_round_up(strip->rows * g->row_bytes, TWI_OPS_LINE);
        g->slot_bytes[strip->round] = end > g->slot_bytes[strip->round] ? end : g->slot_bytes[strip->round];
    }
    listing->n++;
    listing->rounds = strip->round + 1;
}

static tw_status_t list_strips(twi_op_t *op, gmm_t *g)
{
    sized_t *order = calloc((size_t)g->counts.experts + 1, sizeof *order);
    listing_t counted = {.g = g, .rounds = 1}, filled = {.g = g, .rounds = 1};
    if (!order)
        return twi_fail(TW_ERR_NO_MEMORY, "no memory for %lld experts", (long long)g->counts.experts);
    walk_t walk = walk_of(op, g, op->rank, order);
    walk_all(&walk, g->counts.bytes, list_strip, &counted);
    g->n_strips = counted.n;
    op->n_rounds = counted.rounds;
    g->strips = calloc((size_t)counted.n + 1, sizeof *g->strips);
    g->strip_left = calloc((size_t)counted.n + 1, sizeof *g->strip_left);
    g->slot_bytes = calloc((size_t)counted.rounds, sizeof *g->slot_bytes);
    if (g->strips && g->strip_left && g->slot_bytes) {
        g->slot_bytes[0] = g->counts.bytes;
        walk = walk_of(op, g, op->rank, order);
        walk_all(&walk, g->counts.bytes, list_strip, &filled);
    }
    free(order);
    if (!g->strips || !g->strip_left || !g->slot_bytes)
        return twi_fail(TW_ERR_NO_MEMORY, "no memory for %lld strips", (long long)counted.n);
    op->slot_bytes = g->slot_bytes;
    if (op->size == 1) {
        op->n_rounds = 1;
        g->slot_bytes[0] = g->counts.bytes;
    }
    for (int64_t i = 0; i < op->n_rounds; i++)
        if (g->slot_bytes[i] > op->ops->slots_bytes)
            return twi_fail(TW_ERR_NO_MEMORY, "gmm_alltoallv needs slots of %zu bytes; TILEWIRE_FUSE_BYTES is %zu",
                            g->slot_bytes[i], op->ops->slots_bytes);
    return TW_OK;
}

/* ---- Pieces of the peers' strips ------------------------------------------------------------------- */

typedef struct gathering {
    const twi_op_t *op;
    const gmm_t *g;
    const int64_t *send; /* of the source */
    int source;
    piece_t *pieces; /* NULL: they are counted */
    int64_t n, unit;
    int64_t last; /* round of the source */
} gathering_t;

static void gather_piece(void *arg, const strip_t *strip)
{
    gathering_t *a = arg;
    const int64_t e = a->g->counts.experts, j = strip->expert;
    int64_t begin = 0;
    for (int d = 0; d < a->op->rank; d++)
        begin += a->send[d * e + j];
    const int64_t end = begin + a->send[a->op->rank * e + j];
    const int64_t from = begin > strip->first ? begin : strip->first;
    const int64_t strip_end = strip->first + strip->rows, to = end < strip_end ? end : strip_end;
    if (from < to) {
        if (a->pieces) {
            const int64_t *recv = twi_counts_of(a->op, &a->g->counts, a->op->rank, 1);
            a->pieces[a->n] = (piece_t){
                .unit = a->unit,
                .round = strip->round,
                .at = strip->at,
                .strip_rows = strip->rows,
                .first = from - strip->first,
                .rows = to - from,
                .y_row = twi_counts_before(recv, a->source * e + j) + from - begin,
            };
        }
        a->n++;
    }
    a->last = strip->round;
    a->unit++;
}

/* What we copy from a source; *n_out pieces. */
static tw_status_t gather_pieces(twi_op_t *op, gmm_t *g, int source, int64_t *n_out, int64_t *last_out)
{
    sized_t *order = calloc((size_t)g->counts.experts + 1, sizeof *order);
    gathering_t counted = {.op = op, .g = g, .send = twi_counts_of(op, &g->counts, source, 0), .source = source};
    gathering_t filled = counted;
    if (!order)
        return twi_fail(TW_ERR_NO_MEMORY, "no memory for %lld experts", (long long)g->counts.experts);
    walk_t walk = walk_of(op, g, source, order);
    walk_all(&walk, g->counts.bytes, gather_piece, &counted);
    free(g->pieces[source]);
    g->pieces[source] = filled.pieces = calloc((size_t)counted.n + 1, sizeof *filled.pieces);
    if (filled.pieces) {
        walk = walk_of(op, g, source, order);
        walk_all(&walk, g->counts.bytes, gather_piece, &filled);
    }
    free(order);
    *n_out = counted.n;
    *last_out = counted.last > *last_out ? counted.last : *last_out;
    return filled.pieces ? TW_OK : twi_fail(TW_ERR_NO_MEMORY, "no memory for %lld pieces", (long long)counted.n);
}

/* ---- Queues ------------------------------------------------------------------------------------ */

static gmm_t *state_of(const twi_op_t *op)
{
    return op->state;
}

enum { QUEUE_MEET, QUEUE_PRODUCTS, QUEUE_SHARED, QUEUE_COPIES }; /* the last for each source */

static twi_queue_t *copies_from(twi_op_t *op, int source)
{
    return &op->queues[QUEUE_COPIES + (source - op->rank + op->size) % op->size];
}

static tw_status_t meet(twi_op_t *op)
{
    gmm_t *g = state_of(op);
    int64_t last = 0;
    TW_TRY(twi_counts_agree(op, &g->counts));
    if (op->size == 1 || op->problem.product.n == 0)
        return TW_OK;
    for (int s = 0; s < op->size; s++) {
        int64_t n = 0;
        TW_TRY(gather_pieces(op, g, s, &n, &last));
        atomic_store_explicit(&copies_from(op, s)->n, n, memory_order_release);
    }
    twi_reads_destroy(&op->reads);
    TW_TRY(twi_reads_create(&op->reads, last + 1));
    for (int s = 0; s < op->size; s++)
        for (int64_t i = 0; i < copies_from(op, s)->n; i++)
            op->reads.items[g->pieces[s][i].round]++;
    twi_reads_begin(op);
    return TW_OK;
}

static void run_meet(twi_op_t *op, int peer, int64_t item, twi_op_worker_t *worker)
{
    (void)peer;
    (void)item;
    (void)worker;
    const tw_status_t status = meet(op);
    if (status != TW_OK)
        twi_op_trouble(op, status);
    atomic_store_explicit(&state_of(op)->met, true, memory_order_release);
}

static bool copy_lacks(twi_op_t *op, int peer, int64_t item, int rank)
{
    const gmm_t *g = state_of(op);
    if (rank == op->rank && !atomic_load_explicit(&g->met, memory_order_acquire))
        return true;
    return rank == peer && !twi_op_has_sent(op, peer, g->pieces[peer][item].unit + 1);
}

static twi_panels_t rows_of(const twi_op_t *op, int peer, const piece_t *piece)
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

static void run_copy(twi_op_t *op, int peer, int64_t item, twi_op_worker_t *worker)
{
    const piece_t *piece = &state_of(op)->pieces[peer][item];
    const twi_panels_t rows = rows_of(op, peer, piece);
    const uint64_t begin = twi_trace_begin(op);
    twi_panels_copy(&rows, state_of(op)->copy_rows);
    twi_trace_end(op, begin, "copy", worker, peer,
                  &(twi_gemm_strip_t){.row = piece->y_row, .rows = piece->rows, .cols = op->problem.product.n});
    twi_reads_finish(op, piece->round);
}

typedef struct tiles {
    const twi_op_t *op;
    const gmm_t *g;
    char *base;        /* of the strip in our slot */
    int64_t row, rows; /* of the strip in the product */
} tiles_t;

/* To the slot, around the caches if it is large, so that who reads it does not find it in ours: lines to lines. */
static void place_tile(void *user, const twi_gemm_tile_t *tile, twi_gemm_place_t *place)
{
    const tiles_t *t = user;
    const int64_t item_bytes = (int64_t)twi_dtype_bytes(t->op->problem.product.epilogue.out_type);
    const int64_t row_bytes = tile->cols * item_bytes;
    place->out = twi_panel_at(t->base, t->rows, tile->row - t->row, tile->col, tile->cols, item_bytes);
    place->ld_out = tile->cols;
    place->stream = t->g->streams && twi_panels_lines(place->out, row_bytes, row_bytes);
    if (!place->stream)
        twi_panel_touch(place, place->out, tile->rows * row_bytes, 1);
}

static bool product_lacks(twi_op_t *op, int peer, int64_t item, int rank)
{
    const gmm_t *g = state_of(op);
    (void)peer;
    return op->size > 1 && twi_slot_lacks(op, g->strips[item / g->products.n_chunks].round, rank);
}

/* A chunk of a strip to our slot. */
static void run_sent(twi_op_t *op, gmm_t *g, const strip_t *strip, int64_t number, twi_gemm_strip_t *product,
                     twi_op_worker_t *worker)
{
    tiles_t tiles = {
        .op = op,
        .g = g,
        .base = twi_op_slot(op, op->rank, strip->round) + strip->at,
        .row = product->row,
        .rows = product->rows,
    };
    const twi_gemm_hook_t hook = {.user = &tiles, .place = place_tile};
    product->hook = &hook;
    const uint64_t begin = twi_trace_begin(op);
    twi_products_run(op, &g->products, number, product, worker);
    twi_trace_end(op, begin, "product", worker, -1, product);
    if (atomic_fetch_sub_explicit(&g->strip_left[number], 1, memory_order_acq_rel) == 1)
        twi_units_finish(op, &op->sent, number, 1);
}

static void run_product(twi_op_t *op, int peer, int64_t item, twi_op_worker_t *worker)
{
    gmm_t *g = state_of(op);
    const int64_t number = item / g->products.n_chunks, chunk = item % g->products.n_chunks;
    const strip_t *strip = &g->strips[number];
    twi_gemm_strip_t product = {
        .group = (int)strip->expert,
        .row = g->group_row[strip->expert] + strip->first,
        .rows = strip->rows,
        .col = chunk * g->products.chunk_cols,
        .cols = twi_products_cols(&g->products, chunk, op->problem.product.n),
    };
    (void)peer;
    if (op->size > 1)
        run_sent(op, g, strip, number, &product, worker);
    else
        twi_products_run(op, &g->products, number, &product, worker);
}

static void run_shared(twi_op_t *op, int peer, int64_t item, twi_op_worker_t *worker)
{
    (void)peer;
    twi_shared_run(op, &state_of(op)->shared, item, worker);
}

/* Products take copies along; the shared expert fills the time until copies are there. */
static tw_status_t make_queues(twi_op_t *op, gmm_t *g)
{
    const bool empty = op->problem.product.n == 0;
    TW_TRY(twi_op_queues(op, QUEUE_COPIES + op->size));
    twi_queue_t *meet_queue = &op->queues[QUEUE_MEET], *products = &op->queues[QUEUE_PRODUCTS];
    meet_queue->n = 1;
    meet_queue->lacks = twi_counts_lack;
    meet_queue->run = run_meet;
    products->n = empty ? 0 : g->n_strips * g->products.n_chunks;
    products->lacks = product_lacks;
    products->run = run_product;
    twi_shared_queue(&op->queues[QUEUE_SHARED], &g->shared, run_shared);
    for (int s = 0; s < op->size; s++) {
        copies_from(op, s)->peer = s;
        copies_from(op, s)->lacks = copy_lacks;
        copies_from(op, s)->run = run_copy;
    }
    return TW_OK;
}

/* ---- The operator ------------------------------------------------------------------------------ */

static void choose(twi_op_t *op, gmm_t *g)
{
    const twi_gemm_problem_t *product = &op->problem.product;
    const twi_model_args_t args = {
        .plan = &op->plan,
        .rows = product->m,
        .shard_rows = TWI_STRIP_ROWS,
        .wire_bytes = product->m * g->row_bytes,
        .slots_bytes = op->ops->slots_bytes,
        .size = op->size,
        .wish = op->problem.rounds,
    };
    /* The order of queues is this rank's own affair: ranks need not decide alike. */
    g->schedule = twi_model_choose(&args);
    g->schedule.rounds = op->n_rounds;
}

static tw_status_t create(twi_op_t *op)
{
    gmm_t *g = calloc(1, sizeof *g);
    twi_gemm_problem_t *product = &op->problem.product;
    if (!g)
        return twi_fail(TW_ERR_NO_MEMORY, "no memory for an operator");
    op->state = g;
    product->blocks.mb = TWI_STRIP_ROWS;
    product->hook = op->size > 1 ? &(const twi_gemm_hook_t){.place = place_tile} : NULL;
    twi_gemm_plan(product, &op->plan);
    product->hook = NULL;
    g->row_bytes = product->n * (int64_t)twi_dtype_bytes(product->epilogue.out_type);
    g->products = (twi_products_t){.plan = &op->plan, .pack = twi_products_pack_rows};
    g->group_row = calloc((size_t)product->n_groups, sizeof *g->group_row);
    g->pieces = calloc((size_t)op->size, sizeof *g->pieces);
    if (!g->group_row || !g->pieces)
        return twi_fail(TW_ERR_NO_MEMORY, "no memory for an operator");
    twi_entry_fill(op, -1);
    TW_TRY(twi_counts_create(op, &g->counts));
    TW_TRY(list_strips(op, g));
    const int64_t *send = twi_counts_of(op, &g->counts, op->rank, 0);
    for (int64_t j = 1; j < product->n_groups; j++)
        g->group_row[j] = g->group_row[j - 1] + expert_rows(op, send, g->counts.experts, j - 1);
    choose(op, g);
    TW_TRY(twi_products_create(op, &g->products, g->n_strips, 1, product->n));
    const int64_t y_rows = twi_counts_before(twi_counts_of(op, &g->counts, op->rank, 1), g->counts.experts * op->size);
    const int64_t rows = product->m > y_rows ? product->m : y_rows;
    g->streams = twi_gemm_streams(&op->plan, product->c, product->ldc, rows, product->epilogue.out_type);
    g->copy_rows = twi_copy_rows_select(g->streams);
    TW_TRY(twi_shared_create(op, &g->shared));
    TW_TRY(twi_units_create(&op->sent, &twi_board(op->transport, op->rank)->sent, op->size > 1 ? g->n_strips : 0));
    TW_TRY(make_queues(op, g));
    return twi_op_worker_memory(op);
}

static void start(twi_op_t *op)
{
    gmm_t *g = state_of(op);
    twi_products_reset(&g->products);
    twi_products_reset(&g->shared);
    for (int64_t i = 0; i < g->n_strips; i++)
        atomic_store_explicit(&g->strip_left[i], (int32_t)g->products.n_chunks, memory_order_relaxed);
    for (int s = 0; s < op->size; s++)
        atomic_store_explicit(&copies_from(op, s)->n, 0, memory_order_relaxed);
    atomic_store_explicit(&g->met, false, memory_order_relaxed);
}

static void explain(const twi_op_t *op, char *text, size_t bytes)
{
    twi_model_explain(op, &state_of(op)->schedule, text, bytes);
}

static void destroy(twi_op_t *op)
{
    gmm_t *g = state_of(op);
    if (!g)
        return;
    twi_products_destroy(&g->products);
    twi_products_destroy(&g->shared);
    twi_counts_destroy(&g->counts);
    for (int s = 0; g->pieces && s < op->size; s++)
        free(g->pieces[s]);
    free(g->pieces);
    free(g->strips);
    free((void *)g->strip_left);
    free(g->slot_bytes);
    free(g->group_row);
    free(g);
}

const twi_op_class_t twi_op_gmm_alltoallv = {
    .name = "gmm_alltoallv",
    .create = create,
    .start = start,
    .explain = explain,
    .destroy = destroy,
};
