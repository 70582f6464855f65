/* SPDX-License-Identifier: Apache-2.0 */
/* How all_gather_mm and alltoallv_gmm are cut: rows of the product by source, strips, queues. See gather.h. */
#include "base/sizes.h"
#include "ops/gather.h"

/* ---- Rows -------------------------------------------------------------------------------------- */

static void fill_counts(const twi_op_t *op, gather_t *g)
{
    const int64_t e = g->experts;
    int64_t to = 0;
    for (int64_t j = 0; j < e; j++)
        for (int s = 0; s < op->size; s++) {
            const int64_t at = s * e + j;
            g->count[at] = g->grouped ? twi_counts_of(op, &g->counts, op->rank, 1)[at] : op->problem.product.m;
            g->to[at] = to;
            to += g->count[at];
        }
}

/* Where the rows that a source has for us begin; not grouped: all of them are. */
static void fill_source(const twi_op_t *op, gather_t *g, int source)
{
    const int64_t e = g->experts;
    if (!g->grouped) {
        g->shown[source] = twi_gather_shown(op, g, op->problem.product.m);
        return;
    }
    const int64_t *send = twi_counts_of(op, &g->counts, source, 0);
    g->shown[source] = twi_gather_shown(op, g, twi_counts_before(send, e * op->size));
    int64_t from = twi_counts_before(send, op->rank * e);
    for (int64_t j = 0; j < e; j++) {
        g->from[source * e + j] = from;
        from += send[op->rank * e + j];
    }
}

/* Direct, or copied if some source needs several rounds. */
static tw_status_t settle(twi_op_t *op, gather_t *g)
{
    bool several = g->only_rows;
    for (int s = 0; s < op->size; s++)
        several |= op->size > 1 && g->shown[s].rounds > 1;
    if (several && !g->copy) {
        const twi_gemm_problem_t *product = &op->problem.product;
        const int64_t last = g->experts * op->size - 1;
        g->copy_ld = product->k;
        const size_t bytes = (size_t)((g->to[last] + g->count[last]) * g->row_bytes) + 1;
        if (!twi_buffer_grow(&op->memory->rows, bytes))
            return twi_fail(TW_ERR_NO_MEMORY, "no memory for a copy of the rows of all ranks, %zu bytes", bytes);
        g->copy = op->memory->rows.data;
    }
    g->copies = several;
    return TW_OK;
}

static bool copies_from(const twi_op_t *op, const gather_t *g, int source)
{
    return source != op->rank || g->only_rows;
}

/* With copies, a round of a source has been read when it has been copied; otherwise when all strips are packed. */
tw_status_t twi_gather_reads(twi_op_t *op, gather_t *g)
{
    int64_t rounds = 1;
    for (int s = 0; s < op->size; s++)
        rounds = g->shown[s].rounds > rounds ? g->shown[s].rounds : rounds;
    int64_t *left = twi_op_alloc_run(op, (size_t)rounds, sizeof *left);
    TW_TRY(twi_reads_create(&op->reads, left, rounds));
    if (!g->copies)
        left[0] = g->n_strips - g->queue_first[1];
    for (int s = 0; g->copies && s < op->size; s++) {
        g->copied[s] = twi_op_alloc_run(op, (size_t)g->shown[s].rounds, sizeof *g->copied[s]);
        if (!g->copied[s])
            return TW_ERR_NO_MEMORY;
        for (int64_t i = 0; copies_from(op, g, s) && i < g->shown[s].rounds; i++)
            left[i]++;
    }
    return TW_OK;
}

tw_status_t twi_gather_meet(twi_op_t *op, gather_t *g)
{
    TW_TRY(twi_counts_agree(op, &g->counts));
    for (int s = 0; s < op->size; s++)
        if (s != op->rank) /* ours is in use already */
            fill_source(op, g, s);
    return settle(op, g);
}

/* ---- Strips ------------------------------------------------------------------------------------ */

typedef struct latest {
    const twi_op_t *op;
    int distance; /* of the sources so far the one that is furthest after us: its rows come last */
} latest_t;

static void find_latest(void *arg, int source, int64_t row, int64_t to, int64_t rows)
{
    latest_t *latest = arg;
    const int distance = twi_op_distance(latest->op, source);
    (void)row;
    (void)to;
    (void)rows;
    latest->distance = distance > latest->distance ? distance : latest->distance;
}

/* Strips are queued by the source whose rows come last. */
static int queue_of(const twi_op_t *op, const gather_t *g, const gather_strip_t *strip)
{
    latest_t latest = {.op = op};
    twi_gather_each(op, g, strip, find_latest, &latest);
    return latest.distance;
}

/* If a source has whole panels, as high as in a product alone, but most have rows of one source only. */
static int64_t strip_rows(const twi_op_t *op, int64_t group_rows)
{
    const int64_t each = group_rows / op->size, height = twi_products_height(op, &op->plan, group_rows);
    const int64_t rows = each % op->plan.kernel->mr == 0 ? twi_min(each, height) : 0;
    return rows > TWI_STRIP_ROWS ? rows : TWI_STRIP_ROWS;
}

/*
 * Cuts the rows of an expert; returns the number of strips, and stores them if there is a place. They do not end where
 * the rows of a source do: for every strip the weights go by once more.
 */
static int64_t cut_group(const twi_op_t *op, const gather_t *g, int group, gather_strip_t *strips)
{
    const int64_t last = (op->size - 1) * g->experts + group, end = g->to[last] + g->count[last];
    const int64_t height = strip_rows(op, end - g->to[group]);
    int64_t n = 0;
    for (int64_t row = g->to[group]; row < end; row += height, n++)
        if (strips)
            strips[n] = (gather_strip_t){.group = group, .row = row, .rows = twi_min(end - row, height)};
    return n;
}

static int64_t cut_all(const twi_op_t *op, const gather_t *g, gather_strip_t *strips)
{
    int64_t n = 0;
    for (int64_t j = 0; j < g->experts; j++)
        n += cut_group(op, g, (int)j, strips ? strips + n : NULL);
    return n;
}

/* Sorts strips by queue, keeping their order within each. */
static tw_status_t sort_strips(const twi_op_t *op, gather_t *g)
{
    gather_strip_t *cut = twi_op_alloc(op, (size_t)g->n_strips, sizeof *cut);
    if (!cut)
        return TW_ERR_NO_MEMORY;
    (void)cut_all(op, g, cut);
    int64_t n = 0;
    for (int q = 0; q < op->size; q++) {
        g->queue_first[q] = n;
        for (int64_t i = 0; i < g->n_strips; i++)
            if (queue_of(op, g, &cut[i]) == q)
                g->strips[n++] = cut[i];
    }
    g->queue_first[op->size] = n;
    return TW_OK;
}

/* ---- All of it --------------------------------------------------------------------------------- */

static tw_status_t allocate(const twi_op_t *op, gather_t *g)
{
    const size_t size = (size_t)op->size, table = size * (size_t)g->experts;
    g->shown = twi_op_alloc(op, size, sizeof *g->shown);
    g->count = twi_op_alloc(op, table, sizeof *g->count);
    g->from = twi_op_alloc(op, table, sizeof *g->from);
    g->to = twi_op_alloc(op, table, sizeof *g->to);
    g->copied = twi_op_alloc(op, size, sizeof *g->copied);
    g->queue_first = twi_op_alloc(op, size + 1, sizeof *g->queue_first);
    const bool ok = g->shown && g->count && g->from && g->to && g->copied && g->queue_first;
    return ok ? TW_OK : TW_ERR_NO_MEMORY;
}

tw_status_t twi_gather_plan(twi_op_t *op, gather_t *g)
{
    TW_TRY(allocate(op, g));
    if (op->problem.rows_out) {
        g->copy = op->problem.rows_out;
        g->copy_ld = op->problem.ld_rows_out;
    }
    fill_counts(op, g);
    for (int s = 0; s < op->size; s++)
        if (!g->grouped || s == op->rank)
            fill_source(op, g, s);
    const gather_rows_t *own = &g->shown[op->rank];
    twi_gather_lend(op, g);
    const int64_t rows_bytes = twi_gather_rows_bytes(op, g, op->rank);
    op->n_rounds = op->size > 1 ? own->rounds : 1;
    op->slot_bytes_each = (size_t)g->head;
    if (op->size > 1)
        op->slot_bytes_each += (size_t)(rows_bytes + own->per_round * g->token_bytes);
    TW_TRY(twi_slot_fits(op, op->slot_bytes_each));
    g->n_strips = op->problem.product.n > 0 ? cut_all(op, g, NULL) : 0;
    g->strips = twi_op_alloc(op, (size_t)g->n_strips, sizeof *g->strips);
    if (!g->strips)
        return TW_ERR_NO_MEMORY;
    if (g->n_strips > 0)
        TW_TRY(sort_strips(op, g));
    return g->grouped ? TW_OK : settle(op, g);
}
