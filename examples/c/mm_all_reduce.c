/* SPDX-License-Identifier: Apache-2.0 */
/* y = the sum over all ranks of x * w, in bf16: tilewire run -n 2 build/examples/mm_all_reduce */
#include <stdio.h>
#include <tilewire/tilewire.h>

static uint16_t x[64 * 32] = {0x3f80}, w[32 * 96] = {0x4000}, y[64 * 96]; /* 1 and 2, then zeros */

static tw_tensor_t matrix(uint16_t *data, int64_t *shape)
{
    return (tw_tensor_t){.data = data, .device = {TW_DEVICE_CPU, 0}, .ndim = 2, .dtype = TW_DTYPE_BF16, .shape = shape};
}

int main(void)
{
    tw_tensor_t x1 = matrix(x, (int64_t[]){64, 32}), x2 = matrix(w, (int64_t[]){32, 96});
    tw_tensor_t sum = matrix(y, (int64_t[]){64, 96});
    tw_mm_all_reduce_args_t args = TW_MM_ALL_REDUCE_ARGS_INIT;
    args.x1 = &x1, args.x2 = &x2, args.y = &sum;
    tw_comm_args_t comm_args = TW_COMM_ARGS_INIT; /* env://: whoever started us says which rank we are */
    tw_comm_t *comm = NULL;
    const int failed = tw_comm_create(&comm_args, &comm) || tw_mm_all_reduce(comm, &args);
    if (failed)
        fprintf(stderr, "%s\n", tw_last_error());
    else if (tw_comm_rank(comm) == 0)
        printf("1 x 2, summed over %d ranks, is 0x%04x in bf16 (4 is 0x4080)\n", tw_comm_size(comm), (unsigned)y[0]);
    tw_comm_destroy(comm);
    return failed;
}
