/* SPDX-License-Identifier: Apache-2.0 */
/*
 * all_gather_mm and alltoallv_gmm: their queues. In the order in which they are looked at: meeting
 * (grouped), our rows to our slots, copies of peers' rows (if they need several rounds), products of rows
 * of our own, of rank+1, ..., the shared expert.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/sizes.h"
#include "ops/agree.h"
#include "ops/gather.h"
#include "ops/model.h"

static gather_t *state_of(const twi_op_t *op)
{
    return op->state;
}

enum { QUEUE_MEET, QUEUE_SHOW, QUEUE_COPIES }; /* then a queue of products for each rank, and the shared expert */

static twi_queue_t *copies_of(twi_op_t *op, int source)
{
    return &op->queues[QUEUE_COPIES + twi_op_distance(op, source)];
}

static int how_of(const gather_t *g)
{
    return atomic_load_explicit(&g->how, memory_order_acquire);
}

/* ---- Showing our rows -------------------------------------------------------------------------- */

/* Rows of a unit, from *first_out on; its round in *round_out. */
static int64_t unit_rows(const gather_rows_t *shown, int64_t unit, int64_t *first_out, int64_t *round_out)
{
    const int64_t per_round = twi_ceil_div(shown->per_round, TWI_STRIP_ROWS);
    const int64_t round = unit / per_round, in_round = unit % per_round * TWI_STRIP_ROWS;
    const int64_t first = round * shown->per_round + in_round;
    int64_t rows = shown->per_round - in_round;
    rows = rows < TWI_STRIP_ROWS ? rows : TWI_STRIP_ROWS;
    *first_out = first;
    *round_out = round;
    return rows < shown->n - first ? rows : shown->n - first;
}

static bool show_lacks(twi_op_t *op, twi_item_t item, int rank)
{
    int64_t first, round;
    (void)unit_rows(&state_of(op)->shown[op->rank], item.number, &first, &round);
    return twi_slot_lacks(op, round, rank);
}

static void run_show(twi_op_t *op, twi_item_t item, twi_op_worker_t *worker)
{
    gather_t *g = state_of(op);
    const twi_gemm_problem_t *product = &op->problem.product;
    int64_t first, round;
    const int64_t rows = unit_rows(&g->shown[op->rank], item.number, &first, &round);
    const int64_t step = product->lda * twi_gemm_kind_bytes(product->kind);
    const char *from = (const char *)product->a + first * step;
    char *to = twi_gather_row(op, g, op->rank, first);
    const uint64_t begin = twi_trace_begin(op);
    if (!op->lends_rows)
        twi_gather_copy_rows(to, g->row_bytes, from, step, rows, g->row_bytes);
    if (g->token_bytes > 0)
        memcpy(twi_gather_token(op, g, op->rank, first), g->own_token + first, (size_t)rows * sizeof(float));
    twi_trace_end(op, begin, "send", worker, -1, &(twi_gemm_strip_t){.row = first, .rows = rows, .cols = product->k});
    twi_units_finish(op, &op->sent, item.number, 1);
}

/* ---- Meeting, and copies of rows --------------------------------------------------------------- */

/* Once it is known how rows come: what there is to be read, and the copies, if there are any. */
static tw_status_t begin_reads(twi_op_t *op, gather_t *g)
{
    TW_TRY(twi_gather_reads(op, g));
    twi_reads_begin(op);
    atomic_store_explicit(&g->how, g->copies ? GATHER_COPIED : GATHER_DIRECT, memory_order_release);
    for (int s = 0; g->copies && s < op->size; s++)
        if (s != op->rank || g->only_rows)
            atomic_store_explicit(&copies_of(op, s)->n, g->shown[s].rounds, memory_order_release);
    return TW_OK;
}

static void run_meet(twi_op_t *op, twi_item_t item, twi_op_worker_t *worker)
{
    gather_t *g = state_of(op);
    (void)item;
    (void)worker;
    tw_status_t status = twi_gather_meet(op, g);
    if (status == TW_OK)
        status = begin_reads(op, g);
    if (status != TW_OK)
        twi_op_trouble(op, status);
}

static int64_t round_end(const gather_rows_t *shown, int64_t round)
{
    const int64_t end = (round + 1) * shown->per_round;
    return end < shown->n ? end : shown->n;
}

/* An item is a round of the source. Our own rows, copied if there is no product, need no slot. */
static bool copy_lacks(twi_op_t *op, twi_item_t item, int rank)
{
    const gather_rows_t *shown = &state_of(op)->shown[item.peer];
    const int64_t end = round_end(shown, item.number);
    return rank == item.peer && rank != op->rank && end > 0 &&
           !twi_op_has_sent(op, item.peer, twi_gather_units(shown, end - 1));
}

static void run_copy(twi_op_t *op, twi_item_t item, twi_op_worker_t *worker)
{
    gather_t *g = state_of(op);
    const gather_rows_t *shown = &g->shown[item.peer];
    const int64_t round_first = item.number * shown->per_round, end = round_end(shown, item.number);
    const uint64_t begin = twi_trace_begin(op);
    for (int64_t j = 0; j < g->experts; j++) {
        const int64_t at = item.peer * g->experts + j, from = g->from[at], till = from + g->count[at];
        const int64_t first = from > round_first ? from : round_first, stop = till < end ? till : end;
        if (first < stop)
            twi_gather_copy(op, g, item.peer, first, g->to[at] + first - from, stop - first);
    }
    twi_trace_end(op, begin, "copy", worker, item.peer,
                  &(twi_gemm_strip_t){.row = round_first, .rows = end - round_first, .cols = op->problem.product.k});
    /* pairs with the load in rows_lack */
    atomic_store_explicit(&g->copied[item.peer][item.number], 1, memory_order_release);
    twi_reads_finish(op, item.number);
}

/* ---- Products ---------------------------------------------------------------------------------- */

typedef struct lacking {
    twi_op_t *op;
    const gather_t *g;
    int rank;
    bool found;
} lacking_t;

static void rows_lack(void *arg, int source, int64_t row, int64_t to, int64_t rows)
{
    lacking_t *l = arg;
    const gather_rows_t *shown = &l->g->shown[source];
    (void)to;
    if (source != l->rank || source == l->op->rank)
        return;
    if (how_of(l->g) == GATHER_DIRECT) {
        l->found |= !twi_op_has_sent(l->op, source, twi_gather_units(shown, row + rows - 1));
        return;
    }
    for (int64_t i = row / shown->per_round; i <= (row + rows - 1) / shown->per_round; i++)
        l->found |= !atomic_load_explicit(&l->g->copied[source][i], memory_order_acquire);
}

/* An item is a chunk of a strip whose last rows come from the peer. */
static int64_t strip_of(const twi_op_t *op, const gather_t *g, twi_item_t item)
{
    return g->queue_first[twi_op_distance(op, item.peer)] + item.number / g->products.n_chunks;
}

static bool product_lacks(twi_op_t *op, twi_item_t item, int rank)
{
    const gather_t *g = state_of(op);
    lacking_t lacking = {.op = op, .g = g, .rank = rank};
    if (item.peer == op->rank)
        return false;                /* all of its rows are ours */
    if (how_of(g) == GATHER_UNKNOWN) /* for all ranks: it may become known between two of them */
        return true;
    twi_gather_each(op, g, &g->strips[strip_of(op, g, item)], rows_lack, &lacking);
    return lacking.found;
}

static void run_product(twi_op_t *op, twi_item_t item, twi_op_worker_t *worker)
{
    gather_t *g = state_of(op);
    const int64_t number = strip_of(op, g, item), chunk = item.number % g->products.n_chunks;
    twi_gemm_strip_t strip = {
        .group = g->strips[number].group,
        .row = g->strips[number].row,
        .rows = g->strips[number].rows,
        .col = chunk * g->products.chunk_cols,
        .cols = twi_products_cols(&g->products, chunk, op->problem.product.n),
    };
    const uint64_t begin = twi_trace_begin(op);
    twi_products_run(op, &g->products, number, &strip, worker);
    twi_trace_end(op, begin, "product", worker, item.peer, &strip);
}

/*
 * A strip with rows of peers is in panels: it has been read, but for where copies were. `result` counts all strips, as
 * they come: who lends us rows waits until we have read them all, and has to see that we are at it.
 */
static void strip_packed(twi_op_t *op, int64_t number)
{
    gather_t *g = state_of(op);
    twi_units_finish(op, &op->result, atomic_fetch_add_explicit(&g->n_packed, 1, memory_order_relaxed), 1);
    if (number >= g->queue_first[1] && how_of(g) == GATHER_DIRECT)
        twi_reads_finish(op, 0);
}

/* ---- The operators ----------------------------------------------------------------------------- */

static int64_t n_shown(const twi_op_t *op, const gather_t *g)
{
    const gather_rows_t *own = &g->shown[op->rank];
    return op->size > 1 && own->n > 0 ? twi_gather_units(own, own->n - 1) : 0;
}

static tw_status_t make_queues(twi_op_t *op, gather_t *g)
{
    TW_TRY(twi_op_queues(op, QUEUE_COPIES + 2 * op->size + 1));
    twi_op_queue(&op->queues[QUEUE_MEET], -1, g->grouped, twi_counts_lack, run_meet);
    twi_op_queue(&op->queues[QUEUE_SHOW], -1, n_shown(op, g), show_lacks, run_show);
    for (int step = 0; step < op->size; step++) {
        const int peer = (op->rank + step) % op->size;
        const int64_t strips = g->queue_first[step + 1] - g->queue_first[step];
        twi_op_queue(copies_of(op, peer), peer, 0, copy_lacks, run_copy); /* begin_reads says how many */
        twi_op_queue(&op->queues[QUEUE_COPIES + op->size + step], peer, strips * g->products.n_chunks, product_lacks,
                     run_product);
    }
    twi_shared_queue(op, &op->queues[QUEUE_COPIES + 2 * op->size]);
    return TW_OK;
}

static tw_status_t gather_tokens(twi_op_t *op, gather_t *g)
{
    twi_gemm_epilogue_t *epilogue = &op->problem.product.epilogue;
    if (!epilogue->token)
        return TW_OK;
    g->own_token = epilogue->token;
    g->token = twi_op_alloc(op, (size_t)op->size * (size_t)op->problem.product.m, sizeof *g->token);
    epilogue->token = g->token;
    g->token_bytes = sizeof *g->token;
    return g->token ? TW_OK : TW_ERR_NO_MEMORY;
}

/* All rows of the result, which are not m in all_gather_mm. */
static void plan_product(twi_op_t *op, gather_t *g)
{
    twi_gemm_problem_t *product = &op->problem.product;
    const int64_t own_m = product->m;
    product->m = g->grouped ? own_m : own_m * op->size;
    twi_products_plan(product, &op->plan);
    product->m = own_m;
    g->products = (twi_products_t){
        .plan = &op->plan,
        .panels = &op->memory->panels[0],
        .pack = twi_gather_pack,
        .packed = strip_packed,
    };
}

/* What a row of ours brings along besides its elements, and what comes before the first one. */
static tw_status_t prepare_slots(twi_op_t *op, gather_t *g)
{
    if (!g->grouped)
        return gather_tokens(op, g);
    TW_TRY(twi_counts_create(op, &g->counts));
    g->head = (int64_t)g->counts.bytes;
    return TW_OK;
}

static tw_status_t make_counters(twi_op_t *op, const gather_t *g)
{
    twi_ops_board_t *board = twi_board(op->transport, op->rank);
    TW_TRY(twi_units_create(op, &op->sent, &board->sent, n_shown(op, g)));
    return twi_units_create(op, &op->result, &board->result, g->n_strips);
}

/*
 * The order matters. The entry names the kernel, and the plan of rows adds to it where they are lent. That plan needs
 * what else is in a slot, and the count lists. Counters and queues have an item for each unit, strip and chunk.
 */
static tw_status_t create(twi_op_t *op, bool grouped)
{
    gather_t *g = twi_op_alloc(op, 1, sizeof *g);
    const twi_gemm_problem_t *product = &op->problem.product;
    if (!g)
        return TW_ERR_NO_MEMORY;
    op->state = g;
    g->grouped = grouped;
    g->experts = grouped ? product->n_groups : 1;
    g->row_bytes = product->k * twi_gemm_kind_bytes(product->kind);
    g->only_rows = product->n == 0 && op->problem.rows_out;
    plan_product(op, g);
    twi_entry_fill(op, grouped ? -1 : product->m);
    TW_TRY(prepare_slots(op, g));
    TW_TRY(twi_gather_plan(op, g));
    TW_TRY(twi_products_create(op, &g->products, g->n_strips, 1, product->n));
    TW_TRY(twi_shared_create(op));
    TW_TRY(make_counters(op, g));
    TW_TRY(make_queues(op, g));
    return twi_op_worker_memory(op);
}

static tw_status_t create_all_gather(twi_op_t *op)
{
    return create(op, false);
}

static tw_status_t create_alltoallv(twi_op_t *op)
{
    return create(op, true);
}

static void start(twi_op_t *op)
{
    gather_t *g = state_of(op);
    twi_products_reset(&g->products);
    twi_shared_reset(op);
    for (int s = 0; s < op->size; s++)
        atomic_store_explicit(&copies_of(op, s)->n, 0, memory_order_relaxed);
    atomic_store_explicit(&g->how, GATHER_UNKNOWN, memory_order_relaxed);
    atomic_store_explicit(&g->n_packed, 0, memory_order_relaxed);
    if (g->grouped)
        return; /* when all have met */
    if (begin_reads(op, g) != TW_OK)
        twi_op_trouble(op, TW_ERR_NO_MEMORY);
}

/* How rows come; that of grouped ones is known when all ranks have entered. */
static void explain_rows(const twi_op_t *op, const gather_t *g, char *text, size_t bytes)
{
    const bool known = op->size == 1 || !g->grouped || how_of(g) != GATHER_UNKNOWN;
    if (op->problem.rows_out)
        (void)snprintf(text, bytes, "rows go to %s%s", g->grouped ? "permute_out" : "gather_out",
                       g->only_rows ? "" : " and are packed from there");
    else if (known)
        (void)snprintf(text, bytes, "rows are packed from %s", g->copies ? "a copy" : "where they are");
    else
        (void)snprintf(text, bytes, "rows are packed from where they are, or a copy if some rank needs several rounds");
}

static void explain(const twi_op_t *op, char *text, size_t bytes)
{
    const gather_t *g = state_of(op);
    const int64_t last = g->experts * op->size - 1, rows = g->to[last] + g->count[last];
    const twi_estimate_t estimate = twi_model_estimate(&op->plan, rows, rows * g->row_bytes);
    char come[96], how[192];
    explain_rows(op, g, come, sizeof come);
    if (op->size == 1)
        (void)snprintf(how, sizeof how, "%s", come);
    else if (op->lends_rows)
        (void)snprintf(how, sizeof how, "%s, own rows are lent", come);
    else
        (void)snprintf(how, sizeof how, "%s, own rows are shown in %" PRId64 " round%s", come, op->n_rounds,
                       op->n_rounds == 1 ? "" : "s");
    twi_model_explain(op, how, &estimate, text, bytes);
}

const twi_op_class_t twi_op_all_gather_mm = {
    .create = create_all_gather,
    .start = start,
    .explain = explain,
};

const twi_op_class_t twi_op_alltoallv_gmm = {
    .create = create_alltoallv,
    .start = start,
    .explain = explain,
};
