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

tw_status_t twi_shared_create(twi_op_t *op, twi_products_t *products)
{
    *products = (twi_products_t){.plan = &op->shared_plan, .panels = &op->memory->panels[1], .pack = pack};
    if (!op->problem.has_shared)
        return TW_OK;
    twi_products_plan(&op->problem.shared, &op->shared_plan);
    return twi_products_create(op, products, twi_ceil_div(op->problem.shared.m, strip_rows(op)), 1,
                               op->problem.shared.n);
}

void twi_shared_queue(twi_queue_t *queue, const twi_products_t *products, twi_run_fn *run)
{
    const bool any = products->n_strips > 0 && products->plan->problem->n > 0;
    twi_op_queue(queue, -1, any ? products->n_strips * products->n_chunks : 0, NULL, run);
}

void twi_shared_run(twi_op_t *op, twi_products_t *products, int64_t item, twi_op_worker_t *worker)
{
    const int64_t number = item / products->n_chunks, height = strip_rows(op);
    const int64_t first = number * height;
    const int64_t left = op->problem.shared.m - first;
    const int64_t chunk = item % products->n_chunks;
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
