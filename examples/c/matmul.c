/* SPDX-License-Identifier: Apache-2.0 */
/* Packs a bf16 weight once and multiplies with it: build/examples/matmul */
#include <stdio.h>
#include <string.h>
#include <tilewire/tilewire.h>

enum { M = 3, K = 64, N = 40 };

/* The upper half of an fp32 is a bf16, without loss if the number is small and whole. */
static uint16_t bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

int main(void)
{
    static uint16_t x[M][K], w[K][N];
    static float y[M][N];
    for (int i = 0; i < M * K; i++)
        x[i / K][i % K] = bf16((float)(i / K + 1));
    for (int i = 0; i < K * N; i++)
        w[i / N][i % N] = bf16((float)(i % N));

    tw_device_t cpu = {.type = TW_DEVICE_CPU};
    int64_t x_shape[] = {M, K}, w_shape[] = {K, N}, y_shape[] = {M, N};
    tw_tensor_t x1 = {.data = x, .device = cpu, .ndim = 2, .dtype = TW_DTYPE_BF16, .shape = x_shape};
    tw_tensor_t x2 = {.data = w, .device = cpu, .ndim = 2, .dtype = TW_DTYPE_BF16, .shape = w_shape};
    tw_tensor_t result = {.data = y, .device = cpu, .ndim = 2, .dtype = TW_DTYPE_FP32, .shape = y_shape};

    tw_weight_t *weight = NULL;
    tw_weight_args_t pack = TW_WEIGHT_ARGS_INIT;
    tw_matmul_args_t product = TW_MATMUL_ARGS_INIT;
    pack.x2 = &x2;
    product.x1 = &x1;
    product.y = &result;
    int failed = tw_weight_pack(&pack, &weight) != TW_OK; /* x2 is not needed afterwards */
    product.weight = weight;
    failed = failed || tw_matmul(NULL, &product) != TW_OK; /* NULL: on this thread */
    if (failed)
        fprintf(stderr, "%s\n", tw_last_error());

    for (int i = 0; i < M * N && !failed; i++)
        failed = y[i / N][i % N] != (float)(K * (i / N + 1) * (i % N));
    printf("%g %g %g ... %g: %s\n", y[0][0], y[0][1], y[0][2], y[M - 1][N - 1], failed ? "WRONG" : "ok");
    tw_weight_release(weight);
    return failed;
}
