/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the rounds of a task read and write: strides, pieces, tasks with one target, and send in recv.
 */
#include <unistd.h>

#include "hccl/hccl_calls.h"

/* ---- Addresses -------------------------------------------------------------------------------- */

/* Element i of the block that src sends to dst in the stride-0 layout: round r reads at (dst + r) * n. */
static void overlap_rounds(tw_comm_t *comm, size_t n)
{
    enum { ROUNDS = 3 };
    const size_t size = (size_t)tw_comm_size(comm), rank = (size_t)tw_comm_rank(comm), all = (size + ROUNDS) * n;
    session_t session;
    session_open(&session, comm);
    int32_t *send = numbers(comm, all);
    int32_t *scattered = poisoned(all), *gathered = poisoned(all), *exchanged = poisoned(all);
    tw_hccl_t *h = session.hccl;
    CHECK_EQ(tw_hccl_reduce_scatter(h, send, scattered, n, TW_HCCL_INT32, 0, 0, ROUNDS, TW_HCCL_COMMIT), 0);
    CHECK_EQ(tw_hccl_all_gather(h, send, gathered, n, TW_HCCL_INT32, 0, ROUNDS, TW_HCCL_COMMIT), 1);
    CHECK_EQ(tw_hccl_alltoall(h, send, exchanged, n, TW_HCCL_INT32, 0, ROUNDS, TW_HCCL_COMMIT), 2);
    CHECK_EQ(tw_hccl_finalize(h, 1), 0);
    for (size_t i = 0; i < ROUNDS * n; i++)
        CHECK_EQ(scattered[i], sum((int)size, rank * n + i)); /* (rank + i / n) * n + i % n */
    check_poison(scattered, ROUNDS * n, all - ROUNDS * n);
    for (size_t i = 0; i < (size + ROUNDS - 1) * n; i++) { /* the last round that wrote a place wins */
        const size_t block = i / n, round = block < ROUNDS - 1 ? block : ROUNDS - 1, src = block - round;
        CHECK_EQ(gathered[i], value((int)src, round * n + i % n));
        CHECK_EQ(exchanged[i], value((int)src, (rank + round) * n + i % n));
    }
    check_poison(gathered, (size + ROUNDS - 1) * n, n);
    check_poison(exchanged, (size + ROUNDS - 1) * n, n);
    session_drop(&session);
    free(send);
    free(scattered);
    free(gathered);
    free(exchanged);
}

TEST_RANKS(stride_0_with_repeat, "1,2,3")(tw_comm_t *comm)
{
    overlap_rounds(comm, SMALL);
    overlap_rounds(comm, LARGE / 5);
}

/* One reduce-scatter of 300, cut as 128 + 128 (two rounds) + 44, all with stride 300. */
TEST_RANKS(pieces_equal_whole, "1,2,4")(tw_comm_t *comm)
{
    const size_t size = (size_t)tw_comm_size(comm), rank = (size_t)tw_comm_rank(comm);
    session_t session;
    session_open(&session, comm);
    tw_hccl_t *h = session.hccl;
    int32_t *send = numbers(comm, 300 * size);
    int32_t *recv = poisoned(300);
    CHECK_EQ(tw_hccl_reduce_scatter(h, send, recv, 128, TW_HCCL_INT32, 0, 300, 2, TW_HCCL_COMMIT), 0);
    CHECK_EQ(tw_hccl_reduce_scatter(h, send + 256, recv + 256, 44, TW_HCCL_INT32, 0, 300, 1, TW_HCCL_COMMIT), 1);
    CHECK_EQ(tw_hccl_wait(h, 0), 0);
    CHECK_EQ(tw_hccl_wait(h, 0), 0);
    CHECK_EQ(tw_hccl_wait(h, 1), 0);
    for (size_t i = 0; i < 300; i++)
        CHECK_EQ(recv[i], sum((int)size, rank * 300 + i));
    session_close(&session);
    free(send);
    free(recv);
}

/* Many tasks write the same place, all committed before the first wait: the last one stays. */
static void last_stays(tw_comm_t *comm, size_t n)
{
    enum { TASKS = 20 };
    const int size = tw_comm_size(comm);
    session_t session;
    session_open(&session, comm);
    int32_t *send = poisoned(TASKS * n);
    int32_t *recv = poisoned(n);
    for (size_t i = 0; i < TASKS * n; i++)
        send[i] = (int32_t)(i / n);
    for (size_t t = 0; t < TASKS; t++)
        CHECK_EQ(tw_hccl_all_reduce(session.hccl, send + t * n, recv, n, TW_HCCL_INT32, 0, 1, TW_HCCL_COMMIT), (int)t);
    if (tw_comm_rank(comm) == 0)
        (void)usleep(2000); /* the others are ahead, if they can be */
    CHECK_EQ(tw_hccl_wait(session.hccl, TASKS - 1), 0);
    for (size_t i = 0; i < n; i++)
        CHECK_EQ(recv[i], (TASKS - 1) * size);
    session_close(&session);
    free(send);
    free(recv);
}

TEST_RANKS(last_writer_stays, "1,2,3")(tw_comm_t *comm)
{
    last_stays(comm, SMALL);
    last_stays(comm, LARGE / 20);
}

/* ---- Aliasing --------------------------------------------------------------------------------- */

static void in_place(tw_comm_t *comm, size_t n)
{
    enum { ROUNDS = 2 };
    const size_t size = (size_t)tw_comm_size(comm), rank = (size_t)tw_comm_rank(comm), stride = ROUNDS * n;
    session_t session;
    session_open(&session, comm);
    tw_hccl_t *h = session.hccl;
    int32_t *reduce = numbers(comm, stride);
    int32_t *gather = poisoned(size * stride);
    int32_t *exchange = numbers(comm, size * stride);
    for (size_t i = 0; i < stride; i++)
        gather[rank * stride + i] = value((int)rank, i);
    CHECK_EQ(tw_hccl_all_reduce(h, reduce, reduce, n, TW_HCCL_INT32, 0, ROUNDS, TW_HCCL_COMMIT), 0);
    int32_t *own = gather + rank * stride;
    CHECK_EQ(tw_hccl_all_gather(h, own, gather, n, TW_HCCL_INT32, stride, ROUNDS, TW_HCCL_COMMIT), 1);
    CHECK_EQ(tw_hccl_alltoall(h, exchange, exchange, n, TW_HCCL_INT32, stride, ROUNDS, TW_HCCL_COMMIT), 2);
    CHECK_EQ(tw_hccl_finalize(h, 1), 0);
    check_sums(comm, reduce, 0, stride);
    for (size_t i = 0; i < size * stride; i++) {
        CHECK_EQ(gather[i], value((int)(i / stride), i % stride));
        CHECK_EQ(exchange[i], value((int)(i / stride), rank * stride + i % stride));
    }
    session_drop(&session);
    free(reduce);
    free(gather);
    free(exchange);
}

TEST_RANKS(send_is_recv, "1,2,3,4")(tw_comm_t *comm)
{
    in_place(comm, SMALL);
    in_place(comm, LARGE);
}

static void skip_own(tw_comm_t *comm, size_t n)
{
    static const uint32_t kinds[] = {TW_HCCL_CMD_ALLGATHER, TW_HCCL_CMD_ALLTOALL};
    const size_t size = (size_t)tw_comm_size(comm), rank = (size_t)tw_comm_rank(comm);
    session_t session;
    open_bare(&session, comm);
    for (size_t k = 0; k < 2; k++) {
        tw_hccl_tiling_args_t args = TW_HCCL_TILING_ARGS_INIT;
        args.group_name = tw_comm_name(comm);
        args.op_type = kinds[k];
        args.skip_local_rank_copy = 1;
        CHECK_OK(tw_hccl_tiling(&args, NULL, &session.tiling.cc[k == 0 ? 1 : 3])); /* their places in session.c */
    }
    session_init(&session, session.hccl);
    int32_t *send = numbers(comm, size * n), *gathered = poisoned(size * n), *exchanged = poisoned(size * n);
    CHECK_EQ(tw_hccl_all_gather(session.hccl, send, gathered, n, TW_HCCL_INT32, 0, 1, TW_HCCL_COMMIT), 0);
    CHECK_EQ(tw_hccl_alltoall(session.hccl, send, exchanged, n, TW_HCCL_INT32, 0, 1, TW_HCCL_COMMIT), 1);
    session_close(&session);
    for (size_t i = 0; i < size * n; i++) {
        CHECK_EQ(gathered[i], i / n == rank ? (int32_t)POISON : value((int)(i / n), i % n));
        CHECK_EQ(exchanged[i], i / n == rank ? (int32_t)POISON : value((int)(i / n), rank * n + i % n));
    }
    free(send);
    free(gathered);
    free(exchanged);
}

TEST_RANKS(skip_local_rank_copy, "1,2,3")(tw_comm_t *comm)
{
    skip_own(comm, SMALL);
    skip_own(comm, LARGE);
}
