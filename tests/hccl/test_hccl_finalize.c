/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a session ends: with everything done, with tasks still running, and with tasks that nobody committed.
 */
#include "hccl/hccl_calls.h"

TEST_RANKS(finalize_completes, "1,2,4")(tw_comm_t *comm)
{
    session_t session;
    session_open(&session, comm);
    int32_t *send = numbers(comm, LARGE);
    int32_t *recv = poisoned(2 * LARGE);
    CHECK_EQ(tw_hccl_all_reduce(session.hccl, send, recv, LARGE, TW_HCCL_INT32, TW_HCCL_SUM, 1, TW_HCCL_COMMIT), 0);
    CHECK_EQ(simple(session.hccl, send, recv + LARGE, TW_HCCL_COMMIT), 1);
    CHECK_EQ(tw_hccl_finalize(session.hccl, 1), 0);
    check_sums(comm, recv, 0, LARGE);
    CHECK_EQ(memcmp(recv, recv + LARGE, SMALL * sizeof *recv), 0);
    CHECK_EQ(tw_hccl_finalize(session.hccl, 1), 0); /* again: nothing left to do */
    REFUSED(simple(session.hccl, send, recv, 0), "Finalize");
    tw_hccl_commit(session.hccl, 0);
    session_drop(&session);
    works(comm);
    free(send);
    free(recv);
}

/* sync 0: Finalize returns at once; a later session comes after the tasks of this one. */
TEST_RANKS(finalize_without_sync, "1,2,3")(tw_comm_t *comm)
{
    int32_t *send = numbers(comm, LARGE);
    int32_t *recv = poisoned(LARGE);
    session_t session;
    session_open(&session, comm);
    CHECK_EQ(tw_hccl_all_reduce(session.hccl, send, recv, LARGE, TW_HCCL_INT32, TW_HCCL_SUM, 1, TW_HCCL_COMMIT), 0);
    CHECK_EQ(tw_hccl_finalize(session.hccl, 0), 0);
    session_drop(&session);
    works(comm);
    check_sums(comm, recv, 0, LARGE);
    free(send);
    free(recv);
}

/*
 * A batch that waits behind an unfinished task when its context goes away: the engine still owns it.
 * Rank 0 is through with its session before the others have committed.
 */
TEST_RANKS(batch_outlives_its_context, "2,3")(tw_comm_t *comm)
{
    const int rank = tw_comm_rank(comm);
    int32_t *send = numbers(comm, LARGE);
    int32_t *recv = poisoned(LARGE);
    session_t session;
    session_open(&session, comm);
    uint64_t *window = tw_hccl_window_in(session.hccl, (uint32_t)rank);
    const tw_hccl_batch_item_t item = {.local = (uint64_t)(uintptr_t)send,
                                       .remote = (uint64_t)(uintptr_t)window,
                                       .count = 2,
                                       .type = TW_HCCL_INT32,
                                       .remote_rank = (uint32_t)rank};
    CHECK_EQ(tw_hccl_all_reduce(session.hccl, send, recv, LARGE, TW_HCCL_INT32, TW_HCCL_SUM, 1, 0), 0);
    if (rank != 0)
        ranks_barrier();
    tw_hccl_commit(session.hccl, 0);
    CHECK_EQ(tw_hccl_batch_write(session.hccl, &item, 1, 0), 1);
    CHECK_EQ(tw_hccl_finalize(session.hccl, 0), 0);
    session_drop(&session);
    if (rank == 0)
        ranks_barrier();
    CHECK_OK(tw_comm_barrier(comm));
    check_sums(comm, recv, 0, LARGE);
    CHECK_EQ(memcmp(window, send, 2 * sizeof *send), 0);
    free(send);
    free(recv);
}

/* Rank 0 ends its session with `missing` of 3 rounds uncommitted; the others committed all. */
static void cancel(tw_comm_t *comm, size_t count, int committed)
{
    session_t session;
    session_open(&session, comm);
    int32_t *send = numbers(comm, 3 * count);
    int32_t *recv = poisoned(4 * count);
    const int rank = tw_comm_rank(comm);
    CHECK_EQ(tw_hccl_all_reduce(session.hccl, send, recv, count, TW_HCCL_INT32, TW_HCCL_SUM, 3, 0), 0);
    CHECK_EQ(tw_hccl_all_reduce(session.hccl, send, recv + 3 * count, count, TW_HCCL_INT32, TW_HCCL_SUM, 1, 0), 1);
    for (int i = 0; i < (rank == 0 ? committed : 3); i++)
        tw_hccl_commit(session.hccl, 0);
    tw_hccl_commit(session.hccl, 1);
    for (int i = 0; i < committed; i++)
        CHECK_EQ(tw_hccl_wait(session.hccl, 0), 0);
    if (rank == 0) {
        CHECK_EQ(tw_hccl_finalize(session.hccl, 1), 0);
    } else {
        REFUSED(tw_hccl_wait(session.hccl, 0), "rank 0");
        CHECK_EQ(tw_hccl_wait(session.hccl, 1), 0); /* the task behind it is whole */
        (void)tw_hccl_finalize(session.hccl, 1);
    }
    check_sums(comm, recv, 0, (size_t)committed * count);
    check_poison(recv, (size_t)committed * count, (size_t)(3 - committed) * count);
    for (size_t i = 0; i < count; i++)
        CHECK_EQ(recv[3 * count + i], sum(tw_comm_size(comm), i));
    session_drop(&session);
    works(comm);
    CHECK_OK(tw_comm_status(comm));
    free(send);
    free(recv);
}

TEST_RANKS(finalize_cancels, "1,2,3")(tw_comm_t *comm)
{
    for (int committed = 0; committed < 3; committed++) {
        cancel(comm, SMALL, committed);
        cancel(comm, LARGE, committed);
    }
}

/* Nobody commits: every Finalize returns, and the next session works. */
TEST_RANKS(finalize_cancels_all, "1,2,3")(tw_comm_t *comm)
{
    session_t session;
    session_open(&session, comm);
    int32_t *send = numbers(comm, SMALL);
    int32_t *recv = poisoned(SMALL);
    for (int i = 0; i < TW_HCCL_MAX_TASKS; i++)
        CHECK_EQ(simple(session.hccl, send, recv, 0), i);
    session_close(&session);
    check_poison(recv, 0, SMALL);
    works(comm);
    free(send);
    free(recv);
}
