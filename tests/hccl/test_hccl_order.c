/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tasks run in their order, also for a rank that computes while others complete the rounds: small and
 * large tasks committed together whose buffers meet, and tiles that interleave in one buffer.
 */
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

#include "harness/session.h"
#include "harness/test.h"

enum { LARGE = 100000, TILES = 4 };

/* Rank 1 makes no call until rank 0 is through. */
static void compute_until(tw_comm_t *comm, sem_t *through)
{
    if (tw_comm_rank(comm) == 1)
        CHECK_EQ(sem_wait(through), 0);
}

static void done(tw_comm_t *comm, sem_t *through)
{
    if (tw_comm_rank(comm) == 0)
        CHECK_EQ(sem_post(through), 0);
}

static int32_t *filled(size_t n, int32_t value)
{
    int32_t *p = malloc(n * sizeof *p);
    CHECK(p);
    for (size_t i = 0; i < n; i++)
        p[i] = value;
    return p;
}

static void run(tw_transport_t transport, void (*body)(tw_comm_t *, void *))
{
    sem_t *through = test_shared_alloc(sizeof *through);
    CHECK_EQ(sem_init(through, 1, 0), 0);
    ranks_args_t args = RANKS_ARGS_INIT;
    args.transport = transport;
    ranks_run(&args, body, through);
}

/* A large task overwrites what an earlier small one sent: the small one has its old contents. */
static void write_after_read(tw_comm_t *comm, void *through)
{
    session_t session;
    session_open(&session, comm);
    int32_t *x = filled(LARGE, tw_comm_rank(comm) + 1);
    int32_t *big = filled(LARGE, 100);
    int32_t y = 0;
    const tw_hccl_handle_t small =
        tw_hccl_all_reduce(session.hccl, x, &y, 1, TW_HCCL_INT32, TW_HCCL_SUM, 1, TW_HCCL_COMMIT);
    const tw_hccl_handle_t large =
        tw_hccl_all_reduce(session.hccl, big, x, LARGE, TW_HCCL_INT32, TW_HCCL_SUM, 1, TW_HCCL_COMMIT);
    compute_until(comm, through);
    CHECK_EQ(tw_hccl_wait(session.hccl, small), 0);
    CHECK_EQ(tw_hccl_wait(session.hccl, large), 0);
    done(comm, through);
    CHECK_EQ(y, 3);
    CHECK_EQ(x[0], 200);
    CHECK_EQ(x[LARGE - 1], 200);
    session_close(&session);
    free(x);
    free(big);
}

/* The same for a collective with a block for every rank, its own among them. */
static void write_after_read_blocks(tw_comm_t *comm, void *through)
{
    session_t session;
    session_open(&session, comm);
    int32_t *x = filled(LARGE, tw_comm_rank(comm) + 1);
    int32_t *big = filled(LARGE, 100);
    int32_t y[2] = {0};
    const tw_hccl_handle_t small = tw_hccl_alltoall(session.hccl, x, y, 1, TW_HCCL_INT32, 0, 1, TW_HCCL_COMMIT);
    const tw_hccl_handle_t large =
        tw_hccl_all_reduce(session.hccl, big, x, LARGE, TW_HCCL_INT32, TW_HCCL_SUM, 1, TW_HCCL_COMMIT);
    compute_until(comm, through);
    CHECK_EQ(tw_hccl_wait(session.hccl, small), 0);
    CHECK_EQ(tw_hccl_wait(session.hccl, large), 0);
    done(comm, through);
    CHECK_EQ(y[0], 1);
    CHECK_EQ(y[1], 2);
    CHECK_EQ(x[0], 200);
    session_close(&session);
    free(x);
    free(big);
}

/* Tiles of one all_gather, a task each: their blocks interleave, no byte is shared, nobody waits. */
static void tiles(tw_comm_t *comm, void *through, uint64_t tile)
{
    const int size = tw_comm_size(comm);
    const int rank = tw_comm_rank(comm);
    const uint64_t stride = tile * TILES;
    session_t session;
    session_open(&session, comm);
    int32_t *send = filled(stride, 0);
    int32_t *recv = filled(stride * (uint64_t)size, -1);
    for (uint64_t i = 0; i < stride; i++)
        send[i] = rank * 1000000 + (int32_t)i;
    for (uint64_t t = 0; t < TILES; t++)
        CHECK_EQ(tw_hccl_all_gather(session.hccl, send + t * tile, recv + t * tile, tile, TW_HCCL_INT32, stride, 1,
                                    TW_HCCL_COMMIT),
                 (int)t);
    compute_until(comm, through);
    for (int t = 0; t < TILES; t++)
        CHECK_EQ(tw_hccl_wait(session.hccl, (tw_hccl_handle_t)t), 0);
    done(comm, through);
    for (int r = 0; r < size; r++)
        for (uint64_t i = 0; i < stride; i++)
            CHECK_EQ(recv[(uint64_t)r * stride + i], r * 1000000 + (int32_t)i);
    session_close(&session);
    free(send);
    free(recv);
}

/* Small enough for slots, then large, then one of each. */
static void small_tiles(tw_comm_t *comm, void *through)
{
    tiles(comm, through, 300);
}

static void large_tiles(tw_comm_t *comm, void *through)
{
    tiles(comm, through, 30000);
}

#define BOTH(name)                       \
    TEST(name##_threads)                 \
    {                                    \
        run(TW_TRANSPORT_THREADS, name); \
    }                                    \
    TEST(name##_shm)                     \
    {                                    \
        run(TW_TRANSPORT_SHM, name);     \
    }

BOTH(write_after_read)
BOTH(write_after_read_blocks)
BOTH(small_tiles)
BOTH(large_tiles)

/* Many small tiles: more than there are slots, so that staged and shared rounds alternate. */
static void many_tiles(tw_comm_t *comm, void *through)
{
    enum { N = 40, TILE = 500 };
    const int size = tw_comm_size(comm);
    session_t session;
    session_open(&session, comm);
    int32_t *send = filled(N * TILE, tw_comm_rank(comm));
    int32_t *recv = filled((size_t)(N * TILE * size), -1);
    for (int t = 0; t < N; t++)
        CHECK_EQ(tw_hccl_all_gather(session.hccl, send + t * TILE, recv + t * TILE, TILE, TW_HCCL_INT32, N * TILE, 1,
                                    TW_HCCL_COMMIT),
                 t);
    compute_until(comm, through);
    CHECK_EQ(tw_hccl_wait(session.hccl, N - 1), 0);
    done(comm, through);
    for (int i = 0; i < N * TILE * size; i++)
        CHECK_EQ(recv[i], i / (N * TILE));
    session_close(&session);
    free(send);
    free(recv);
}

BOTH(many_tiles)

/* A staged message of more steps than can be numbered is refused before anything is touched. */
static void too_many_steps(tw_comm_t *comm, void *arg)
{
    (void)arg;
    session_t session;
    session_open(&session, comm);
    int8_t byte = 0;
    const uint64_t count = (uint64_t)64 << 20; /* 64 bytes a step */
    CHECK_EQ(tw_hccl_all_reduce(session.hccl, &byte, &byte, count, TW_HCCL_INT8, TW_HCCL_SUM, 1, TW_HCCL_COMMIT), -1);
    CHECK_CONTAINS(tw_last_error(), "TILEWIRE_STAGE_BYTES");
    session_close(&session);
    CHECK_OK(tw_comm_barrier(comm));
}

TEST(too_many_steps_shm)
{
    CHECK_EQ(setenv("TILEWIRE_CMA", "0", 1), 0);
    CHECK_EQ(setenv("TILEWIRE_STAGE_BYTES", "64", 1), 0);
    const ranks_args_t args = RANKS_ARGS_INIT;
    ranks_run(&args, too_many_steps, NULL);
}
