/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Splits the ranks into even and odd ones, sums inside each half, then over everybody:
 *     tilewire run -n 4 build/examples/subgroups
 */
#include <stdio.h>
#include <tilewire/hccl.h>

/* The sum of `value` over the ranks of `comm`, through one kernel-side session. */
static int all_sum(tw_comm_t *comm, float value, float *sum_out)
{
    tw_hccl_core_t core = {.type = TW_HCCL_CORE_AIV};
    tw_hccl_context_t *context = NULL;
    tw_hccl_t *hccl = NULL;
    if (tw_hccl_contexts_create(&comm, 1, &context))
        return -1;
    int result = -1;
    if (tw_hccl_create(&core, &hccl) == TW_OK && tw_hccl_init(hccl, context, NULL) == 0) {
        tw_hccl_handle_t task =
            tw_hccl_all_reduce(hccl, &value, sum_out, 1, TW_HCCL_FP32, TW_HCCL_SUM, 1, TW_HCCL_COMMIT);
        result = tw_hccl_wait(hccl, task);
        tw_hccl_finalize(hccl, 1);
    }
    tw_hccl_destroy(hccl);
    tw_hccl_contexts_destroy(&context, 1);
    return result;
}

static int run(tw_comm_t *world)
{
    int rank = tw_comm_rank(world), size = tw_comm_size(world), color = rank % 2;
    float expected = 0, half_sum = 0, wrong = 0;
    for (int r = color; r < size; r += 2)
        expected += (float)r;

    tw_comm_t *half = NULL;
    if (tw_comm_split(world, color, rank, color ? "odd" : "even", &half))
        return 1;
    int failed = all_sum(half, (float)rank, &half_sum) != 0 || half_sum != expected;
    if (rank == 0)
        printf("ranks 0, 2, ... are \"%s\": %d of %d ranks, sum %g\n", tw_comm_name(half), tw_comm_size(half), size,
               half_sum);
    tw_comm_destroy(half);

    if (all_sum(world, (float)failed, &wrong) != 0)
        return 1;
    if (rank == 0)
        printf("both halves: %s\n", wrong == 0 ? "ok" : "WRONG");
    return wrong != 0;
}

int main(void)
{
    tw_comm_args_t args = TW_COMM_ARGS_INIT;
    tw_comm_t *world = NULL;
    int failed = tw_comm_create(&args, &world) != TW_OK || run(world) != 0;
    if (failed)
        fprintf(stderr, "subgroups: %s\n", tw_last_error());
    tw_comm_destroy(world);
    return failed;
}
