/* SPDX-License-Identifier: Apache-2.0 */
/* Sums one number over all ranks: tilewire run -n 4 build/examples/hello_allreduce */
#include <stdio.h>
#include <tilewire/hccl.h>

int main(void)
{
    tw_comm_args_t args = TW_COMM_ARGS_INIT; /* env://: whoever started us says which rank we are */
    tw_hccl_core_t core = {.type = TW_HCCL_CORE_AIV};
    tw_comm_t *comm = NULL;
    tw_hccl_context_t *context = NULL;
    tw_hccl_t *hccl = NULL;
    if (tw_comm_create(&args, &comm) || tw_hccl_contexts_create(&comm, 1, &context) || tw_hccl_create(&core, &hccl)) {
        fprintf(stderr, "%s\n", tw_last_error());
        return 1;
    }
    int ranks = tw_comm_size(comm);
    float value = (float)tw_comm_rank(comm) + 1, sum = 0;

    tw_hccl_init(hccl, context, NULL);
    tw_hccl_handle_t task = tw_hccl_all_reduce(hccl, &value, &sum, 1, TW_HCCL_FP32, TW_HCCL_SUM, 1, TW_HCCL_COMMIT);
    int ok = tw_hccl_wait(hccl, task) == 0 && sum == (float)(ranks * (ranks + 1) / 2);
    tw_hccl_finalize(hccl, 1);
    if (tw_comm_rank(comm) == 0)
        printf("1 + 2 + ... + %d over %d ranks = %g: %s\n", ranks, ranks, sum, ok ? "ok" : "WRONG");

    tw_hccl_destroy(hccl);
    tw_hccl_contexts_destroy(&context, 1);
    tw_comm_destroy(comm);
    return ok ? 0 : 1;
}
