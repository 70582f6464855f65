/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a fused operator is compared with: the product, or products, by tw_matmul, the collective by the
 * task interface, and the two one after the other. A collective of an expert-parallel layer may consist
 * of several tasks, which are all committed before the first is waited for.
 */
#include <string.h>

#include "bench_fused.h"
#include "bench_gemm.h"

/* ---- Products ---------------------------------------------------------------------------------- */

static bool multiply(tw_comm_t *comm, const fused_operands_t *operands, const fused_tensor_t *y)
{
    const bool gathers = fused_op_gathers(operands->c->op), grouped = fused_op_grouped(operands->c->op);
    tw_matmul_args_t args = TW_MATMUL_ARGS_INIT;
    args.x1 = gathers ? &operands->gathered.tensor : &operands->x.tensor;
    args.weight = operands->weight;
    args.y = &y->tensor;
    if (operands->types.int8)
        args.dequant_scale = &operands->scale.tensor;
    if (operands->types.pertoken)
        args.pertoken_scale = gathers ? &operands->token_all.tensor : &operands->token.tensor;
    args.counts = grouped ? operands->group_rows : NULL;
    args.n_counts = grouped ? operands->c->experts : 0;
    return tw_matmul(comm, &args) == TW_OK;
}

static bool multiply_shared_expert(tw_comm_t *comm, const fused_operands_t *operands)
{
    tw_matmul_args_t args = TW_MATMUL_ARGS_INIT;
    if (operands->mm_weight == NULL)
        return true;
    args.x1 = &operands->mm_x.tensor;
    args.weight = operands->mm_weight;
    args.y = &operands->mm_y_alone.tensor;
    return tw_matmul(comm, &args) == TW_OK;
}

static bool multiply_all(tw_comm_t *comm, const fused_operands_t *operands, const fused_tensor_t *y)
{
    return multiply(comm, operands, y) && multiply_shared_expert(comm, operands);
}

bool fused_call_product(tw_comm_t *comm, const fused_operands_t *operands)
{
    return multiply_all(comm, operands, fused_op_gathers(operands->c->op) ? &operands->partial : &operands->alone);
}

/* ---- Collectives ------------------------------------------------------------------------------- */

static uint32_t hccl_type(tw_dtype_t type)
{
    return type.bits == 32 ? (uint32_t)TW_HCCL_FP32 : gemm_model(type)->type;
}

static bool wait_all(tw_hccl_t *hccl, const tw_hccl_handle_t *handles, int n)
{
    for (int i = 0; i < n; i++) {
        if (handles[i] < 0 || tw_hccl_wait(hccl, handles[i]) != 0)
            return false;
    }
    return true;
}

static int start_reduction(tw_hccl_t *hccl, const fused_operands_t *operands, uint32_t type, tw_hccl_handle_t *handles)
{
    const void *send = operands->partial.data;
    void *recv = operands->received.data;
    const uint64_t count = (uint64_t)operands->rows_y * operands->c->n;
    handles[0] = operands->c->op == FUSED_MM_REDUCE_SCATTER
                     ? tw_hccl_reduce_scatter(hccl, send, recv, count, type, TW_HCCL_SUM, 0, 1, TW_HCCL_COMMIT)
                     : tw_hccl_all_reduce(hccl, send, recv, count, type, TW_HCCL_SUM, 1, TW_HCCL_COMMIT);
    return 1;
}

static int start_gather(tw_hccl_t *hccl, const fused_operands_t *operands, tw_hccl_handle_t *handles)
{
    const uint64_t count = (uint64_t)operands->rows_x * operands->c->k;
    handles[0] = tw_hccl_all_gather(hccl, operands->x.data, operands->gathered.data, count,
                                    hccl_type(operands->types.x), 0, 1, TW_HCCL_COMMIT);
    if (!operands->types.pertoken)
        return 1;
    handles[1] = tw_hccl_all_gather(hccl, operands->token.data, operands->token_all.data, operands->rows_x,
                                    TW_HCCL_FP32, 0, 1, TW_HCCL_COMMIT);
    return 2;
}

static int start_exchange(tw_hccl_t *hccl, const fused_operands_t *operands, tw_hccl_handle_t *handles)
{
    const bool gathers = fused_op_gathers(operands->c->op), staged = operands->n_moves > 0;
    const fused_tensor_t *product_side = gathers ? &operands->gathered : &operands->partial;
    const fused_tensor_t *inner = staged ? &operands->staged : product_side;
    const void *send = gathers ? operands->x.data : inner->data;
    void *recv = gathers ? inner->data : operands->received.data;
    const uint32_t type = hccl_type(operands->types.x);
    for (int i = 0; i < operands->n_exchanges; i++) {
        const fused_exchange_t *exchange = &operands->exchanges[i];
        handles[i] = tw_hccl_alltoallv(hccl, send, exchange->send_counts, exchange->send_displs, type, recv,
                                       exchange->recv_counts, exchange->recv_displs, type, 1, TW_HCCL_COMMIT);
    }
    return operands->n_exchanges;
}

/* `type` is that of a reduction. */
static bool communicate(tw_hccl_t *hccl, const fused_operands_t *operands, uint32_t type, int *n_tasks)
{
    tw_hccl_handle_t handles[FUSED_EXPERTS_MAX];
    const int op = operands->c->op;
    const int n = fused_op_reduces(op)   ? start_reduction(hccl, operands, type, handles)
                  : fused_op_grouped(op) ? start_exchange(hccl, operands, handles)
                                         : start_gather(hccl, operands, handles);
    *n_tasks += n;
    return wait_all(hccl, handles, n);
}

int fused_call_tasks(const fused_operands_t *operands)
{
    return operands->n_exchanges > 2 ? operands->n_exchanges : 2;
}

/* The int8 wire is as many bytes as a sum of int8. */
bool fused_call_collective(tw_hccl_t *hccl, const fused_operands_t *operands, int *n_tasks)
{
    const bool int8 = operands->plan->wire == TW_WIRE_INT8;
    return communicate(hccl, operands, int8 ? (uint32_t)TW_HCCL_INT8 : hccl_type(operands->types.partial), n_tasks);
}

/* ---- In sequence ------------------------------------------------------------------------------- */

/* Rows from one order into the other. */
static void move_rows(const fused_operands_t *operands)
{
    const bool gathers = fused_op_gathers(operands->c->op);
    const fused_tensor_t *from = gathers ? &operands->staged : &operands->partial;
    const fused_tensor_t *to = gathers ? &operands->gathered : &operands->staged;
    for (int i = 0; i < operands->n_moves; i++) {
        const fused_move_t *move = &operands->moves[i];
        const size_t row = (size_t)from->shape[1] * (from->tensor.dtype.bits / 8);
        memcpy((char *)to->data + move->to * row, (const char *)from->data + move->from * row, move->rows * row);
    }
}

bool fused_call_sequence(tw_comm_t *comm, tw_hccl_t *hccl, const fused_operands_t *operands, int *n_tasks)
{
    const uint32_t type = hccl_type(operands->types.partial);
    if (fused_op_gathers(operands->c->op)) {
        if (!communicate(hccl, operands, type, n_tasks))
            return false;
        move_rows(operands);
        return multiply_all(comm, operands, &operands->partial);
    }
    if (!multiply_all(comm, operands, &operands->partial))
        return false;
    move_rows(operands);
    return communicate(hccl, operands, type, n_tasks);
}
