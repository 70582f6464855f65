/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_COMM_MAKE_H
#define TESTS_COMM_MAKE_H
/*
 * What the tests of communicators share: requests that are right, bodies that make their
 * communicators themselves, and the check that a communicator is healthy.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "harness/session.h"
#include "harness/test.h"

#define REFUSED(call, status, fragment)            \
    do {                                           \
        CHECK_STATUS(call, status);                \
        CHECK_CONTAINS(tw_last_error(), fragment); \
    } while (0)

static inline tw_comm_args_t callback_args(int rank, int size)
{
    tw_comm_args_t args = TW_COMM_ARGS_INIT;
    args.rank = rank;
    args.size = size;
    args.allgather = ranks_allgather;
    args.timeout_ns = args.enter_timeout_ns = test_scale_ns(20000000000u);
    return args;
}

/* The whole communicator in one rank: its allgather is a copy. */
static inline int allgather_alone(void *user, const void *in, void *out, size_t bytes)
{
    (void)user;
    memcpy(out, in, bytes);
    return 0;
}

static inline tw_comm_args_t alone_args(void)
{
    tw_comm_args_t args = TW_COMM_ARGS_INIT;
    args.size = 1;
    args.allgather = allgather_alone;
    return args;
}

static inline tw_comm_t *alone(const char *name)
{
    tw_comm_args_t args = alone_args();
    args.name = name;
    tw_comm_t *comm = NULL;
    CHECK_OK(tw_comm_create(&args, &comm));
    return comm;
}

static inline void ranks_run_on(tw_transport_t transport, int n, void (*body)(int rank, void *arg), void *arg)
{
    ranks_args_t args = RANKS_ARGS_INIT;
    args.transport = transport;
    args.n = n;
    ranks_run_bare(&args, body, arg);
}

/* A case for each transport of a body that makes its communicators itself. */
#define TEST_BARE(name, ranks, arg)                           \
    TEST(name##_threads)                                      \
    {                                                         \
        ranks_run_on(TW_TRANSPORT_THREADS, ranks, name, arg); \
    }                                                         \
    TEST(name##_shm)                                          \
    {                                                         \
        ranks_run_on(TW_TRANSPORT_SHM, ranks, name, arg);     \
    }

static inline int free_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    CHECK_EQ(bind(fd, (struct sockaddr *)&at, length), 0);
    CHECK_EQ(getsockname(fd, (struct sockaddr *)&at, &length), 0);
    (void)close(fd);
    return ntohs(at.sin_port);
}

/* Everything that must hold of a healthy communicator. */
static inline void check_comm(tw_comm_t *comm, int rank, int size)
{
    CHECK_EQ(tw_comm_rank(comm), rank);
    CHECK_EQ(tw_comm_size(comm), size);
    CHECK(tw_comm_name(comm)[0] != '\0' && strlen(tw_comm_name(comm)) <= TW_NAME_MAX);
    CHECK_OK(tw_comm_status(comm));
    CHECK_OK(tw_comm_barrier(comm));
    CHECK_OK(tw_comm_barrier(comm));
    session_t session;
    session_open(&session, comm);
    int32_t mine = 1 << rank;
    int32_t all = 0;
    CHECK_EQ(tw_hccl_all_reduce(session.hccl, &mine, &all, 1, TW_HCCL_INT32, TW_HCCL_SUM, 1, TW_HCCL_COMMIT), 0);
    session_close(&session);
    CHECK_EQ(all, (1 << size) - 1);
}

#endif
