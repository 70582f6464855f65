/* SPDX-License-Identifier: Apache-2.0 */
/* The fused operators as the library is called for them, one function each. */
#include "bench_fused.h"

const char *const fused_op_names[] = {"mm_reduce_scatter", "mm_all_reduce", "all_gather_mm",
                                      "gmm_alltoallv",     "alltoallv_gmm", NULL};

bool fused_op_gathers(int op)
{
    return op == FUSED_ALL_GATHER_MM || op == FUSED_ALLTOALLV_GMM;
}

bool fused_op_grouped(int op)
{
    return op == FUSED_GMM_ALLTOALLV || op == FUSED_ALLTOALLV_GMM;
}

bool fused_op_reduces(int op)
{
    return op == FUSED_MM_REDUCE_SCATTER || op == FUSED_MM_ALL_REDUCE;
}

/* NULL if it was not made. */
static const tw_tensor_t *given(const fused_tensor_t *tensor)
{
    return tensor->data != NULL ? &tensor->tensor : NULL;
}

static tw_status_t prepare_reduce_scatter(tw_comm_t *comm, const fused_operands_t *operands, tw_op_t **op_out)
{
    tw_mm_reduce_scatter_args_t args = TW_MM_REDUCE_SCATTER_ARGS_INIT;
    args.x1 = &operands->x.tensor;
    args.weight = operands->weight;
    args.y = &operands->y.tensor;
    args.x1_scale = given(&operands->token);
    args.x2_scale = given(&operands->scale);
    args.wire = (tw_wire_t)operands->plan->wire;
    args.rounds = operands->plan->rounds;
    return tw_mm_reduce_scatter_prepare(comm, &args, op_out);
}

static tw_status_t prepare_all_reduce(tw_comm_t *comm, const fused_operands_t *operands, tw_op_t **op_out)
{
    tw_mm_all_reduce_args_t args = TW_MM_ALL_REDUCE_ARGS_INIT;
    args.x1 = &operands->x.tensor;
    args.weight = operands->weight;
    args.y = &operands->y.tensor;
    args.dequant_scale = operands->types.int8 ? &operands->scale.tensor : NULL;
    args.pertoken_scale = given(&operands->token);
    args.comm_quant_scale_1 = given(&operands->comm_1);
    args.comm_quant_scale_2 = given(&operands->comm_2);
    args.wire = (tw_wire_t)operands->plan->wire;
    args.rounds = operands->plan->rounds;
    return tw_mm_all_reduce_prepare(comm, &args, op_out);
}

static tw_status_t prepare_all_gather(tw_comm_t *comm, const fused_operands_t *operands, tw_op_t **op_out)
{
    tw_all_gather_mm_args_t args = TW_ALL_GATHER_MM_ARGS_INIT;
    args.x1 = &operands->x.tensor;
    args.weight = operands->weight;
    args.y = &operands->y.tensor;
    args.x1_scale = given(&operands->token);
    args.x2_scale = given(&operands->scale);
    args.rounds = operands->plan->rounds;
    return tw_all_gather_mm_prepare(comm, &args, op_out);
}

static tw_status_t prepare_gmm_alltoallv(tw_comm_t *comm, const fused_operands_t *operands, tw_op_t **op_out)
{
    tw_gmm_alltoallv_args_t args = TW_GMM_ALLTOALLV_ARGS_INIT;
    args.gmm_x = &operands->x.tensor;
    args.gmm_packed = operands->weight;
    args.send_counts = operands->send_counts;
    args.recv_counts = operands->recv_counts;
    args.n_counts = (int64_t)operands->plan->ranks * operands->c->experts;
    args.mm_x = given(&operands->mm_x);
    args.mm_packed = operands->mm_weight;
    args.y = &operands->y.tensor;
    args.mm_y = given(&operands->mm_y);
    args.rounds = operands->plan->rounds;
    return tw_gmm_alltoallv_prepare(comm, &args, op_out);
}

static tw_status_t prepare_alltoallv_gmm(tw_comm_t *comm, const fused_operands_t *operands, tw_op_t **op_out)
{
    tw_alltoallv_gmm_args_t args = TW_ALLTOALLV_GMM_ARGS_INIT;
    args.gmm_x = &operands->x.tensor;
    args.gmm_packed = operands->weight;
    args.send_counts = operands->send_counts;
    args.recv_counts = operands->recv_counts;
    args.n_counts = (int64_t)operands->plan->ranks * operands->c->experts;
    args.mm_x = given(&operands->mm_x);
    args.mm_packed = operands->mm_weight;
    args.gmm_y = &operands->y.tensor;
    args.mm_y = given(&operands->mm_y);
    args.rounds = operands->plan->rounds;
    return tw_alltoallv_gmm_prepare(comm, &args, op_out);
}

bool fused_prepare(tw_comm_t *comm, const fused_operands_t *operands, tw_op_t **op_out)
{
    static tw_status_t (*const prepare[FUSED_OPS])(tw_comm_t *, const fused_operands_t *, tw_op_t **) = {
        [FUSED_MM_REDUCE_SCATTER] = prepare_reduce_scatter, [FUSED_MM_ALL_REDUCE] = prepare_all_reduce,
        [FUSED_ALL_GATHER_MM] = prepare_all_gather,         [FUSED_GMM_ALLTOALLV] = prepare_gmm_alltoallv,
        [FUSED_ALLTOALLV_GMM] = prepare_alltoallv_gmm,
    };
    return prepare[operands->c->op](comm, operands, op_out) == TW_OK;
}
