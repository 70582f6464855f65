/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commit, Wait and Query in every order that is allowed, those that are not, and the limit of tasks.
 */
#include "hccl/hccl_calls.h"

/* ---- Commit, Wait, Query ---------------------------------------------------------------------- */

TEST_RANKS(wait_never_blocks_uncommitted, "1,2")(tw_comm_t *comm)
{
    session_t session;
    session_open(&session, comm);
    tw_hccl_t *hccl = session.hccl;
    int32_t *send = numbers(comm, 3 * SMALL);
    int32_t *recv = poisoned(3 * SMALL);
    CHECK_EQ(tw_hccl_all_reduce(hccl, send, recv, SMALL, TW_HCCL_INT32, TW_HCCL_SUM, 3, 0), 0);
    REFUSED(tw_hccl_wait(hccl, 0), "handle 0");
    CHECK_EQ(tw_hccl_query(hccl, 0), 0);
    for (size_t i = 0; i < 3; i++) {
        tw_hccl_commit(hccl, 0);
        CHECK_EQ(tw_hccl_wait(hccl, 0), 0);
        check_sums(comm, recv, i * SMALL, SMALL);
        CHECK_EQ(tw_hccl_query(hccl, 0), (int)i + 1);
        REFUSED(tw_hccl_wait(hccl, 0), "handle 0");
    }
    for (int i = 0; i < 5; i++)
        tw_hccl_commit(hccl, 0); /* surplus */
    REFUSED(tw_hccl_wait(hccl, 0), "handle 0");
    CHECK_EQ(tw_hccl_query(hccl, 0), 3);
    session_close(&session);
    free(send);
    free(recv);
}

TEST_RANKS(bad_handles, "1,2")(tw_comm_t *comm)
{
    static const tw_hccl_handle_t bad[] = {-128, -2, -1, 1, 2, 62, 63, 64, 127};
    session_t session;
    session_open(&session, comm);
    int32_t *send = numbers(comm, SMALL);
    int32_t *recv = poisoned(SMALL);
    CHECK_EQ(simple(session.hccl, send, recv, 0), 0);
    for (size_t i = 0; i < sizeof bad; i++) {
        tw_hccl_commit(session.hccl, bad[i]);
        REFUSED(tw_hccl_wait(session.hccl, bad[i]), "handle");
        REFUSED(tw_hccl_query(session.hccl, bad[i]), "handle");
    }
    tw_hccl_commit(session.hccl, 0);
    CHECK_EQ(tw_hccl_wait(session.hccl, 0), 0);
    check_sums(comm, recv, 0, SMALL);
    session_close(&session);
    free(send);
    free(recv);
}

/* Surplus commits of one task must not count for another, nor let it run before its time. */
TEST_RANKS(surplus_commits, "1,3")(tw_comm_t *comm)
{
    session_t session;
    session_open(&session, comm);
    int32_t *send = numbers(comm, SMALL);
    int32_t *recv = poisoned(2 * SMALL);
    CHECK_EQ(simple(session.hccl, send, recv, TW_HCCL_COMMIT), 0);
    CHECK_EQ(simple(session.hccl, send, recv + SMALL, 0), 1);
    for (int i = 0; i < 300; i++)
        tw_hccl_commit(session.hccl, 0);
    CHECK_EQ(tw_hccl_wait(session.hccl, 0), 0);
    CHECK_EQ(tw_hccl_query(session.hccl, 1), 0);
    check_poison(recv, SMALL, SMALL);
    REFUSED(tw_hccl_wait(session.hccl, 1), "handle 1");
    tw_hccl_commit(session.hccl, 1);
    CHECK_EQ(tw_hccl_wait(session.hccl, 1), 0);
    session_close(&session);
    free(send);
    free(recv);
}

/* Commits and waits each in an order of their own, different on every rank. */
static void any_order(tw_comm_t *comm, size_t count)
{
    enum { TASKS = 5 };
    const size_t rank = (size_t)tw_comm_rank(comm);
    session_t session;
    session_open(&session, comm);
    int32_t *send = numbers(comm, TASKS * count);
    int32_t *recv = poisoned(TASKS * count);
    for (size_t t = 0; t < TASKS; t++)
        CHECK_EQ(tw_hccl_all_reduce(session.hccl, send + t * count, recv + t * count, count, TW_HCCL_INT32, TW_HCCL_SUM,
                                    1, 0),
                 (int)t);
    for (size_t t = 0; t < TASKS; t++)
        tw_hccl_commit(session.hccl, (tw_hccl_handle_t)((t * 3 + rank) % TASKS));
    for (size_t t = 0; t < TASKS; t++) {
        const size_t h = (t * 2 + rank + 4) % TASKS;
        CHECK_EQ(tw_hccl_wait(session.hccl, (tw_hccl_handle_t)h), 0);
        check_sums(comm, recv, h * count, count);
    }
    session_close(&session);
    free(send);
    free(recv);
}

TEST_RANKS(any_order_small, "1,2,4")(tw_comm_t *comm)
{
    any_order(comm, SMALL);
}

TEST_RANKS(any_order_large, "1,3")(tw_comm_t *comm)
{
    any_order(comm, LARGE);
}

/* The second task is committed everywhere, the first is not: nothing may move. */
static void blocked(tw_comm_t *comm, size_t count)
{
    session_t session;
    session_open(&session, comm);
    int32_t *send = numbers(comm, count);
    int32_t *recv = poisoned(2 * count);
    for (size_t t = 0; t < 2; t++)
        CHECK_EQ(tw_hccl_all_reduce(session.hccl, send, recv + t * count, count, TW_HCCL_INT32, TW_HCCL_SUM, 1, 0),
                 (int)t);
    tw_hccl_commit(session.hccl, 1);
    ranks_barrier();
    CHECK_EQ(tw_hccl_query(session.hccl, 1), 0);
    ranks_barrier();
    check_poison(recv, 0, 2 * count);
    tw_hccl_commit(session.hccl, 0);
    CHECK_EQ(tw_hccl_wait(session.hccl, 1), 0);
    CHECK_EQ(tw_hccl_query(session.hccl, 0), 1);
    check_sums(comm, recv, 0, count);
    CHECK_EQ(memcmp(recv, recv + count, count * sizeof *recv), 0);
    session_close(&session);
    free(send);
    free(recv);
}

TEST_RANKS(uncommitted_blocks_later, "1,2,3")(tw_comm_t *comm)
{
    blocked(comm, SMALL);
    blocked(comm, LARGE);
}

/* Once all ranks have committed k rounds, Query comes to k everywhere, and no further. */
TEST_RANKS(query_counts_rounds, "1,2,3")(tw_comm_t *comm)
{
    session_t session;
    session_open(&session, comm);
    int32_t *send = numbers(comm, 4 * SMALL);
    int32_t *recv = poisoned(4 * SMALL);
    CHECK_EQ(tw_hccl_all_reduce(session.hccl, send, recv, SMALL, TW_HCCL_INT32, TW_HCCL_SUM, 4, 0), 0);
    for (int k = 1; k <= 4; k++) {
        tw_hccl_commit(session.hccl, 0);
        ranks_barrier();
        int done;
        while ((done = tw_hccl_query(session.hccl, 0)) < k)
            CHECK_EQ(done, k - 1);
        CHECK_EQ(done, k);
        check_sums(comm, recv, 0, (size_t)k * SMALL);
        check_poison(recv, (size_t)k * SMALL, (size_t)(4 - k) * SMALL);
        ranks_barrier();
    }
    CHECK_EQ(tw_hccl_finalize(session.hccl, 1), 0);
    CHECK_EQ(tw_hccl_query(session.hccl, 0), 0);
    CHECK_EQ(tw_hccl_query(session.hccl, 77), 0);
    REFUSED(tw_hccl_wait(session.hccl, 0), "handle 0");
    session_drop(&session);
    free(send);
    free(recv);
}

TEST_RANKS(repeat_255, "1,2")(tw_comm_t *comm)
{
    session_t session;
    session_open(&session, comm);
    int32_t *send = numbers(comm, 255);
    int32_t *recv = poisoned(255);
    CHECK_EQ(tw_hccl_all_reduce(session.hccl, send, recv, 1, TW_HCCL_INT32, TW_HCCL_SUM, 255, TW_HCCL_COMMIT), 0);
    for (int i = 0; i < 255; i++)
        CHECK_EQ(tw_hccl_wait(session.hccl, 0), 0);
    REFUSED(tw_hccl_wait(session.hccl, 0), "handle 0");
    CHECK_EQ(tw_hccl_query(session.hccl, 0), 255);
    check_sums(comm, recv, 0, 255);
    session_close(&session);
    free(send);
    free(recv);
}

/* ---- Limits ----------------------------------------------------------------------------------- */

static void fill_session(tw_comm_t *comm, session_t *session, const int32_t *send, int32_t *recv)
{
    for (int i = 0; i < TW_HCCL_MAX_TASKS; i++)
        CHECK_EQ(simple(session->hccl, send, recv + i * SMALL, TW_HCCL_COMMIT), i);
    for (int i = 0; i < 5; i++)
        REFUSED(simple(session->hccl, send, recv, TW_HCCL_COMMIT), "63");
    for (int i = 0; i < TW_HCCL_MAX_TASKS; i++)
        CHECK_EQ(tw_hccl_wait(session->hccl, (tw_hccl_handle_t)i), 0);
    check_sums(comm, recv, 0, SMALL);
    REFUSED(simple(session->hccl, send, recv, 0), "63");
}

TEST_RANKS(task_limit, "1,2,3")(tw_comm_t *comm)
{
    int32_t *send = numbers(comm, SMALL);
    int32_t *recv = poisoned(TW_HCCL_MAX_TASKS * SMALL);
    for (int s = 0; s < 4; s++) {
        session_t session;
        session_open(&session, comm);
        fill_session(comm, &session, send, recv);
        session_close(&session);
    }
    works(comm);
    free(send);
    free(recv);
}
