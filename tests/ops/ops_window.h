/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_OPS_WINDOW_H
#define TEST_OPS_WINDOW_H
/* Calls whose result is in the window of their rank: nothing else of the window is written. */
#include "ops/ops_sample.h"

enum { WINDOW_ROOM = 2 << 20, WINDOW_FILLING = 0x5a };

/* Bytes from..to-1 have kept their filling. */
static inline void window_check_filling(const char *window, size_t from, size_t to)
{
    if (from < to && window[from] == WINDOW_FILLING && memcmp(window + from, window + from + 1, to - from - 1) == 0)
        return;
    for (size_t i = from; i < to; i++)
        if (window[i] != WINDOW_FILLING)
            test_fail(__FILE__, __LINE__, "byte %zu of the window is written, and is not of y", i);
}

/* What is not y has kept its filling. */
static inline void window_check_rest(const char *window, const mm_rows_t *y, const char *from)
{
    size_t end = 0; /* of the row before */
    for (int64_t i = 0; i < y->rows; i++) {
        const size_t row = (size_t)(from - window) + (size_t)(i * y->ld) * y->item;
        window_check_filling(window, end, row);
        end = row + (size_t)y->columns * y->item;
    }
    window_check_filling(window, end, WINDOW_ROOM);
}

static inline void window_set_y(op_call_t *call, const tw_tensor_t *y)
{
    if (call->what.kind == OP_GMM_ALLTOALLV)
        call->args.combine.y = y;
    else if (call->what.kind == OP_MM_REDUCE_SCATTER)
        call->args.reduce_scatter.y = y;
    else
        call->args.all_reduce.y = y;
}

/* y from the window to where the check looks for it. */
static inline void window_read(op_call_t *call, const char *from)
{
    const mm_rows_t *y = &call->out[OP_Y];
    for (int64_t i = 0; i < y->rows; i++)
        memcpy(y->room.data + (size_t)(i * y->ld) * y->item, from + (size_t)(i * y->ld) * y->item,
               (size_t)y->columns * y->item);
}

/* A call with y in the window, `skip` bytes from its first line; then y is where the check looks for it. */
static inline void window_run(tw_comm_t *comm, op_call_t *call, char *window, size_t skip)
{
    mm_rows_t *y = &call->out[OP_Y];
    tw_tensor_t tensor = y->view.tensor;
    char *from = window + 64 + skip;
    CHECK((size_t)(y->rows * y->ld) * y->item + 128 <= WINDOW_ROOM);
    memset(window, WINDOW_FILLING, WINDOW_ROOM);
    tensor.data = from;
    window_set_y(call, &tensor);
    CHECK_OK(op_call_run(call, comm));
    window_check_rest(window, y, from);
    window_read(call, from);
}

/* Results of any size are worth the help of others, and everybody seems to have a core. */
static inline void window_expect_help(const char *workers)
{
    CHECK_EQ(setenv("TILEWIRE_THREADS", workers, 1), 0);
    CHECK_EQ(setenv("TILEWIRE_STREAM_BYTES", "1K", 1), 0);
    CHECK_EQ(setenv("TILEWIRE_SPIN", "20", 1), 0);
}

/* Multiplies everything, which sends partials, while somebody else has not come. */
static inline tw_op_t *window_begin(op_call_t *call, tw_comm_t *comm)
{
    tw_op_t *op;
    CHECK_OK(op_call_prepare(call, comm, &op));
    CHECK_OK(tw_op_start(op));
    for (int i = 0; i < 200; i++)
        CHECK_EQ(tw_op_test(op), TW_IN_PROGRESS);
    return op;
}

#endif
