/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may wait for whom, and for how long: ranks that compute after committing, stragglers, many
 * ranks, several communicators and threads, deadlines, and cancelled rounds.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>

#include "faults/calls.h"

#define LARGE_BYTES ((uint64_t)8 << 20)

/* ---- A rank that committed and computes ---- */

#define N_AHEAD 4

typedef struct compute {
    uint32_t command;
    bool symmetric;
    sem_t *waited;
} compute_t;

/* Small, large, large in two rounds, small. */
static void open_calls(tw_comm_t *comm, const compute_t *job, call_t calls[N_AHEAD])
{
    const uint64_t large = LARGE_BYTES / 4 / (uint64_t)tw_comm_size(comm);
    const uint64_t counts[N_AHEAD] = {30, large, large / 4, 1000};
    for (int i = 0; i < N_AHEAD; i++) {
        calls[i] = (call_t){.command = job->command,
                            .count = counts[i],
                            .repeat = i == 2 ? 2 : 1,
                            .symmetric = job->symmetric,
                            .dtype = TW_HCCL_INT32};
        call_open(&calls[i], comm);
    }
}

static void compute_body(tw_comm_t *comm, void *arg)
{
    const compute_t *job = arg;
    call_t calls[N_AHEAD];
    tw_hccl_handle_t handles[N_AHEAD];
    session_t session;
    open_calls(comm, job, calls);
    session_open(&session, comm);
    for (int i = 0; i < N_AHEAD; i++) {
        handles[i] = call_prepare(session.hccl, &calls[i], TW_HCCL_COMMIT);
        CHECK(handles[i] >= 0);
    }
    if (tw_comm_rank(comm) == 1)
        take(job->waited, tw_comm_size(comm) - 1); /* no call of ours until all others are through */
    for (int i = 0; i < N_AHEAD; i++) {
        CHECK_EQ(call_wait(session.hccl, &calls[i], handles[i]), 0);
        call_check(&calls[i]);
    }
    if (tw_comm_rank(comm) != 1)
        CHECK_EQ(sem_post(job->waited), 0);
    session_close(&session);
    ranks_barrier();
    for (int i = 0; i < N_AHEAD; i++)
        call_close(&calls[i]);
}

static void computes(const way_t *way, bool symmetric)
{
    for (int i = 0; i < N_COMMANDS; i++) {
        compute_t job = {.command = commands[i], .symmetric = symmetric, .waited = shared_semaphore()};
        run_ranks(way, 3, 20 * SECOND, compute_body, &job);
    }
}

TEST(computing_rank_shm)
{
    computes(&default_shm, false);
}
TEST(computing_rank_shm_symmetric)
{
    computes(&default_shm, true);
}
TEST(computing_rank_threads)
{
    computes(&default_threads, false);
}
TEST(computing_rank_threads_symmetric)
{
    computes(&default_threads, true);
}

/* Where peers cannot reach private memory, what fits into the staging slots does not wait either. */
static void compute_staged_body(tw_comm_t *comm, void *arg)
{
    sem_t *waited = arg;
    session_t session;
    session_open(&session, comm);
    for (int i = 0; i < N_COMMANDS; i++) {
        call_t c = {.command = commands[i], .count = 1000, .repeat = 4, .dtype = TW_HCCL_INT32};
        call_open(&c, comm);
        const tw_hccl_handle_t handle = call_prepare(session.hccl, &c, TW_HCCL_COMMIT);
        CHECK(handle >= 0);
        if (tw_comm_rank(comm) == 1)
            take(waited, tw_comm_size(comm) - 1);
        CHECK_EQ(call_wait(session.hccl, &c, handle), 0);
        call_check(&c);
        if (tw_comm_rank(comm) != 1)
            CHECK_EQ(sem_post(waited), 0);
        ranks_barrier();
        call_close(&c);
    }
    session_close(&session);
}

TEST(computing_rank_staged)
{
    const way_t way = {"staged", TW_TRANSPORT_SHM, "8K", "1M", "0", false, 40};
    run_ranks(&way, 3, 20 * SECOND, compute_staged_body, shared_semaphore());
}

/* ---- Cancelled rounds ---- */

/* Rank 1 commits one round of three and finalizes; the others learn it, and the next session works. */
static void cancel_body(tw_comm_t *comm, void *arg)
{
    const way_t *way = arg;
    for (int i = 0; i < N_COMMANDS; i++) {
        session_t session;
        call_t c = {.command = commands[i],
                    .count = way->count,
                    .repeat = 3,
                    .symmetric = way->symmetric,
                    .dtype = TW_HCCL_INT32};
        call_open(&c, comm);
        session_open(&session, comm);
        const bool cancels = tw_comm_rank(comm) == 1;
        const tw_hccl_handle_t handle = call_prepare(session.hccl, &c, cancels ? 0 : TW_HCCL_COMMIT);
        if (cancels)
            tw_hccl_commit(session.hccl, handle);
        CHECK_EQ(tw_hccl_wait(session.hccl, handle), 0);
        CHECK_EQ(tw_hccl_wait(session.hccl, handle), -1);
        if (!cancels) {
            CHECK_CONTAINS(tw_last_error(), "cancelled by rank 1");
            CHECK_CONTAINS(tw_last_error(), command_name(c.command));
        }
        (void)tw_hccl_finalize(session.hccl, 1);
        session_drop(&session);
        CHECK_OK(tw_comm_status(comm));
        all_calls(comm, way->count, way->symmetric);
        call_close(&c);
    }
}

static void cancels(int way)
{
    run_ranks(&ways[way], 3, 5 * SECOND, cancel_body, (void *)(uintptr_t)&ways[way]);
}

TEST(cancel_eager)
{
    cancels(0);
}
TEST(cancel_shared)
{
    cancels(1);
}
TEST(cancel_symmetric)
{
    cancels(2);
}
TEST(cancel_staged)
{
    cancels(3);
}
TEST(cancel_eager_threads)
{
    cancels(4);
}
TEST(cancel_shared_threads)
{
    cancels(5);
}

/* ---- A straggler ---- */

#define STEPS 30
#define STEP_FLOATS 5000

static void straggle_pass(tw_comm_t *comm, int straggler, float *results)
{
    const int size = tw_comm_size(comm);
    uint64_t state = 17;
    float *send = malloc(STEP_FLOATS * sizeof(float));
    CHECK(send);
    session_t session;
    session_open(&session, comm);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < STEP_FLOATS; i++)
            send[i] = (float)(int32_t)element(tw_comm_rank(comm), (uint64_t)(step * STEP_FLOATS + i)) *
                      (i % 7 ? 1e-9f : 3.0f);
        if (tw_comm_rank(comm) == straggler)
            sleep_ns(next_random(&state) % 2000000);
        float *recv = results + (size_t)step * STEP_FLOATS;
        const uint64_t count = step % 2 ? STEP_FLOATS : 100; /* shared and eager */
        memset(recv, 0, STEP_FLOATS * sizeof(float));
        const tw_hccl_handle_t handle =
            step % 3 ? tw_hccl_all_reduce(session.hccl, send, recv, count, TW_HCCL_FP32, TW_HCCL_SUM, 1, TW_HCCL_COMMIT)
                     : tw_hccl_reduce_scatter(session.hccl, send, recv, count / (uint64_t)size, TW_HCCL_FP32,
                                              TW_HCCL_SUM, 0, 1, TW_HCCL_COMMIT);
        CHECK(handle >= 0);
        if (tw_comm_rank(comm) == straggler)
            sleep_ns(next_random(&state) % 2000000);
        CHECK_EQ(tw_hccl_wait(session.hccl, handle), 0);
    }
    session_close(&session);
    free(send);
}

TEST_RANKS(straggler_changes_no_bit, "4")(tw_comm_t *comm)
{
    const size_t floats = (size_t)STEPS * STEP_FLOATS;
    float *calm = malloc(floats * sizeof(float));
    float *rough = malloc(floats * sizeof(float));
    CHECK(calm && rough);
    straggle_pass(comm, -1, calm);
    for (int straggler = 0; straggler < tw_comm_size(comm); straggler += 3) {
        straggle_pass(comm, straggler, rough);
        CHECK(memcmp(calm, rough, floats * sizeof(float)) == 0);
    }
    free(calm);
    free(rough);
}

/* ---- Many ranks, many communicators ---- */

static void many_body(tw_comm_t *comm, void *arg)
{
    (void)arg;
    all_calls(comm, 8, false);
    all_calls(comm, 64 * 1024 / 4 / (uint64_t)tw_comm_size(comm), false);
    CHECK_OK(tw_comm_barrier(comm));
}

TEST_SLOW(many_ranks_shm, 120)
{
    run_ranks(&default_shm, 64, 100 * SECOND, many_body, NULL);
}
TEST_SLOW(many_ranks_threads, 120)
{
    run_ranks(&default_threads, 16, 100 * SECOND, many_body, NULL);
}

#define N_COMMS 3

static void *use_comm(void *arg)
{
    tw_comm_t *comm = arg;
    for (int i = 0; i < 3; i++) {
        all_calls(comm, 50, false);
        all_calls(comm, 9000, i == 1);
    }
    return NULL;
}

static void several_body(tw_comm_t *comm, void *arg)
{
    (void)arg;
    tw_comm_t *comms[N_COMMS];
    pthread_t threads[N_COMMS];
    for (int i = 0; i < N_COMMS; i++) /* with ranks in different orders */
        CHECK_OK(tw_comm_split(comm, 0, i == 1 ? -tw_comm_rank(comm) : 0, NULL, &comms[i]));
    for (int i = 0; i < N_COMMS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, use_comm, comms[i]), 0);
    use_comm(comm);
    for (int i = 0; i < N_COMMS; i++) {
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
        tw_comm_destroy(comms[i]);
    }
}

TEST_RANKS(several_communicators_at_once, "3")(tw_comm_t *comm)
{
    several_body(comm, NULL);
}

/* ---- Deadlines ---- */

static void absent_body(tw_comm_t *comm, void *arg)
{
    sem_t *over = arg;
    session_t session;
    call_t c = {.command = TW_HCCL_CMD_ALLGATHER, .count = 20, .repeat = 1, .dtype = TW_HCCL_INT32};
    call_open(&c, comm);
    session_open(&session, comm);
    if (tw_comm_rank(comm) == 1) {
        take(over, 2);
    } else {
        const tw_hccl_handle_t handle = call_prepare(session.hccl, &c, TW_HCCL_COMMIT);
        CHECK_EQ(tw_hccl_wait(session.hccl, handle), -1);
        CHECK_CONTAINS(tw_last_error(), "rank 1");
        CHECK_CONTAINS(tw_last_error(), "did not enter");
        CHECK_CONTAINS(tw_last_error(), "all_gather task 0");
        CHECK_STATUS(tw_comm_status(comm), TW_ERR_TIMEOUT);
        CHECK_EQ(sem_post(over), 0);
    }
    session_drop(&session);
    call_close(&c);
}

TEST(absent_rank_shm)
{
    run_ranks(&default_shm, 3, 1 * SECOND, absent_body, shared_semaphore());
}
TEST(absent_rank_threads)
{
    run_ranks(&default_threads, 3, 1 * SECOND, absent_body, shared_semaphore());
}
TEST(absent_rank_staged)
{
    run_ranks(&ways[3], 3, 1 * SECOND, absent_body, shared_semaphore());
}

/* Waits for a task behind one that nobody commits: an error, and the communicator is lost. */
static void uncommitted_body(tw_comm_t *comm, void *arg)
{
    (void)arg;
    session_t session;
    call_t c = {.command = TW_HCCL_CMD_ALLREDUCE, .count = 20, .repeat = 1, .dtype = TW_HCCL_INT32};
    call_open(&c, comm);
    session_open(&session, comm);
    const tw_hccl_handle_t first = call_prepare(session.hccl, &c, 0);
    const tw_hccl_handle_t second = call_prepare(session.hccl, &c, TW_HCCL_COMMIT);
    CHECK_EQ(tw_hccl_wait(session.hccl, second), -1);
    CHECK_CONTAINS(tw_last_error(), "task 0");
    CHECK_CONTAINS(tw_last_error(), "not committed");
    CHECK_STATUS(tw_comm_status(comm), TW_ERR_TIMEOUT); /* or the buffers would be used after the error */
    tw_hccl_commit(session.hccl, first);
    CHECK_EQ(tw_hccl_wait(session.hccl, first), -1);
    session_drop(&session);
    call_close(&c);
}

TEST(uncommitted_task_times_out)
{
    run_ranks(&default_threads, 2, 1 * SECOND, uncommitted_body, NULL);
}

typedef struct late {
    tw_hccl_t *hccl;
    tw_hccl_handle_t handle;
} late_t;

static void *commit_later(void *arg)
{
    const late_t *late = arg;
    sleep_ns(10000000);
    tw_hccl_commit(late->hccl, late->handle);
    return NULL;
}

static void late_commit_body(tw_comm_t *comm, void *arg)
{
    (void)arg;
    session_t session;
    call_t c = {.command = TW_HCCL_CMD_ALLREDUCE, .count = 20000, .repeat = 1, .dtype = TW_HCCL_INT32};
    call_open(&c, comm);
    session_open(&session, comm);
    late_t late = {session.hccl, call_prepare(session.hccl, &c, 0)};
    const tw_hccl_handle_t second = call_prepare(session.hccl, &c, TW_HCCL_COMMIT);
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, commit_later, &late), 0);
    CHECK_EQ(tw_hccl_wait(session.hccl, second), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(tw_hccl_wait(session.hccl, late.handle), 0);
    call_check(&c);
    session_close(&session);
    call_close(&c);
}

TEST(late_commit_shm)
{
    run_ranks(&default_shm, 3, 20 * SECOND, late_commit_body, NULL);
}
TEST(late_commit_threads)
{
    run_ranks(&default_threads, 3, 20 * SECOND, late_commit_body, NULL);
}
