/* SPDX-License-Identifier: Apache-2.0 */
/* Strips of products: who packs what, and the call of the engine. See products.h. */
#include <sched.h>

#include "base/sizes.h"
#include "ops/products.h"
#include "transport/bell.h"

enum {
    /* Items of each worker: workers are never equally fast, and all wait for the last item. */
    WIDE_ITEMS = 16,  /* wanted, if they are of WIDE_COLUMNS */
    NARROW_ITEMS = 4, /* wanted even if they are of NARROW_COLUMNS only */
    WIDE_COLUMNS = 256,
    NARROW_COLUMNS = 64, /* about the least that is worth an item */
    SPINS = 1024,        /* before a worker that waits for a panel gives its core away */
};

void twi_products_plan(twi_gemm_problem_t *problem, twi_gemm_plan_t *plan_out)
{
    problem->blocks.mb = problem->weight ? 0 : TWI_STRIP_ROWS;
    twi_gemm_plan(problem, plan_out);
}

int64_t twi_products_height(const twi_op_t *op, const twi_gemm_plan_t *plan, int64_t rows)
{
    const int64_t wanted = op->ops->n_workers > 1 ? (int64_t)NARROW_ITEMS * op->ops->n_workers : 1;
    const int64_t chunks = twi_ceil_div(plan->problem->n, NARROW_COLUMNS), mr = plan->kernel->mr;
    int64_t height = plan->blocks.stack;
    while (height > TWI_STRIP_ROWS && twi_ceil_div(rows, height) * chunks < wanted)
        height = twi_round_up(twi_ceil_div(height, 2), mr);
    return height;
}

/* Chunks of `cols` columns: `each` items for every worker in all rounds, but none much narrower than `least`. */
static int64_t chunks_of(const twi_op_t *op, int64_t items, int64_t cols, int64_t each, int64_t least)
{
    return twi_min(twi_ceil_div(each * op->ops->n_workers, items), twi_ceil_div(cols, least));
}

static void cut_columns(const twi_op_t *op, twi_products_t *p, int64_t rounds, int64_t cols)
{
    const int64_t items = p->n_strips * rounds;
    int64_t chunks = 1;
    if (op->ops->n_workers > 1) {
        const int64_t wide = chunks_of(op, items, cols, WIDE_ITEMS, WIDE_COLUMNS);
        const int64_t narrow = chunks_of(op, items, cols, NARROW_ITEMS, NARROW_COLUMNS);
        chunks = wide > narrow ? wide : narrow;
    }
    p->chunk_cols = twi_round_up(twi_ceil_div(cols, chunks), p->plan->kernel->nr);
    p->n_chunks = twi_ceil_div(cols, p->chunk_cols);
}

tw_status_t twi_products_create(twi_op_t *op, twi_products_t *p, int64_t n_strips, int64_t rounds, int64_t round_cols)
{
    const int64_t n = p->plan->problem->n, cols = round_cols < n ? round_cols : n;
    p->n_strips = n_strips;
    p->n_chunks = 1;
    p->chunk_cols = cols;
    if (n_strips == 0 || cols == 0)
        return TW_OK;
    cut_columns(op, p, rounds, cols);
    if (p->n_chunks == 1 && rounds == 1)
        return TW_OK;
    const int64_t panels =
        p->panels_most > 0 ? p->panels_most : twi_ceil_div(twi_products_rows(p->plan), p->plan->kernel->mr);
    p->strip_bytes = (size_t)twi_round_up(panels * p->plan->panel_bytes, TWI_OPS_LINE);
    p->syncs = twi_op_alloc(op, (size_t)n_strips, sizeof *p->syncs);
    if (!p->syncs)
        return TW_ERR_NO_MEMORY;
    if (!twi_buffer_grow(p->panels, (size_t)n_strips * p->strip_bytes))
        return twi_fail(TW_ERR_NO_MEMORY, "no memory to pack %lld strips of the left matrix", (long long)n_strips);
    return TW_OK;
}

void twi_products_reset(twi_products_t *p)
{
    for (int64_t i = 0; p->syncs && i < p->n_strips; i++) {
        atomic_store_explicit(&p->syncs[i].claimed, 0, memory_order_relaxed);
        atomic_store_explicit(&p->syncs[i].packed, 0, memory_order_relaxed);
    }
}

void twi_products_pack_rows(twi_op_t *op, const twi_gemm_strip_t *strip, int64_t row, int rows, void *dst,
                            twi_op_worker_t *worker)
{
    const twi_gemm_problem_t *problem = &op->problem.product;
    const int64_t at = row * problem->lda * twi_gemm_kind_bytes(problem->kind);
    (void)strip;
    (void)worker;
    twi_gemm_pack_rows(&op->plan, (const char *)problem->a + at, problem->lda, rows, dst);
}

static void pack_panel(twi_op_t *op, twi_products_t *p, const twi_gemm_strip_t *strip, int64_t panel, char *panels,
                       twi_op_worker_t *worker)
{
    const twi_gemm_panel_t rows = twi_gemm_strip_panel(strip, p->plan->kernel->mr, panel);
    p->pack(op, strip, rows.row, rows.rows, panels + panel * p->plan->panel_bytes, worker);
}

/* For the worker alone, unless it has just done so. */
static const char *pack_own(twi_op_t *op, twi_products_t *p, int64_t number, const twi_gemm_strip_t *strip,
                            twi_op_worker_t *worker)
{
    if (worker->packed == p && worker->packed_strip == number)
        return worker->panels;
    const uint64_t begin = twi_trace_begin(op);
    for (int64_t i = 0; i < twi_gemm_strip_panels(strip, p->plan->kernel->mr); i++)
        pack_panel(op, p, strip, i, worker->panels, worker);
    twi_trace_end(op, begin, "pack", worker, -1, strip);
    if (p->packed)
        p->packed(op, number);
    worker->packed = p;
    worker->packed_strip = number;
    return worker->panels;
}

/*
 * With others: whoever comes packs what nobody has claimed. A claimed panel is being packed by a worker
 * that runs, so the wait at the end is short; where one thread does all shares it is never entered.
 */
static const char *pack_shared(twi_op_t *op, twi_products_t *p, int64_t number, const twi_gemm_strip_t *strip,
                               twi_op_worker_t *worker)
{
    twi_strip_sync_t *sync = &p->syncs[number];
    const int32_t n = (int32_t)twi_gemm_strip_panels(strip, p->plan->kernel->mr);
    char *panels = p->panels->data + (size_t)number * p->strip_bytes;
    if (atomic_load_explicit(&sync->packed, memory_order_acquire) == n)
        return panels;
    const uint64_t begin = twi_trace_begin(op);
    for (int32_t i; (i = atomic_fetch_add_explicit(&sync->claimed, 1, memory_order_relaxed)) < n;) {
        pack_panel(op, p, strip, i, panels, worker);
        if (atomic_fetch_add_explicit(&sync->packed, 1, memory_order_acq_rel) == n - 1 && p->packed)
            p->packed(op, number);
    }
    for (unsigned spins = 0; atomic_load_explicit(&sync->packed, memory_order_acquire) < n; spins++) {
        if (spins < SPINS)
            twi_pause();
        else
            (void)sched_yield();
    }
    twi_trace_end(op, begin, "pack", worker, -1, strip);
    return panels;
}

void twi_products_run(twi_op_t *op, twi_products_t *p, int64_t number, twi_gemm_strip_t *strip, twi_op_worker_t *worker)
{
    if (strip->cols == 0)
        return;
    strip->a = p->syncs ? pack_shared(op, p, number, strip, worker) : pack_own(op, p, number, strip, worker);
    twi_gemm_strip(p->plan, strip, worker->gemm);
}
