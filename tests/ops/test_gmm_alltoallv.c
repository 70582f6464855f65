/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tw_gmm_alltoallv on all world sizes and both transports: every spread of the rows, both transposes, the
 * shared expert, to the bit and within the fp64 bound; and an example worked out by hand.
 */
#define _GNU_SOURCE
#include "ops/ops_grouped.h"

static const uint64_t default_seed = 0x6f7073676d303031u;

TEST_RANKS(values, "1,2,3,4,7,8")(tw_comm_t *comm)
{
    grouped_values(comm, OP_GMM_ALLTOALLV, default_seed);
}

TEST_RANKS(parts, "3")(tw_comm_t *comm)
{
    grouped_parts(comm, OP_GMM_ALLTOALLV, default_seed);
}

TEST_RANKS(large, "2,3,4")(tw_comm_t *comm)
{
    grouped_large(comm, OP_GMM_ALLTOALLV, default_seed);
}

TEST_RANKS(many_experts, "2,4")(tw_comm_t *comm)
{
    grouped_many(comm, OP_GMM_ALLTOALLV, default_seed);
}

/*
 * All rows go to one rank, in many rounds: who receives nothing of the later ones must not stop the others, nor who
 * sends nothing.
 */
static void one_way(tw_comm_t *comm)
{
    panels_random_t random = panels_random(default_seed);
    for (int i = 0; i < 12; i++) {
        op_case_t c = op_sample(OP_GMM_ALLTOALLV, &op_float_types[i % 2], tw_comm_size(comm), (op_shape_t){1024, 8, 16},
                                i, &random);
        c.experts = 1 + i / 4;
        c.m = 1024 / c.experts;
        c.spread = i / 2 % 2 ? OP_TO_LAST : OP_TO_FIRST;
        c.rounds = i % 2 ? TW_ROUNDS_MAX : 40;
        c.shared_k = 0;
        op_try(comm, &c);
    }
}

TEST_RANKS(one_way, "2,3")(tw_comm_t *comm)
{
    one_way(comm);
}

static void one_way_body(tw_comm_t *comm, void *arg)
{
    (void)arg;
    one_way(comm);
}

static void one_way_small(tw_transport_t transport)
{
    ranks_args_t args = RANKS_ARGS_INIT;
    args.transport = transport;
    CHECK_EQ(setenv("TILEWIRE_FUSE_BYTES", "16K", 1), 0);
    ranks_run(&args, one_way_body, NULL);
}

TEST(one_way_small_threads)
{
    one_way_small(TW_TRANSPORT_THREADS);
}
TEST(one_way_small_shm)
{
    one_way_small(TW_TRANSPORT_SHM);
}

/* From the experts back: what arrived there is sent, and what was sent comes. */
TEST_RANKS(example, "2")(tw_comm_t *comm)
{
    const example_t *x = &examples[tw_comm_rank(comm)];
    for (int i = 0; i < MM_LENGTH(op_rounds); i++) {
        mm_view_t gmm_x, weight, y_view;
        uint16_t rows[7], matrices[2], y[5];
        tw_gmm_alltoallv_args_t args = TW_GMM_ALLTOALLV_ARGS_INIT;
        example_halves(x->arrived, x->n_arrived, rows);
        example_halves(x->weights, 2, matrices);
        args.gmm_x = mm_matrix(&gmm_x, rows, TWI_FP16, x->n_arrived, 1);
        args.gmm_weight = mm_view(&weight, matrices, TWI_FP16, 3, (const int64_t[]){2, 1, 1}, NULL);
        args.send_counts = x->in_counts;
        args.recv_counts = x->out_counts;
        args.n_counts = 4;
        args.y = mm_matrix(&y_view, y, TWI_FP16, x->n_tokens, 1);
        args.rounds = op_rounds[i];
        CHECK_OK(tw_gmm_alltoallv(comm, &args));
        example_check("y", y, x->back, x->n_tokens);
    }
}
