/* SPDX-License-Identifier: Apache-2.0 */
/* Products whose arguments have been checked: their scratch, their problem, and what is read before a run. */
#include "api/product.h"

#include <string.h>

/* ---- Scratch and problem ----------------------------------------------------------------------- */

void twi_api_product_place(twi_api_product_t *p, twi_api_scratch_t *scratch)
{
    if (!p->problem.weight)
        twi_api_right_place(&p->right, scratch);
    twi_api_table_place(&p->bias, scratch);
    twi_api_table_place(&p->scale, scratch);
    twi_api_table_place(&p->token, scratch);
}

void twi_api_product_bind(twi_api_product_t *p, const twi_api_scratch_t *scratch)
{
    twi_gemm_problem_t *problem = &p->problem;
    if (!problem->weight)
        problem->b = twi_api_right_bind(&p->right, scratch, &problem->antiquant);
    const void *bias = twi_api_table_at(&p->bias, scratch);
    const bool integer_bias = bias && twi_tensor_dtype(p->bias.tensor) == TWI_INT32;
    problem->epilogue.integer = problem->kind == TWI_GEMM_S8;
    problem->epilogue.ibias = integer_bias ? bias : NULL;
    problem->epilogue.fbias = integer_bias ? NULL : bias;
    problem->epilogue.scale = twi_api_table_at(&p->scale, scratch);
    if (p->token.tensor)
        problem->epilogue.token = twi_api_table_at(&p->token, scratch);
}

void twi_api_product_fill(const twi_api_product_t *p, const twi_api_scratch_t *scratch)
{
    twi_api_right_fill(&p->right, scratch);
    (void)twi_api_table_fill(&p->bias, scratch);
    (void)twi_api_table_fill(&p->scale, scratch);
    (void)twi_api_table_fill(&p->token, scratch);
    if (p->own) {
        const tw_weight_t header = *p->own;
        twi_gemm_weight_fill(&p->source, &header, p->own);
    }
}

/* ---- Weights of their own ---------------------------------------------------------------------- */

tw_status_t twi_api_product_own_bytes(const twi_api_product_t *p, size_t *bytes_out)
{
    tw_weight_t header = {0};
    if (!p->problem.weight)
        TW_TRY(twi_api_right_weight(&p->right, &header));
    *bytes_out = (size_t)header.bytes;
    return TW_OK;
}

tw_status_t twi_api_product_own(twi_api_product_t *p, void *memory)
{
    twi_gemm_problem_t *problem = &p->problem;
    TW_TRY(twi_api_right_weight(&p->right, memory));
    p->own = memory;
    p->source = (twi_gemm_weight_source_t){
        .kind = problem->kind,
        .matrices = problem->b,
        .n_matrices = p->right.n_matrices,
        .antiquant = problem->antiquant,
    };
    problem->b = NULL;
    problem->antiquant = (twi_gemm_antiquant_t){0};
    problem->weight = p->own;
    return TW_OK;
}

/* ---- Views ------------------------------------------------------------------------------------- */

static void exchange(int64_t *sizes, int last)
{
    const int64_t size = sizes[last];
    sizes[last] = sizes[last - 1];
    sizes[last - 1] = size;
}

void twi_api_view_copy(twi_api_view_t *view, const tw_tensor_t *tensor, bool transposed)
{
    view->tensor = *tensor;
    for (int dim = 0; dim < tensor->ndim; dim++) {
        view->shape[dim] = tensor->shape[dim];
        view->strides[dim] = twi_tensor_stride(tensor, dim);
    }
    if (transposed) {
        exchange(view->shape, tensor->ndim - 1);
        exchange(view->strides, tensor->ndim - 1);
    }
    view->tensor.shape = view->shape;
    view->tensor.strides = view->strides;
}

void twi_api_table_keep(twi_api_table_t *table, twi_api_view_t *view)
{
    if (!table->tensor)
        return;
    twi_api_view_copy(view, table->tensor, false);
    table->tensor = &view->tensor;
}

void twi_api_product_keep(twi_api_product_t *p, twi_api_view_t views[TWI_API_PRODUCT_VIEWS])
{
    twi_api_table_keep(&p->bias, &views[0]);
    twi_api_table_keep(&p->scale, &views[1]);
    twi_api_table_keep(&p->token, &views[2]);
    twi_api_table_keep(&p->right.scale, &views[3]);
    twi_api_table_keep(&p->right.offset, &views[4]);
}
