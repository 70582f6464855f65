/* SPDX-License-Identifier: Apache-2.0 */
/* y = the sum over all ranks of x * w, in bf16: tilewire run -n 2 build/examples/mm_all_reduce */
#include <stdio.h>
#include <string.h>
#include <tilewire/tilewire.h>

enum { M = 64, K = 32, N = 96 };

static tw_tensor_t matrix(void *data, int64_t *shape)
{
    return (tw_tensor_t){
        .data = data, .device = {.type = TW_DEVICE_CPU}, .ndim = 2, .dtype = TW_DTYPE_BF16, .shape = shape};
}

static float from_bf16(uint16_t value) /* the upper half of an fp32 */
{
    uint32_t bits = (uint32_t)value << 16;
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

int main(void)
{
    static uint16_t x[M * K], w[K * N], y[M * N];
    for (int i = 0; i < M * K; i++)
        x[i] = 0x3f80; /* 1 */
    for (int i = 0; i < K * N; i++)
        w[i] = 0x4000; /* 2 */
    tw_tensor_t x1 = matrix(x, (int64_t[]){M, K}), x2 = matrix(w, (int64_t[]){K, N}),
                sum = matrix(y, (int64_t[]){M, N});

    tw_comm_args_t comm_args = TW_COMM_ARGS_INIT; /* env://: whoever started us says which rank we are */
    tw_mm_all_reduce_args_t args = TW_MM_ALL_REDUCE_ARGS_INIT;
    tw_comm_t *comm = NULL;
    args.x1 = &x1;
    args.x2 = &x2;
    args.y = &sum;
    int failed = tw_comm_create(&comm_args, &comm) || tw_mm_all_reduce(comm, &args);
    if (failed)
        fprintf(stderr, "%s\n", tw_last_error());

    for (int i = 0; i < M * N && !failed; i++)
        failed = from_bf16(y[i]) != (float)(2 * K * tw_comm_size(comm));
    if (tw_comm_rank(comm) == 0)
        printf("%d x %d x %d, summed over %d ranks: %s\n", M, K, N, tw_comm_size(comm), failed ? "WRONG" : "ok");
    tw_comm_destroy(comm);
    return failed;
}
