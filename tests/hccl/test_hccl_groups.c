/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several groups in one kernel, and tasks that wait for a task of another group.
 */
#include "hccl/hccl_calls.h"

enum { GROUPS_MAX = 3 };

typedef struct groups {
    int n;
    tw_comm_t *comms[GROUPS_MAX];
    tw_hccl_context_t *contexts[GROUPS_MAX];
    tw_hccl_t *hccl[GROUPS_MAX];
    session_t tilings; /* its tiling only */
} groups_t;

/* Group 0 is `comm` itself, the others are copies of it. */
static void groups_open(groups_t *g, tw_comm_t *comm, int n)
{
    const tw_hccl_core_t core = {.type = TW_HCCL_CORE_AIV};
    g->n = n;
    g->comms[0] = comm;
    for (int i = 1; i < n; i++)
        CHECK_OK(tw_comm_split(comm, 0, 0, NULL, &g->comms[i]));
    CHECK_OK(tw_hccl_contexts_create(g->comms, (uint32_t)n, g->contexts));
    session_tiling(&g->tilings, "any");
    for (int i = 0; i < n; i++) {
        g->hccl[i] = session_core(&core);
        g->tilings.context = g->contexts[i];
        session_init(&g->tilings, g->hccl[i]);
    }
}

static void groups_close(groups_t *g)
{
    for (int i = 0; i < g->n; i++) {
        CHECK_EQ(tw_hccl_finalize(g->hccl[i], 1), 0);
        tw_hccl_destroy(g->hccl[i]);
    }
    tw_hccl_contexts_destroy(g->contexts, (uint32_t)g->n);
    for (int i = 1; i < g->n; i++)
        tw_comm_destroy(g->comms[i]);
}

TEST_RANKS(group_sync_arguments, "1,2")(tw_comm_t *comm)
{
    groups_t g;
    groups_open(&g, comm, 2);
    int32_t *send = numbers(comm, SMALL);
    int32_t *recv = poisoned((TW_HCCL_MAX_TASKS + 1) * SMALL);
    CHECK_EQ(simple(g.hccl[0], send, recv + TW_HCCL_MAX_TASKS * SMALL, TW_HCCL_COMMIT), 0);
    for (int i = 0; i < 2 * TW_HCCL_MAX_TASKS; i++) { /* refused calls do not count */
        REFUSED(tw_hccl_inter_group_sync(g.hccl[1], 1, 0), "src_group 1");
        REFUSED(tw_hccl_inter_group_sync(g.hccl[1], -1, 0), "src_group -1");
        REFUSED(tw_hccl_inter_group_sync(g.hccl[1], 2, 0), "src_group 2");
        REFUSED(tw_hccl_inter_group_sync(g.hccl[1], 127, 0), "src_group 127");
        REFUSED(tw_hccl_inter_group_sync(g.hccl[1], 0, -1), "src -1");
        REFUSED(tw_hccl_inter_group_sync(g.hccl[1], 0, 1), "src 1");
        REFUSED(tw_hccl_inter_group_sync(g.hccl[1], 0, 127), "src 127");
    }
    for (int i = 0; i < TW_HCCL_MAX_TASKS; i++)
        CHECK_EQ(simple(g.hccl[1], send, recv + i * SMALL, TW_HCCL_COMMIT), i);
    groups_close(&g);
    free(send);
    free(recv);
}

/* The task of the last group is committed at once, and reads what those before it have yet to write. */
static void chain(tw_comm_t *comm, size_t count)
{
    const int size = tw_comm_size(comm);
    groups_t g;
    groups_open(&g, comm, 3);
    int32_t *a = numbers(comm, count);
    int32_t *b = poisoned(2 * count);
    int32_t *c = poisoned(2 * count);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(tw_hccl_all_reduce(g.hccl[i], a, b + (size_t)i * count, count, TW_HCCL_INT32, TW_HCCL_SUM, 1, 0), 0);
    CHECK_EQ(tw_hccl_inter_group_sync(g.hccl[2], 0, 0), 0);
    CHECK_EQ(tw_hccl_inter_group_sync(g.hccl[2], 1, 0), 0);
    CHECK_EQ(tw_hccl_all_reduce(g.hccl[2], b, c, 2 * count, TW_HCCL_INT32, TW_HCCL_SUM, 1, TW_HCCL_COMMIT), 0);
    for (int i = 1; i >= 0; i--) { /* the second dependency is met first */
        ranks_barrier();
        CHECK_EQ(tw_hccl_query(g.hccl[2], 0), 0);
        ranks_barrier();
        check_poison(c, 0, 2 * count);
        tw_hccl_commit(g.hccl[i], 0);
        if (i == 1)
            CHECK_EQ(tw_hccl_wait(g.hccl[i], 0), 0);
    }
    CHECK_EQ(tw_hccl_wait(g.hccl[2], 0), 0);
    CHECK_EQ(tw_hccl_query(g.hccl[0], 0), 1);
    for (size_t i = 0; i < 2 * count; i++)
        CHECK_EQ(c[i], size * sum(size, i % count));
    groups_close(&g);
    free(a);
    free(b);
    free(c);
}

TEST_RANKS(group_sync_orders_tasks, "1,2,3")(tw_comm_t *comm)
{
    chain(comm, SMALL);
    chain(comm, LARGE);
}

/* A dependency on a task of several rounds, and on a batch, which has none. */
TEST_RANKS(group_sync_sources, "1,2")(tw_comm_t *comm)
{
    const uint32_t rank = (uint32_t)tw_comm_rank(comm);
    groups_t g;
    groups_open(&g, comm, 2);
    int32_t *send = numbers(comm, 2 * SMALL);
    int32_t *recv = poisoned(4 * SMALL);
    const tw_hccl_batch_item_t item = {.local = (uint64_t)(uintptr_t)send,
                                       .remote = (uint64_t)(uintptr_t)tw_hccl_window_in(g.hccl[0], rank),
                                       .count = 1,
                                       .type = TW_HCCL_INT32,
                                       .remote_rank = rank};
    CHECK_EQ(tw_hccl_all_reduce(g.hccl[0], send, recv, SMALL, TW_HCCL_INT32, TW_HCCL_SUM, 2, 0), 0);
    CHECK_EQ(tw_hccl_batch_write(g.hccl[0], &item, 1, 0), 1);
    CHECK_EQ(tw_hccl_inter_group_sync(g.hccl[1], 0, 0), 0);
    CHECK_EQ(simple(g.hccl[1], send, recv + 2 * SMALL, TW_HCCL_COMMIT), 0);
    CHECK_EQ(tw_hccl_inter_group_sync(g.hccl[1], 0, 1), 0);
    CHECK_EQ(simple(g.hccl[1], send, recv + 3 * SMALL, TW_HCCL_COMMIT), 1);
    tw_hccl_commit(g.hccl[0], 0);
    CHECK_EQ(tw_hccl_wait(g.hccl[0], 0), 0);
    ranks_barrier();
    CHECK_EQ(tw_hccl_query(g.hccl[1], 0), 0);
    ranks_barrier();
    tw_hccl_commit(g.hccl[0], 0);
    CHECK_EQ(tw_hccl_wait(g.hccl[1], 0), 0);
    CHECK_EQ(tw_hccl_wait(g.hccl[1], 1), 0);
    CHECK_EQ(tw_hccl_query(g.hccl[0], 0), 2);
    CHECK_EQ(tw_hccl_query(g.hccl[0], 1), 1);
    groups_close(&g);
    free(send);
    free(recv);
}

/* A group outlives the group that it once depended on. */
TEST_RANKS(group_sync_source_is_gone, "1,2")(tw_comm_t *comm)
{
    int32_t *send = numbers(comm, SMALL);
    int32_t *recv = poisoned(SMALL);
    groups_t g;
    groups_open(&g, comm, 2);
    CHECK_EQ(simple(g.hccl[1], send, recv, TW_HCCL_COMMIT), 0);
    CHECK_EQ(tw_hccl_inter_group_sync(g.hccl[0], 1, 0), 0);
    CHECK_EQ(simple(g.hccl[0], send, recv, TW_HCCL_COMMIT), 0);
    CHECK_EQ(tw_hccl_wait(g.hccl[0], 0), 0);
    groups_close(&g); /* destroys group 1 */
    works(comm);
    CHECK_OK(tw_comm_barrier(comm));
    free(send);
    free(recv);
}

static void count_syncs(tw_comm_t *comm, void *arg)
{
    const bool counted = *(const bool *)arg;
    int32_t *send = numbers(comm, SMALL);
    int32_t *recv = poisoned((TW_HCCL_MAX_TASKS + 1) * SMALL);
    groups_t g;
    groups_open(&g, comm, 2);
    CHECK_EQ(simple(g.hccl[0], send, recv + TW_HCCL_MAX_TASKS * SMALL, TW_HCCL_COMMIT), 0);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(tw_hccl_inter_group_sync(g.hccl[1], 0, 0), 0);
    const int room = counted ? TW_HCCL_MAX_TASKS - 3 : TW_HCCL_MAX_TASKS;
    for (int i = 0; i < room; i++)
        CHECK_EQ(simple(g.hccl[1], send, recv + i * SMALL, TW_HCCL_COMMIT), i);
    REFUSED(simple(g.hccl[1], send, recv, TW_HCCL_COMMIT), "63");
    if (counted)
        REFUSED(tw_hccl_inter_group_sync(g.hccl[1], 0, 0), "63");
    CHECK_EQ(tw_hccl_wait(g.hccl[1], (tw_hccl_handle_t)(room - 1)), 0);
    groups_close(&g);
    works(comm);
    free(send);
    free(recv);
}

static void count_syncs_under(const char *profile, tw_transport_t transport, bool counted)
{
    CHECK_EQ(setenv("TILEWIRE_PROFILE", profile, 1), 0);
    ranks_args_t args = RANKS_ARGS_INIT;
    args.transport = transport;
    ranks_run(&args, count_syncs, &counted);
}

TEST(group_sync_counts_threads)
{
    count_syncs_under("none", TW_TRANSPORT_THREADS, true);
}
TEST(group_sync_counts_shm)
{
    count_syncs_under("none", TW_TRANSPORT_SHM, true);
}
TEST(group_sync_counts_a3_threads)
{
    count_syncs_under("a3", TW_TRANSPORT_THREADS, true);
}
TEST(group_sync_counts_a2_threads)
{
    count_syncs_under("a2", TW_TRANSPORT_THREADS, false);
}
TEST(group_sync_counts_a2_shm)
{
    count_syncs_under("a2", TW_TRANSPORT_SHM, false);
}
