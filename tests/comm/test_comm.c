/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators: the ways to make one, its transport, and how ranks leave it.
 */
#include <stdio.h>
#include <stdlib.h>

#include "comm/comm_make.h"

/* ---- Ways to meet ----------------------------------------------------------------------------- */

TEST_RANKS(made_by_callback, "1,2,3,5")(tw_comm_t *comm)
{
    char name[TW_NAME_MAX + 1] = {0};
    char names[5][TW_NAME_MAX + 1];
    check_comm(comm, tw_comm_rank(comm), tw_comm_size(comm));
    (void)snprintf(name, sizeof name, "%s", tw_comm_name(comm));
    CHECK_EQ(ranks_allgather(NULL, name, names, sizeof name), 0);
    for (int r = 0; r < tw_comm_size(comm); r++)
        CHECK_STR(names[r], name);
}

typedef struct place {
    int port;
    int size;
} place_t;

static void meet_by_tcp(int rank, void *arg)
{
    const place_t *place = arg;
    char address[64];
    (void)snprintf(address, sizeof address, "tcp://127.0.0.1:%d", place->port);
    tw_comm_args_t args = TW_COMM_ARGS_INIT;
    args.address = address;
    args.rank = rank;
    args.size = place->size;
    args.name = "by tcp";
    tw_comm_t *comm = NULL;
    for (int i = 0; i < 3; i++) { /* the same port again and again */
        CHECK_OK(tw_comm_create(&args, &comm));
        CHECK_STR(tw_comm_name(comm), "by tcp");
        check_comm(comm, rank, place->size);
        tw_comm_destroy(comm);
    }
}

TEST(made_by_tcp_threads)
{
    ranks_run_on(TW_TRANSPORT_THREADS, 3, meet_by_tcp, &(place_t){free_port(), 3});
}

TEST(made_by_tcp_shm)
{
    ranks_run_on(TW_TRANSPORT_SHM, 3, meet_by_tcp, &(place_t){free_port(), 3});
}

TEST(made_by_tcp_alone)
{
    meet_by_tcp(0, &(place_t){free_port(), 1});
}

static void set_number(const char *name, int number)
{
    char text[16];
    (void)snprintf(text, sizeof text, "%d", number);
    CHECK_EQ(setenv(name, text, 1), 0);
}

static void clear_launcher(void)
{
    static const char *const names[] = {"RANK",         "WORLD_SIZE",           "MASTER_ADDR",
                                        "MASTER_PORT",  "OMPI_COMM_WORLD_RANK", "PMI_RANK",
                                        "SLURM_PROCID", "TORCHELASTIC_RUN_ID",  "TORCHELASTIC_USE_AGENT_STORE",
                                        "TILEWIRE_PORT"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        (void)unsetenv(names[i]);
}

static void meet_by_env(int rank, void *arg)
{
    const place_t *place = arg;
    clear_launcher();
    set_number("RANK", rank);
    set_number("WORLD_SIZE", place->size);
    set_number("MASTER_PORT", place->port);
    CHECK_EQ(setenv("MASTER_ADDR", "127.0.0.1", 1), 0);
    tw_comm_args_t args = TW_COMM_ARGS_INIT;
    args.rank = 77; /* ignored */
    args.size = -5;
    tw_comm_t *comm = NULL;
    for (int i = 0; i < 2; i++) {
        args.address = i == 0 ? NULL : "env://";
        CHECK_OK(tw_comm_create(&args, &comm));
        check_comm(comm, rank, place->size);
        tw_comm_destroy(comm);
    }
}

TEST(made_by_env)
{
    ranks_run_on(TW_TRANSPORT_SHM, 3, meet_by_env, &(place_t){free_port(), 3});
}

TEST(env_is_missing)
{
    tw_comm_args_t args = TW_COMM_ARGS_INIT;
    tw_comm_t *comm = NULL;
    clear_launcher();
    REFUSED(tw_comm_create(&args, &comm), TW_ERR_ARGUMENT, "RANK");
    CHECK_EQ(setenv("RANK", "0", 1), 0);
    REFUSED(tw_comm_create(&args, &comm), TW_ERR_ARGUMENT, "WORLD_SIZE");
    CHECK_EQ(setenv("WORLD_SIZE", "two", 1), 0);
    REFUSED(tw_comm_create(&args, &comm), TW_ERR_ARGUMENT, "WORLD_SIZE");
    CHECK_EQ(setenv("WORLD_SIZE", "2", 1), 0);
    REFUSED(tw_comm_create(&args, &comm), TW_ERR_ARGUMENT, "MASTER_PORT");
    CHECK_EQ(setenv("RANK", "2", 1), 0);
    REFUSED(tw_comm_create(&args, &comm), TW_ERR_ARGUMENT, "RANK");
    CHECK(comm == NULL);
}

/* ---- Transports ------------------------------------------------------------------------------- */

static void threads_apart(int rank, void *arg)
{
    (void)arg;
    tw_comm_args_t args = callback_args(rank, 2);
    args.transport = TW_TRANSPORT_THREADS;
    tw_comm_t *comm = NULL;
    REFUSED(tw_comm_create(&args, &comm), TW_ERR_UNSUPPORTED, "transport");
    args.transport = TW_TRANSPORT_AUTO;
    CHECK_OK(tw_comm_create(&args, &comm));
    CHECK_EQ(tw_comm_transport(comm), TW_TRANSPORT_SHM);
    check_comm(comm, rank, 2);
    tw_comm_destroy(comm);
}

TEST(threads_across_processes)
{
    ranks_run_on(TW_TRANSPORT_SHM, 2, threads_apart, NULL);
}

static void shm_together(int rank, void *arg)
{
    (void)arg;
    tw_comm_args_t args = callback_args(rank, 3);
    args.transport = TW_TRANSPORT_SHM;
    tw_comm_t *comm = NULL;
    CHECK_OK(tw_comm_create(&args, &comm));
    CHECK_EQ(tw_comm_transport(comm), TW_TRANSPORT_SHM);
    check_comm(comm, rank, 3);
    tw_comm_destroy(comm);
    args.transport = TW_TRANSPORT_AUTO;
    CHECK_OK(tw_comm_create(&args, &comm));
    CHECK_EQ(tw_comm_transport(comm), TW_TRANSPORT_THREADS);
    tw_comm_destroy(comm);
}

TEST(shm_within_a_process)
{
    ranks_run_on(TW_TRANSPORT_THREADS, 3, shm_together, NULL);
}

/* ---- Leaving ---------------------------------------------------------------------------------- */

static void leave_early(tw_comm_t *comm, void *arg)
{
    (void)arg;
    if (tw_comm_rank(comm) == 1)
        return; /* the harness destroys it */
    REFUSED(tw_comm_barrier(comm), TW_ERR_PEER_LEFT, "rank 1");
    CHECK(tw_comm_status(comm) != TW_OK);
    tw_comm_t *part = NULL;
    CHECK(tw_comm_split(comm, 0, 0, NULL, &part) != TW_OK);
    CHECK(part == NULL);
}

static void run_leave_early(tw_transport_t transport)
{
    ranks_args_t args = RANKS_ARGS_INIT;
    args.transport = transport;
    args.n = 3;
    ranks_run(&args, leave_early, NULL);
}

TEST(leave_early_threads)
{
    run_leave_early(TW_TRANSPORT_THREADS);
}
TEST(leave_early_shm)
{
    run_leave_early(TW_TRANSPORT_SHM);
}

TEST_RANKS(abort_all, "1,2,3")(tw_comm_t *comm)
{
    if (tw_comm_rank(comm) == 0)
        tw_comm_abort(comm, "had enough");
    REFUSED(tw_comm_barrier(comm), TW_ERR_ABORTED, "had enough");
    CHECK_STATUS(tw_comm_status(comm), TW_ERR_ABORTED);
    ranks_barrier(); /* nobody leaves before all have heard */
}

TEST_RANKS(session_is_open, "1,2")(tw_comm_t *comm)
{
    session_t session;
    tw_comm_t *part = NULL;
    session_open(&session, comm);
    REFUSED(tw_comm_barrier(comm), TW_ERR_STATE, "session");
    REFUSED(tw_comm_split(comm, 0, 0, NULL, &part), TW_ERR_STATE, "session");
    session_close(&session);
    check_comm(comm, tw_comm_rank(comm), tw_comm_size(comm));
}
