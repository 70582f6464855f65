/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tw_alltoallv_gmm on all world sizes and both transports: every spread of the rows, both transposes, the
 * shared expert, with and without the rows themselves, to the bit and within the fp64 bound; and an
 * example worked out by hand.
 */
#define _GNU_SOURCE
#include "ops/ops_grouped.h"

static const uint64_t default_seed = 0x6f7073616d303031u;

TEST_RANKS(values, "1,2,3,4,7,8")(tw_comm_t *comm)
{
    grouped_values(comm, OP_ALLTOALLV_GMM, default_seed);
}

TEST_RANKS(parts, "3")(tw_comm_t *comm)
{
    grouped_parts(comm, OP_ALLTOALLV_GMM, default_seed);
}

TEST_RANKS(large, "2,3,4")(tw_comm_t *comm)
{
    grouped_large(comm, OP_ALLTOALLV_GMM, default_seed);
}

TEST_RANKS(many_experts, "2,4")(tw_comm_t *comm)
{
    grouped_many(comm, OP_ALLTOALLV_GMM, default_seed);
}

/* To the experts: the tokens are sent. */
TEST_RANKS(example, "2")(tw_comm_t *comm)
{
    const example_t *x = &examples[tw_comm_rank(comm)];
    for (int i = 0; i < 2 * MM_LENGTH(op_rounds); i++) {
        mm_view_t gmm_x, weight, y_view, rows_view;
        uint16_t tokens[5], matrices[2], y[7], rows[7];
        tw_alltoallv_gmm_args_t args = TW_ALLTOALLV_GMM_ARGS_INIT;
        example_halves(x->tokens, x->n_tokens, tokens);
        example_halves(x->weights, 2, matrices);
        args.gmm_x = mm_matrix(&gmm_x, tokens, TWI_FP16, x->n_tokens, 1);
        args.gmm_weight = mm_view(&weight, matrices, TWI_FP16, 3, (const int64_t[]){2, 1, 1}, NULL);
        args.send_counts = x->out_counts;
        args.recv_counts = x->in_counts;
        args.n_counts = 4;
        args.gmm_y = mm_matrix(&y_view, y, TWI_FP16, x->n_arrived, 1);
        args.permute_out = i % 2 ? mm_matrix(&rows_view, rows, TWI_FP16, x->n_arrived, 1) : NULL;
        args.rounds = op_rounds[i / 2];
        CHECK_OK(tw_alltoallv_gmm(comm, &args));
        example_check("gmm_y", y, x->products, x->n_arrived);
        if (i % 2)
            example_check("permute_out", rows, x->arrived, x->n_arrived);
    }
}
