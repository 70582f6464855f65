/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Corners of the operators: not fused and too large for the slots, scales of rows on some ranks only, and peers that
 * die, abort or are silent while the others only test, or wait with a limit.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "harness/test.h"

static tw_tensor_t matrix(void *data, tw_dtype_t dtype, int64_t *shape, int ndim)
{
    return (tw_tensor_t){.data = data, .device = {TW_DEVICE_CPU, 0}, .ndim = ndim, .dtype = dtype, .shape = shape};
}

static const tw_dtype_t bf16 = TW_DTYPE_BF16, int8 = TW_DTYPE_INT8, fp32 = TW_DTYPE_FP32;

/* ---- Rounds ------------------------------------------------------------------------------------- */

/* x1 and x2 of ones: every element of y is k times the number of ranks. */
static void ones(uint16_t *to, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = 0x3f80;
}

TEST_RANKS(unfused_in_small_slots, "2,3")(tw_comm_t *comm)
{
    enum { M = 48, K = 2, N = 700 };
    const int size = tw_comm_size(comm);
    uint16_t *x1 = malloc(M * K * 2), *x2 = malloc(K * N * 2), *y = calloc(M * N, 2);
    ones(x1, M * K);
    ones(x2, K * N);
    const tw_tensor_t tx1 = matrix(x1, bf16, (int64_t[]){M, K}, 2), tx2 = matrix(x2, bf16, (int64_t[]){K, N}, 2);
    const tw_tensor_t all = matrix(y, bf16, (int64_t[]){M, N}, 2), own = matrix(y, bf16, (int64_t[]){M / size, N}, 2);
    for (int wire = TW_WIRE_OUT; wire <= TW_WIRE_F32; wire++) {
        tw_mm_reduce_scatter_args_t scatter = TW_MM_REDUCE_SCATTER_ARGS_INIT;
        scatter.x1 = &tx1;
        scatter.x2 = &tx2;
        scatter.y = &own;
        scatter.wire = (tw_wire_t)wire;
        scatter.rounds = TW_ROUNDS_UNFUSED;
        CHECK_OK(tw_mm_reduce_scatter(comm, &scatter));
        CHECK_EQ(y[0], size == 2 ? 0x4080 : 0x40c0); /* 4, 6 */
        tw_mm_all_reduce_args_t reduce = TW_MM_ALL_REDUCE_ARGS_INIT;
        reduce.x1 = &tx1;
        reduce.x2 = &tx2;
        reduce.y = &all;
        reduce.wire = (tw_wire_t)wire;
        reduce.rounds = TW_ROUNDS_UNFUSED;
        CHECK_OK(tw_mm_all_reduce(comm, &reduce));
        CHECK_EQ(y[M * N - 1], size == 2 ? 0x4080 : 0x40c0);
    }
    free(x1);
    free(x2);
    free(y);
}

/* Before the library reads its settings, in all programs and cases of this file. */
__attribute__((constructor)) static void small_slots(void)
{
    (void)setenv("TILEWIRE_FUSE_BYTES", "16K", 1);
}

/* Rows that lie in one place are as many as one likes; without columns they are no work. */
TEST_RANKS(many_rows_without_columns, "1,2")(tw_comm_t *comm)
{
    const int64_t m = INT64_C(1) << 50;
    uint16_t x1[4] = {0}, x2[1] = {0}, y[1] = {0};
    tw_tensor_t tx1 = matrix(x1, bf16, (int64_t[]){m, 4}, 2);
    tx1.strides = (int64_t[]){0, 1};
    const tw_tensor_t tx2 = matrix(x2, bf16, (int64_t[]){4, 0}, 2);
    const tw_tensor_t own = matrix(y, bf16, (int64_t[]){m / tw_comm_size(comm), 0}, 2);
    for (int rounds = TW_ROUNDS_UNFUSED; rounds <= 1; rounds++) {
        tw_mm_reduce_scatter_args_t scatter = TW_MM_REDUCE_SCATTER_ARGS_INIT;
        scatter.x1 = &tx1;
        scatter.x2 = &tx2;
        scatter.y = &own;
        scatter.rounds = rounds;
        CHECK_OK(tw_mm_reduce_scatter(comm, &scatter));
    }
}

/* ---- Agreement ---------------------------------------------------------------------------------- */

TEST_RANKS(scales_on_one_rank, "2,3")(tw_comm_t *comm)
{
    enum { M = 8, SIDE = 16, RANKS = 3 };
    static _Thread_local int8_t x1[M * SIDE], x2[SIDE * SIDE];
    static _Thread_local float row_scale[M], scale[1] = {1};
    static _Thread_local uint16_t y[RANKS * M * SIDE];
    const tw_tensor_t tx1 = matrix(x1, int8, (int64_t[]){M, SIDE}, 2);
    const tw_tensor_t tx2 = matrix(x2, int8, (int64_t[]){SIDE, SIDE}, 2);
    const tw_tensor_t rows = matrix(row_scale, fp32, (int64_t[]){M}, 1), one = matrix(scale, fp32, (int64_t[]){1}, 1);
    const tw_tensor_t ty = matrix(y, bf16, (int64_t[]){tw_comm_size(comm) * M, SIDE}, 2);
    tw_all_gather_mm_args_t args = TW_ALL_GATHER_MM_ARGS_INIT;
    args.x1 = &tx1;
    args.x2 = &tx2;
    args.y = &ty;
    args.x2_scale = &one;
    args.x1_scale = tw_comm_rank(comm) == 0 ? &rows : NULL;
    CHECK_STATUS(tw_all_gather_mm(comm, &args), TW_ERR_DIVERGED);
    CHECK_CONTAINS(tw_last_error(), "x1_scale");
}

/* ---- Looking without waiting -------------------------------------------------------------------- */

typedef enum fault { KILLED, ABORTED, SILENT } fault_t;

typedef struct scene {
    fault_t fault;
    uint64_t limit_ns; /* of a wait; 0: tests */
    tw_status_t expected;
} scene_t;

static void look(tw_comm_t *comm, void *arg)
{
    const scene_t *scene = arg;
    static uint16_t x1[16 * 4], x2[4 * 8], y[16 * 8];
    const tw_tensor_t tx1 = matrix(x1, bf16, (int64_t[]){16, 4}, 2), tx2 = matrix(x2, bf16, (int64_t[]){4, 8}, 2);
    const tw_tensor_t ty = matrix(y, bf16, (int64_t[]){16, 8}, 2);
    tw_mm_all_reduce_args_t args = TW_MM_ALL_REDUCE_ARGS_INIT;
    args.x1 = &tx1;
    args.x2 = &tx2;
    args.y = &ty;
    tw_op_t *op = NULL;
    CHECK_OK(tw_mm_all_reduce_prepare(comm, &args, &op));
    if (tw_comm_rank(comm) == 1) {
        if (scene->fault == KILLED)
            (void)kill(getpid(), SIGKILL);
        if (scene->fault == ABORTED)
            tw_comm_abort(comm, "enough");
        while (scene->fault == SILENT) /* until the others are done, and it is killed */
            (void)pause();
        tw_op_release(op);
        return;
    }
    CHECK_OK(tw_op_start(op));
    tw_status_t status = TW_IN_PROGRESS;
    while (status == TW_IN_PROGRESS)
        status = scene->limit_ns > 0 ? tw_op_wait(op, scene->limit_ns) : tw_op_test(op);
    CHECK_EQ(status, scene->expected);
    tw_op_release(op);
}

static void try_looks(fault_t fault, tw_status_t expected)
{
    static const uint64_t limits[] = {0, 20000000u};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        ranks_args_t args = RANKS_ARGS_INIT;
        scene_t scene = {fault, limits[i], expected};
        args.victim = 1;
        args.timeout_ns = args.enter_timeout_ns = test_scale_ns(fault == SILENT ? 300000000u : 10000000000u);
        ranks_run(&args, look, &scene);
    }
}

TEST(killed_while_looked_at)
{
    try_looks(KILLED, TW_ERR_PEER_DEAD);
}

TEST(aborted_while_looked_at)
{
    try_looks(ABORTED, TW_ERR_ABORTED);
}

TEST(silent_while_looked_at)
{
    try_looks(SILENT, TW_ERR_TIMEOUT);
}
