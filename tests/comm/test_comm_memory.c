/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Symmetric memory: seen by all ranks, exhausted, misused, and refused by the system.
 */
#include <signal.h>
#include <sys/resource.h>

#include "comm/comm_make.h"

static void check_bytes(const uint8_t *p, uint8_t byte, size_t n)
{
    for (size_t i = 0; i < n; i++)
        CHECK_EQ(p[i], byte);
}

TEST_RANKS(memory_is_shared, "1,2,4")(tw_comm_t *comm)
{
    const int rank = tw_comm_rank(comm), size = tw_comm_size(comm);
    uint8_t *mine[3], *theirs = NULL;
    static const size_t sizes[3] = {1, 100, 300001};
    for (int i = 0; i < 3; i++) {
        CHECK_OK(tw_mem_alloc(comm, sizes[i], (void **)&mine[i]));
        CHECK_EQ((uintptr_t)mine[i] % 64, 0);
        check_bytes(mine[i], 0, sizes[i]);
    }
    CHECK_OK(tw_comm_barrier(comm));
    for (int i = 0; i < 3; i++) { /* each rank writes into the next one's memory */
        CHECK_OK(tw_mem_peer(comm, mine[i], (rank + 1) % size, (void **)&theirs));
        CHECK((theirs == mine[i]) == (size == 1));
        memset(theirs, 16 * (rank + 1) + i, sizes[i]);
    }
    CHECK_OK(tw_mem_peer(comm, mine[1] + 99, (rank + 1) % size, (void **)&theirs)); /* inside a block */
    CHECK_EQ(*theirs, 16 * (rank + 1) + 1);
    CHECK_OK(tw_comm_barrier(comm));
    const int from = (rank + size - 1) % size;
    for (int i = 0; i < 3; i++)
        check_bytes(mine[i], (uint8_t)(16 * (from + 1) + i), sizes[i]);
    CHECK_OK(tw_comm_barrier(comm));
    tw_mem_free(comm, mine[1]);
    tw_mem_free(comm, mine[0]);
    tw_mem_free(comm, NULL);
    CHECK_OK(tw_mem_alloc(comm, 100, (void **)&theirs)); /* memory that was used before is zero again */
    check_bytes(theirs, 0, 100);
}

static void exhaust(tw_comm_t *comm, void *arg)
{
    const size_t heap = *(const size_t *)arg;
    void *blocks[16], *more = NULL;
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < 16; i++)
            CHECK_OK(tw_mem_alloc(comm, heap / 16, &blocks[i]));
        REFUSED(tw_mem_alloc(comm, 1, &more), TW_ERR_NO_MEMORY, "64 bytes");
        CHECK_CONTAINS(tw_last_error(), "1048576");
        for (int i = 0; i < 16; i += 2)
            tw_mem_free(comm, blocks[i]);
        REFUSED(tw_mem_alloc(comm, heap / 16 + 1, &more), TW_ERR_NO_MEMORY, "bytes"); /* no gap is that large */
        for (int i = 1; i < 16; i += 2)
            tw_mem_free(comm, blocks[i]);
    }
    CHECK_OK(tw_mem_alloc(comm, heap, &more)); /* the gaps have grown together */
    tw_mem_free(comm, more);
    REFUSED(tw_mem_alloc(comm, heap + 1, &more), TW_ERR_NO_MEMORY, "bytes");
    check_comm(comm, tw_comm_rank(comm), tw_comm_size(comm));
}

static void run_exhaust(tw_transport_t transport)
{
    ranks_args_t args = RANKS_ARGS_INIT;
    args.transport = transport;
    args.window_bytes = 1 << 20;
    ranks_run(&args, exhaust, &args.window_bytes);
}

TEST(memory_runs_out_threads)
{
    run_exhaust(TW_TRANSPORT_THREADS);
}
TEST(memory_runs_out_shm)
{
    run_exhaust(TW_TRANSPORT_SHM);
}

TEST_RANKS(memory_arguments, "1,2")(tw_comm_t *comm)
{
    const int size = tw_comm_size(comm);
    uint64_t local = 0;
    void *ptr = NULL, *peer = NULL;
    REFUSED(tw_mem_alloc(comm, 0, &ptr), TW_ERR_ARGUMENT, "bytes is 0, must be at least 1");
    REFUSED(tw_mem_alloc(comm, 1, NULL), TW_ERR_ARGUMENT, "ptr_out");
    CHECK(tw_mem_alloc(comm, SIZE_MAX, &ptr) != TW_OK);
    CHECK_CONTAINS(tw_last_error(), "bytes");
    REFUSED(tw_mem_alloc(comm, SIZE_MAX - 4096, &ptr), TW_ERR_NO_MEMORY, "bytes");
    REFUSED(tw_mem_alloc(comm, SIZE_MAX / 2, &ptr), TW_ERR_NO_MEMORY, "bytes");
    CHECK(ptr == NULL);
    CHECK_OK(tw_mem_alloc(comm, 128, &ptr));
    REFUSED(tw_mem_peer(comm, ptr, size, &peer), TW_ERR_ARGUMENT, "rank");
    REFUSED(tw_mem_peer(comm, ptr, -1, &peer), TW_ERR_ARGUMENT, "rank is -1");
    REFUSED(tw_mem_peer(comm, ptr, 0, NULL), TW_ERR_ARGUMENT, "ptr_out");
    REFUSED(tw_mem_peer(comm, &local, 0, &peer), TW_ERR_ARGUMENT, "ptr");
    REFUSED(tw_mem_peer(comm, NULL, 0, &peer), TW_ERR_ARGUMENT, "ptr");
    CHECK(peer == NULL);
    tw_mem_free(comm, &local); /* refused, not a crash */
    CHECK_CONTAINS(tw_last_error(), "ptr");
    tw_mem_free(comm, (uint8_t *)ptr + 64);
    CHECK_CONTAINS(tw_last_error(), "ptr");
    tw_mem_free(comm, ptr);
    tw_mem_free(comm, ptr); /* twice */
    CHECK_CONTAINS(tw_last_error(), "ptr");
    ranks_barrier();
}

/* Buffers of collectives in symmetric memory, freed by the communicator. */
TEST_RANKS(memory_in_collectives, "1,2,3")(tw_comm_t *comm)
{
    enum { N = 30000 };
    const int size = tw_comm_size(comm);
    int32_t *send = NULL, *recv = NULL;
    CHECK_OK(tw_mem_alloc(comm, N * sizeof *send, (void **)&send));
    CHECK_OK(tw_mem_alloc(comm, N * sizeof *send, (void **)&recv));
    for (int i = 0; i < N; i++)
        send[i] = i;
    session_t session;
    session_open(&session, comm);
    CHECK_EQ(tw_hccl_all_reduce(session.hccl, send, recv, N, TW_HCCL_INT32, TW_HCCL_SUM, 1, TW_HCCL_COMMIT), 0);
    session_close(&session);
    for (int i = 0; i < N; i++)
        CHECK_EQ(recv[i], i * size);
    CHECK_OK(tw_comm_barrier(comm));
}

/* The system refuses memory to rank 1: every rank hears which, and nobody waits. */
static void no_window(int rank, void *arg)
{
    (void)arg;
    const struct rlimit before = {RLIM_INFINITY, RLIM_INFINITY};
    const struct rlimit limit = {1 << 20, RLIM_INFINITY};
    (void)signal(SIGXFSZ, SIG_IGN);
    if (rank == 1)
        CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    tw_comm_args_t args = callback_args(rank, 3);
    tw_comm_t *comm = NULL;
    REFUSED(tw_comm_create(&args, &comm), TW_ERR_NO_MEMORY, "rank 1");
    CHECK(comm == NULL);
    if (rank == 1)
        CHECK_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    CHECK_OK(tw_comm_create(&args, &comm));
    check_comm(comm, rank, 3);
    tw_comm_destroy(comm);
}

TEST(no_memory_for_a_window)
{
    struct rlimit now;
    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &now), 0);
    if (now.rlim_max != RLIM_INFINITY)
        SKIP("the size of files is limited here");
    ranks_run_on(TW_TRANSPORT_SHM, 3, no_window, NULL);
}
