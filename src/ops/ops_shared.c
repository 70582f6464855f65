/* SPDX-License-Identifier: Apache-2.0 */
/* The shared expert. See shared_expert.h. */
#include "base/sizes.h"
#include "ops/shared_expert.h"

static void pack(twi_op_t *op, const twi_gemm_strip_t *strip, int64_t row, int rows, void *dst, twi_op_worker_t *worker)
{
    const twi_gemm_problem_t *problem = &op->problem.shared;
    const int64_t at = row * problem->lda * twi_gemm_kind_bytes(problem->kind);
    (void)strip;
    (void)worker;
    twi_gemm_pack_rows(&op->shared_plan, (const char *)problem->a + at, problem->lda, rows, dst);
}

static int64_t strip_rows(const twi_op_t *op)
{
    return twi_products_height(op, &op->shared_plan, op->problem.shared.m);
}

tw_status_t twi_shared_create(twi_op_t *op)
{
    const twi_gemm_problem_t *problem = &op->problem.shared;
    if (!op->problem.has_shared)
        return TW_OK;
    op->shared = twi_op_alloc(op, 1, sizeof *op->shared);
    if (!op->shared)
        return TW_ERR_NO_MEMORY;
    *op->shared = (twi_products_t){.plan = &op->shared_plan, .panels = &op->memory->panels[1], .pack = pack};
    twi_products_plan(&op->problem.shared, &op->shared_plan);
    return twi_products_create(op, op->shared, twi_ceil_div(problem->m, strip_rows(op)), 1, problem->n);
}

static void run(twi_op_t *op, twi_item_t item, twi_op_worker_t *worker)
{
    twi_products_t *products = op->shared;
    const int64_t number = item.number / products->n_chunks, height = strip_rows(op);
    const int64_t first = number * height;
    const int64_t left = op->problem.shared.m - first;
    const int64_t chunk = item.number % products->n_chunks;
    twi_gemm_strip_t strip = {
        .row = first,
        .rows = left < height ? left : height,
        .col = chunk * products->chunk_cols,
        .cols = twi_products_cols(products, chunk, op->problem.shared.n),
    };
    const uint64_t begin = twi_trace_begin(op);
    twi_products_run(op, products, number, &strip, worker);
    twi_trace_end(op, begin, "product, shared", worker, -1, &strip);
}

void twi_shared_queue(const twi_op_t *op, twi_queue_t *queue)
{
    const twi_products_t *products = op->shared;
    const bool any = products && op->problem.shared.n > 0;
    twi_op_queue(queue, -1, any ? products->n_strips * products->n_chunks : 0, NULL, run);
}

void twi_shared_reset(twi_op_t *op)
{
    if (op->shared)
        twi_products_reset(op->shared);
}
