/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that the fused operators share. */
#include <inttypes.h>

#include "api/api_op.h"
#include "api/gemm_place.h"

tw_status_t twi_api_op_check_rounds(int rounds)
{
    TW_REQUIRE(rounds >= TW_ROUNDS_UNFUSED && rounds <= TW_ROUNDS_MAX,
               "rounds is %d, must be TW_ROUNDS_UNFUSED (%d), TW_ROUNDS_AUTO (%d) or 1..%d", rounds, TW_ROUNDS_UNFUSED,
               TW_ROUNDS_AUTO, TW_ROUNDS_MAX);
    return TW_OK;
}

tw_status_t twi_api_op_check_sizes(const twi_api_product_t *p, bool m, bool n)
{
    const twi_api_form_t *form = p->args.form;
    TW_REQUIRE(p->problem.k >= 1, "%s has %s = 0, must be at least 1", form->x1, form->k);
    TW_REQUIRE(!m || p->problem.m >= 1, "%s has no rows, must have at least 1", form->x1);
    TW_REQUIRE(!n || p->problem.n >= 1, "%s has %s = 0, must be at least 1", p->args.weight ? form->weight : form->x2,
               form->n);
    return TW_OK;
}

tw_status_t twi_api_op_check_rows_out(tw_op_t *op, const tw_tensor_t *out, const char *name, int64_t rows,
                                      const char *rule)
{
    const twi_api_product_t *p = &op->product;
    const int64_t shape[2] = {rows, p->problem.k};
    if (!out)
        return TW_OK;
    TW_TRY(twi_tensor_check_output(out, name));
    TW_TRY(twi_tensor_check_dtype(out, name, TWI_DTYPE_BIT(p->x1_type)));
    TW_TRY(twi_tensor_check_sizes(out, name, shape, 2, rule));
    TW_TRY(twi_api_written_rows(out, name, p->args.form->k, &op->problem.ld_rows_out));
    op->problem.rows_out = twi_tensor_data(out);
    return TW_OK;
}

/* One output and all that is read. */
static tw_status_t check_reads(const tw_op_t *op, const twi_api_output_t *out)
{
    static const char *const scales[2] = {"comm_quant_scale_1", "comm_quant_scale_2"};
    const twi_op_problem_t *problem = &op->problem;
    const uint64_t bytes = (uint64_t)op->product.problem.n_groups * (uint64_t)tw_comm_size(op->comm) * sizeof(int64_t);
    TW_TRY(twi_api_product_apart(&op->product, out->tensor, out->name));
    if (op->shared.args.form)
        TW_TRY(twi_api_product_apart(&op->shared, out->tensor, out->name));
    for (int i = 0; i < 2; i++)
        TW_TRY(twi_api_check_apart(out->tensor, out->name, op->comm_scale[i].tensor, scales[i]));
    TW_TRY(twi_api_check_apart_bytes(out->tensor, out->name, problem->send_counts, bytes, "send_counts"));
    return twi_api_check_apart_bytes(out->tensor, out->name, problem->recv_counts, bytes, "recv_counts");
}

tw_status_t twi_api_op_check_apart(const tw_op_t *op, const twi_api_output_t *outputs, int n_outputs)
{
    for (int i = 0; i < n_outputs; i++) {
        if (!outputs[i].tensor)
            continue;
        TW_TRY(check_reads(op, &outputs[i]));
        for (int j = 0; j < i; j++)
            TW_TRY(twi_api_check_outputs_apart(outputs[i].tensor, outputs[i].name, outputs[j].tensor, outputs[j].name));
    }
    return TW_OK;
}
