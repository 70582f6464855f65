/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tw_comm_abort from another thread: it ends every wait, here and on all peers, and afterwards nobody
 * touches anybody's buffers.
 */
#define _GNU_SOURCE
#include <pthread.h>

#include "api/comm.h"
#include "base/status.h"
#include "faults/calls.h"

typedef struct aborting {
    tw_comm_t *comm;
    uint64_t delay_ns;
    const char *reason;
    sem_t *posted; /* what two ranks have to say first; NULL: nothing */
} aborting_t;

static void *abort_later(void *arg)
{
    const aborting_t *a = arg;
    if (a->posted)
        take(a->posted, 2);
    sleep_ns(a->delay_ns);
    tw_comm_abort(a->comm, a->reason);
    return NULL;
}

typedef struct turns {
    sem_t *posted, *over;
} turns_t;

/* Rank 0 waits for a rank that does not come, until another thread of rank 1, which waits too, aborts. */
static void abort_body(tw_comm_t *comm, void *arg)
{
    const turns_t *turns = arg;
    const int rank = tw_comm_rank(comm);
    session_t session;
    call_t c = {.command = TW_HCCL_CMD_ALLREDUCE, .count = 20000, .repeat = 1, .dtype = TW_HCCL_INT32};
    call_open(&c, comm);
    session_open(&session, comm);
    pthread_t thread;
    aborting_t job = {comm, 20000000, "the weather", turns->posted};
    if (rank == 1)
        CHECK_EQ(pthread_create(&thread, NULL, abort_later, &job), 0);
    if (rank == 2)
        take(turns->over, 2);
    const tw_hccl_handle_t handle = call_prepare(session.hccl, &c, TW_HCCL_COMMIT);
    if (rank != 2) {
        CHECK_EQ(sem_post(turns->posted), 0);
        CHECK_EQ(tw_hccl_wait(session.hccl, handle), -1);
        if (rank == 0) /* rank 1 may know before it waits, too */
            CHECK_CONTAINS(tw_last_error(), "all_reduce task 0");
    } else if (handle >= 0) { /* it need not know before it waits */
        CHECK_EQ(tw_hccl_wait(session.hccl, handle), -1);
    }
    CHECK_CONTAINS(tw_last_error(), "the weather");
    if (rank != 1)
        CHECK_CONTAINS(tw_last_error(), "rank 1");
    CHECK_STATUS(tw_comm_status(comm), TW_ERR_ABORTED);
    CHECK_EQ(call_prepare(session.hccl, &c, TW_HCCL_COMMIT), -1);
    CHECK_CONTAINS(tw_last_error(), "the weather");
    if (rank != 2)
        CHECK_EQ(sem_post(turns->over), 0);
    if (rank == 1)
        CHECK_EQ(pthread_join(thread, NULL), 0);
    session_drop(&session);
    call_close(&c);
}

TEST(abort_shm)
{
    run_ranks(&default_shm, 3, 100 * SECOND, abort_body, &(turns_t){shared_semaphore(), shared_semaphore()});
}
TEST(abort_threads)
{
    run_ranks(&default_threads, 3, 100 * SECOND, abort_body, &(turns_t){shared_semaphore(), shared_semaphore()});
}

/* The wait is for a commit of the own rank. */
static void abort_uncommitted_body(tw_comm_t *comm, void *arg)
{
    (void)arg;
    session_t session;
    call_t c = {.command = TW_HCCL_CMD_ALLREDUCE, .count = 20, .repeat = 1, .dtype = TW_HCCL_INT32};
    call_open(&c, comm);
    session_open(&session, comm);
    CHECK(call_prepare(session.hccl, &c, 0) >= 0);
    const tw_hccl_handle_t second = call_prepare(session.hccl, &c, TW_HCCL_COMMIT);
    pthread_t thread;
    aborting_t job = {.comm = comm, .delay_ns = 20000000};
    CHECK_EQ(pthread_create(&thread, NULL, abort_later, &job), 0);
    CHECK_EQ(tw_hccl_wait(session.hccl, second), -1);
    CHECK_STATUS(tw_comm_status(comm), TW_ERR_ABORTED);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    session_drop(&session);
    call_close(&c);
}

TEST(abort_ends_wait_for_own_commit)
{
    ranks_args_t args = RANKS_ARGS_INIT;
    args.n = 1;
    args.transport = TW_TRANSPORT_THREADS;
    args.enter_timeout_ns = test_scale_ns(1000 * SECOND);
    ranks_run(&args, abort_uncommitted_body, NULL);
}

/* Aborts in the middle of large transfers: at the error the buffers are ours again and may be freed. */
typedef struct storm {
    bool symmetric;
    uint64_t seed;
    atomic_int *failed;
} storm_t;

static void storm_once(tw_comm_t *comm, const storm_t *storm, uint32_t command, uint64_t delay_ns, int aborter)
{
    const int size = tw_comm_size(comm);
    session_t session;
    call_t c = {.command = command, .count = 60000, .repeat = 2, .symmetric = storm->symmetric, .dtype = TW_HCCL_INT32};
    call_open(&c, comm);
    session_open(&session, comm);
    pthread_t thread;
    aborting_t job = {.comm = comm, .delay_ns = delay_ns, .reason = "storm"};
    if (tw_comm_rank(comm) == aborter)
        CHECK_EQ(pthread_create(&thread, NULL, abort_later, &job), 0);
    for (int task = 0;; task++) {
        if (task == 60) {
            if (tw_hccl_finalize(session.hccl, 1) != 0)
                break;
            session_drop(&session);
            session_open(&session, comm);
            task = 0;
        }
        const tw_hccl_handle_t handle = call_prepare(session.hccl, &c, TW_HCCL_COMMIT);
        if (handle < 0 || call_wait(session.hccl, &c, handle) != 0)
            break;
    }
    CHECK_CONTAINS(tw_last_error(), "storm");
    memset(c.recv, 0x77, c.elems * 4);
    (void)atomic_fetch_add(storm->failed, 1);
    for (bool all = false; !all;) {
        all = atomic_load(storm->failed) == size;
        for (size_t i = 0; i < c.elems; i++)
            if (c.recv[i] != 0x77777777u)
                test_fail(__FILE__, __LINE__, "a peer wrote to element %zu after the error", i);
    }
    session_drop(&session);
    call_close(&c);
    if (tw_comm_rank(comm) == aborter)
        CHECK_EQ(pthread_join(thread, NULL), 0);
}

static void storm_body(int rank, void *arg)
{
    const storm_t *storm = arg;
    uint64_t state = storm->seed;
    for (int i = 0; i < 12; i++) {
        tw_comm_args_t args = TW_COMM_ARGS_INIT;
        args.rank = rank;
        args.size = 4;
        args.allgather = ranks_allgather;
        args.transport = TW_TRANSPORT_AUTO;
        args.timeout_ns = args.enter_timeout_ns = test_scale_ns(20 * SECOND);
        tw_comm_t *comm = NULL;
        CHECK_OK(tw_comm_create(&args, &comm));
        const uint64_t delay_ns = next_random(&state) % 4000000;
        storm_once(comm, storm, commands[i % N_COMMANDS], delay_ns, i % 4);
        tw_comm_destroy(comm);
        ranks_barrier();
        if (rank == 0)
            atomic_store(storm->failed, 0);
        ranks_barrier();
    }
}

static void storms(const way_t *way, bool symmetric)
{
    use_way(way);
    ranks_args_t args = RANKS_ARGS_INIT;
    args.n = 4;
    args.transport = way->transport;
    storm_t storm = {.symmetric = symmetric, .seed = 5, .failed = test_shared_alloc(sizeof(atomic_int))};
    ranks_run_bare(&args, storm_body, &storm);
}

TEST(abort_in_the_middle_shm)
{
    storms(&default_shm, false);
}
TEST(abort_in_the_middle_shm_symmetric)
{
    storms(&default_shm, true);
}
TEST(abort_in_the_middle_threads)
{
    storms(&default_threads, false);
}
TEST(abort_in_the_middle_threads_symmetric)
{
    storms(&default_threads, true);
}
TEST(abort_in_the_middle_staged)
{
    storms(&ways[3], false);
}

/* ---- What is handed on ---------------------------------------------------------------------------- */

/* Only what the first one saw: of a chain of many ranks the end would be cut off, where it is said who died. */
TEST_RANKS(reports_are_not_nested, "2")(tw_comm_t *comm)
{
    if (tw_comm_rank(comm) == 1) {
        (void)twi_fail(TW_ERR_PEER_DEAD, "one: rank 3 reports: two: rank 17 reports: three: rank 9 (pid 5) died");
        twi_transport_fail(comm->transport, TWI_HEALTH_FAILED, TW_ERR_PEER_DEAD);
    } else {
        CHECK_STATUS(tw_comm_barrier(comm), TW_ERR_PEER_DEAD);
        CHECK_CONTAINS(tw_last_error(), ": rank 1 reports: three: rank 9 (pid 5) died");
    }
    ranks_barrier();
}
