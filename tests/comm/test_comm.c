/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators: all ways to make one, everything that can be wrong with the request, names, splits,
 * symmetric memory, and start-up. When one rank's part is wrong, every rank must hear of it at once.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "harness/session.h"
#include "harness/test.h"

#define REFUSED(call, status, fragment)            \
    do {                                           \
        CHECK_STATUS(call, status);                \
        CHECK_CONTAINS(tw_last_error(), fragment); \
    } while (0)

static tw_comm_args_t callback_args(int rank, int size)
{
    tw_comm_args_t args = TW_COMM_ARGS_INIT;
    args.rank = rank;
    args.size = size;
    args.allgather = ranks_allgather;
    args.timeout_ns = args.enter_timeout_ns = test_scale_ns(20000000000u);
    return args;
}

/* The whole communicator in one rank: its allgather is a copy. */
static int allgather_alone(void *user, const void *in, void *out, size_t bytes)
{
    (void)user;
    memcpy(out, in, bytes);
    return 0;
}

static tw_comm_args_t alone_args(void)
{
    tw_comm_args_t args = TW_COMM_ARGS_INIT;
    args.size = 1;
    args.allgather = allgather_alone;
    return args;
}

static tw_comm_t *alone(const char *name)
{
    tw_comm_args_t args = alone_args();
    args.name = name;
    tw_comm_t *comm = NULL;
    CHECK_OK(tw_comm_create(&args, &comm));
    return comm;
}

static void run_bare(tw_transport_t transport, int n, void (*body)(int rank, void *arg), void *arg)
{
    ranks_args_t args = RANKS_ARGS_INIT;
    args.transport = transport;
    args.n = n;
    ranks_run_bare(&args, body, arg);
}

/* A case for each transport of a body that makes its communicators itself. */
#define TEST_BARE(name, ranks, arg)                       \
    TEST(name##_threads)                                  \
    {                                                     \
        run_bare(TW_TRANSPORT_THREADS, ranks, name, arg); \
    }                                                     \
    TEST(name##_shm)                                      \
    {                                                     \
        run_bare(TW_TRANSPORT_SHM, ranks, name, arg);     \
    }

static int free_port(void)
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
static void check_comm(tw_comm_t *comm, int rank, int size)
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
    run_bare(TW_TRANSPORT_THREADS, 3, meet_by_tcp, &(place_t){free_port(), 3});
}

TEST(made_by_tcp_shm)
{
    run_bare(TW_TRANSPORT_SHM, 3, meet_by_tcp, &(place_t){free_port(), 3});
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
    run_bare(TW_TRANSPORT_SHM, 3, meet_by_env, &(place_t){free_port(), 3});
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

/* ---- Wrong requests --------------------------------------------------------------------------- */

TEST(wrong_arguments)
{
    tw_comm_t *comm = NULL;
    tw_comm_args_t args;
#define CREATE_REFUSED(field, bad, fragment)                              \
    do {                                                                  \
        args = alone_args();                                              \
        args.field = (bad);                                               \
        REFUSED(tw_comm_create(&args, &comm), TW_ERR_ARGUMENT, fragment); \
        CHECK(comm == NULL);                                              \
    } while (0)
    REFUSED(tw_comm_create(NULL, &comm), TW_ERR_ARGUMENT, "args");
    args = alone_args();
    REFUSED(tw_comm_create(&args, NULL), TW_ERR_ARGUMENT, "comm_out");
    CREATE_REFUSED(size, 0, "size");
    CREATE_REFUSED(size, -1, "size");
    CREATE_REFUSED(size, INT32_MAX, "size");
    CREATE_REFUSED(rank, 1, "rank");
    CREATE_REFUSED(rank, -1, "rank");
    CREATE_REFUSED(transport, (tw_transport_t)3, "transport");
    CREATE_REFUSED(transport, (tw_transport_t)-1, "transport");
    CREATE_REFUSED(address, "tcp://127.0.0.1:1", "address");
    CREATE_REFUSED(window_bytes, SIZE_MAX, "window_bytes");
    static const char *const bad[] = {"",
                                      "tcp",
                                      "http://127.0.0.1:80",
                                      "tcp://",
                                      "tcp://127.0.0.1",
                                      "tcp://127.0.0.1:",
                                      "tcp://127.0.0.1:0",
                                      "tcp://127.0.0.1:65536",
                                      "tcp://127.0.0.1:x",
                                      "tcp://:1",
                                      "tcp://::1:80",
                                      "env",
                                      "ENV://"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        args = (tw_comm_args_t){.struct_size = sizeof args, .size = 2, .rank = 1, .address = bad[i]};
        REFUSED(tw_comm_create(&args, &comm), TW_ERR_ARGUMENT, "address");
    }
    CHECK(comm == NULL);
}

TEST(struct_sizes)
{
    struct {
        tw_comm_args_t args;
        uint64_t tail[4];
    } newer = {.args = alone_args()};
    tw_comm_t *comm = NULL;
    static const size_t wrong[] = {0, 1, 7, SIZE_MAX, SIZE_MAX / 2};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        newer.args.struct_size = wrong[i];
        REFUSED(tw_comm_create(&newer.args, &comm), TW_ERR_ARGUMENT, "struct_size");
    }
    newer.args.struct_size = sizeof newer; /* a newer caller that uses nothing new */
    CHECK_OK(tw_comm_create(&newer.args, &comm));
    tw_comm_destroy(comm);
    comm = NULL;
    newer.tail[3] = (uint64_t)1 << 63; /* the very last byte */
    REFUSED(tw_comm_create(&newer.args, &comm), TW_ERR_ARGUMENT, "struct_size");
    newer.args.struct_size = offsetof(tw_comm_args_t, transport); /* an older caller: the rest is unknown to it */
    newer.args.transport = (tw_transport_t)99;
    newer.args.window_bytes = SIZE_MAX;
    CHECK_OK(tw_comm_create(&newer.args, &comm));
    check_comm(comm, 0, 1);
    tw_comm_destroy(comm);
}

static void differing(int rank, void *arg)
{
    (void)arg;
    tw_comm_t *comm = NULL;
    tw_comm_args_t args = callback_args(rank, 3);
#define ALL_REFUSED(status, field, common, odd, fragment)        \
    do {                                                         \
        args = callback_args(rank, 3);                           \
        args.field = rank == 1 ? (odd) : (common);               \
        REFUSED(tw_comm_create(&args, &comm), status, fragment); \
        CHECK(comm == NULL);                                     \
    } while (0)
    ALL_REFUSED(TW_ERR_ARGUMENT, name, "a", "b", "name");
    ALL_REFUSED(TW_ERR_ARGUMENT, name, "a", NULL, "name");
    ALL_REFUSED(TW_ERR_ARGUMENT, name, NULL, "b", "name");
    ALL_REFUSED(TW_ERR_ARGUMENT, transport, TW_TRANSPORT_AUTO, TW_TRANSPORT_SHM, "transport");
    ALL_REFUSED(TW_ERR_ARGUMENT, window_bytes, 1 << 20, 2 << 20, "window_bytes");
    args = callback_args(rank, 3); /* and the ranks are still able to meet */
    CHECK_OK(tw_comm_create(&args, &comm));
    check_comm(comm, rank, 3);
    tw_comm_destroy(comm);
}
TEST_BARE(differing, 3, NULL)

typedef struct exchanges {
    int wrong; /* rank that says it is rank 0 */
    int calls[3];
} exchanges_t;

typedef struct counter {
    exchanges_t *exchanges;
    int rank;
} counter_t;

static int counted_allgather(void *user, const void *in, void *out, size_t bytes)
{
    counter_t *counter = user;
    counter->exchanges->calls[counter->rank]++;
    return ranks_allgather(NULL, in, out, bytes);
}

/* The caller's ranks are not those of its allgather: a failure, and nobody is left waiting for it. */
static void wrong_place(int rank, void *arg)
{
    counter_t counter = {.exchanges = arg, .rank = rank};
    tw_comm_args_t args = callback_args(rank == 2 ? 0 : rank, 3);
    tw_comm_t *comm = NULL;
    args.allgather = counted_allgather;
    args.allgather_user = &counter;
    const tw_status_t status = tw_comm_create(&args, &comm);
    CHECK(status != TW_OK && comm == NULL);
    if (rank == 2) {
        CHECK_EQ(status, TW_ERR_ARGUMENT);
        CHECK_CONTAINS(tw_last_error(), "rank 0");
    }
}

static void run_wrong_place(tw_transport_t transport)
{
    exchanges_t *e = test_shared_alloc(sizeof *e);
    run_bare(transport, 3, wrong_place, e);
    CHECK_EQ(e->calls[0], e->calls[2]); /* all ranks made the same exchanges */
    CHECK_EQ(e->calls[1], e->calls[2]);
}

TEST(wrong_place_threads)
{
    run_wrong_place(TW_TRANSPORT_THREADS);
}
TEST(wrong_place_shm)
{
    run_wrong_place(TW_TRANSPORT_SHM);
}

static int failing_allgather(void *user, const void *in, void *out, size_t bytes)
{
    int *calls_left = user;
    return (*calls_left)-- > 0 ? allgather_alone(NULL, in, out, bytes) : -7;
}

TEST(failing_callback)
{
    for (int good = 0; good < 2; good++) {
        int calls_left = good;
        tw_comm_args_t args = alone_args();
        args.allgather = failing_allgather;
        args.allgather_user = &calls_left;
        tw_comm_t *comm = NULL;
        REFUSED(tw_comm_create(&args, &comm), TW_ERR_SYSTEM, "-7");
        CHECK(comm == NULL);
    }
}

typedef struct strangers {
    int port;
    int ranks[3];
    int sizes[3];
} strangers_t;

static void meet_strangers(int rank, void *arg)
{
    const strangers_t *s = arg;
    char address[64];
    (void)snprintf(address, sizeof address, "tcp://127.0.0.1:%d", s->port);
    tw_comm_args_t args = TW_COMM_ARGS_INIT;
    args.address = address;
    args.rank = s->ranks[rank];
    args.size = s->sizes[rank];
    tw_comm_t *comm = NULL;
    const tw_status_t status = tw_comm_create(&args, &comm);
    CHECK(status != TW_OK && status != TW_ERR_TIMEOUT && comm == NULL);
    CHECK_CONTAINS(tw_last_error(), "rank");
}

TEST(duplicate_ranks)
{
    run_bare(TW_TRANSPORT_SHM, 3, meet_strangers, &(strangers_t){free_port(), {0, 1, 1}, {3, 3, 3}});
}

TEST(sizes_disagree)
{
    run_bare(TW_TRANSPORT_SHM, 2, meet_strangers, &(strangers_t){free_port(), {0, 1}, {2, 3}});
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
    run_bare(TW_TRANSPORT_SHM, 2, threads_apart, NULL);
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
    run_bare(TW_TRANSPORT_THREADS, 3, shm_together, NULL);
}

/* ---- Names ------------------------------------------------------------------------------------ */

TEST(name_lengths)
{
    char name[TW_NAME_MAX + 2];
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    tw_comm_args_t args = alone_args();
    tw_comm_t *comm = NULL;
    tw_comm_t *found = NULL;
    args.name = name;
    REFUSED(tw_comm_create(&args, &comm), TW_ERR_ARGUMENT, "name");
    REFUSED(tw_comm_find(name, 0, &found), TW_ERR_ARGUMENT, "name");
    args.name = "";
    REFUSED(tw_comm_create(&args, &comm), TW_ERR_ARGUMENT, "name");
    REFUSED(tw_comm_find("", 0, &found), TW_ERR_ARGUMENT, "name");
    static const size_t lengths[] = {1, 2, 90, 126, TW_NAME_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        char text[TW_NAME_MAX + 1] = {0};
        memset(text, 'x', lengths[i]);
        args.name = text;
        CHECK_OK(tw_comm_create(&args, &comm));
        memset(text, 'y', lengths[i]); /* it was copied */
        CHECK_EQ(strlen(tw_comm_name(comm)), lengths[i]);
        CHECK_EQ(tw_comm_name(comm)[0], 'x');
        CHECK_OK(tw_comm_find(tw_comm_name(comm), -1, &found));
        CHECK(found == comm);
        tw_comm_destroy(comm);
        comm = NULL;
    }
}

static void name_twice(int rank, void *arg)
{
    (void)arg;
    tw_comm_args_t args = callback_args(rank, 3);
    args.name = "twice";
    tw_comm_t *first = NULL, *second = NULL;
    CHECK_OK(tw_comm_create(&args, &first));
    REFUSED(tw_comm_create(&args, &second), TW_ERR_EXISTS, "twice");
    CHECK(second == NULL);
    check_comm(first, rank, 3);
    tw_comm_destroy(first);
    ranks_barrier();
    CHECK_OK(tw_comm_create(&args, &first));
    check_comm(first, rank, 3);
    tw_comm_destroy(first);
}
TEST_BARE(name_twice, 3, NULL)

/* Only rank 0 has the name already: all fail, and hear why. */
static void name_taken_on_one(int rank, void *arg)
{
    (void)arg;
    tw_comm_args_t args = callback_args(rank, 3);
    args.name = "taken";
    tw_comm_t *blocker = rank == 0 ? alone("taken") : NULL;
    tw_comm_t *comm = NULL;
    ranks_barrier();
    REFUSED(tw_comm_create(&args, &comm), TW_ERR_EXISTS, "rank 0");
    CHECK_CONTAINS(tw_last_error(), "taken");
    tw_comm_destroy(blocker);
    ranks_barrier();
    CHECK_OK(tw_comm_create(&args, &comm));
    tw_comm_destroy(comm);
}
TEST_BARE(name_taken_on_one, 3, NULL)

TEST_RANKS(find, "1,3")(tw_comm_t *comm)
{
    const int rank = tw_comm_rank(comm), size = tw_comm_size(comm);
    const bool threads = tw_comm_transport(comm) == TW_TRANSPORT_THREADS;
    tw_comm_t *found = NULL;
    REFUSED(tw_comm_find(NULL, 0, &found), TW_ERR_ARGUMENT, "name");
    REFUSED(tw_comm_find("x", 0, NULL), TW_ERR_ARGUMENT, "comm_out");
    REFUSED(tw_comm_find("x", -2, &found), TW_ERR_ARGUMENT, "rank -2");
    REFUSED(tw_comm_find("no such", -1, &found), TW_ERR_NOT_FOUND, "no such");
    REFUSED(tw_comm_find(tw_comm_name(comm), size, &found), TW_ERR_NOT_FOUND, tw_comm_name(comm));
    CHECK(found == NULL);
    CHECK_OK(tw_comm_find(tw_comm_name(comm), rank, &found));
    CHECK(found == comm);
    found = NULL;
    ranks_barrier();
    if (size > 1 && threads) {
        REFUSED(tw_comm_find(tw_comm_name(comm), -1, &found), TW_ERR_ARGUMENT, "rank");
        CHECK_OK(tw_comm_find(tw_comm_name(comm), (rank + 1) % size, &found));
        CHECK_EQ(tw_comm_rank(found), (rank + 1) % size);
    } else {
        CHECK_OK(tw_comm_find(tw_comm_name(comm), -1, &found));
        CHECK(found == comm);
    }
    ranks_barrier();
}

TEST(many_communicators)
{
    enum { N = 40 };
    tw_comm_t *comms[N];
    for (int i = 0; i < N; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "many %d", i);
        comms[i] = alone(i % 2 ? name : NULL);
    }
    for (int i = 0; i < N; i++) { /* a different order from that of creation */
        tw_comm_t *comm = comms[i * 7 % N];
        tw_comm_t *found = NULL;
        CHECK_OK(tw_comm_find(tw_comm_name(comm), -1, &found));
        CHECK(found == comm);
        check_comm(comm, 0, 1);
        tw_comm_destroy(comm);
    }
    tw_comm_destroy(NULL);
}

TEST(null_communicator)
{
    void *ptr = NULL;
    tw_comm_t *comm = NULL;
    CHECK_EQ(tw_comm_rank(NULL), -1);
    CHECK_EQ(tw_comm_size(NULL), -1);
    CHECK_STR(tw_comm_name(NULL), "");
    REFUSED(tw_comm_status(NULL), TW_ERR_ARGUMENT, "comm");
    REFUSED(tw_comm_barrier(NULL), TW_ERR_ARGUMENT, "comm");
    REFUSED(tw_comm_split(NULL, 0, 0, NULL, &comm), TW_ERR_ARGUMENT, "comm");
    REFUSED(tw_mem_alloc(NULL, 1, &ptr), TW_ERR_ARGUMENT, "comm");
    REFUSED(tw_mem_peer(NULL, &ptr, 0, &ptr), TW_ERR_ARGUMENT, "comm");
    tw_comm_abort(NULL, "x");
    tw_mem_free(NULL, &ptr);
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

/* ---- Split ------------------------------------------------------------------------------------ */

TEST_RANKS(split_order, "1,2,4,5")(tw_comm_t *comm)
{
    const int rank = tw_comm_rank(comm), size = tw_comm_size(comm);
    tw_comm_t *part = NULL;
    CHECK_OK(tw_comm_split(comm, 0, -rank, NULL, &part)); /* all, backwards */
    check_comm(part, size - 1 - rank, size);
    if (size > 1)
        CHECK_EQ(tw_comm_transport(part), tw_comm_transport(comm));
    tw_comm_destroy(part);
    CHECK_OK(tw_comm_split(comm, rank % 2, 7, NULL, &part)); /* halves; equal keys: by rank */
    check_comm(part, rank / 2, (size + 1 - rank % 2) / 2);
    tw_comm_destroy(part);
    CHECK_OK(tw_comm_split(comm, INT32_MAX - rank, INT32_MIN, NULL, &part)); /* everybody alone */
    check_comm(part, 0, 1);
    tw_comm_destroy(part);
    check_comm(comm, rank, size);
}

TEST_RANKS(split_without_some, "1,2,4")(tw_comm_t *comm)
{
    const int rank = tw_comm_rank(comm), size = tw_comm_size(comm);
    tw_comm_t *part = comm;
    CHECK_OK(tw_comm_split(comm, -1, 0, NULL, &part)); /* nobody */
    CHECK(part == NULL);
    part = comm;
    CHECK_OK(tw_comm_split(comm, rank == 0 ? -1 : 3, 0, "others", &part));
    if (rank == 0) {
        CHECK(part == NULL);
    } else {
        CHECK_STR(tw_comm_name(part), "others");
        check_comm(part, rank - 1, size - 1);
    }
    tw_comm_destroy(part);
    check_comm(comm, rank, size);
}

TEST_RANKS(split_of_split, "4")(tw_comm_t *comm)
{
    const int rank = tw_comm_rank(comm);
    tw_comm_t *half = NULL, *quarter = NULL, *whole = NULL;
    CHECK_OK(tw_comm_split(comm, rank / 2, 0, NULL, &half));
    CHECK_OK(tw_comm_split(half, 0, -rank, NULL, &quarter));
    CHECK_OK(tw_comm_split(comm, 0, 0, NULL, &whole));
    check_comm(half, rank % 2, 2);
    check_comm(quarter, 1 - rank % 2, 2);
    check_comm(whole, rank, 4);
    CHECK(strcmp(tw_comm_name(half), tw_comm_name(quarter)) != 0);
    CHECK(strcmp(tw_comm_name(comm), tw_comm_name(whole)) != 0);
    ranks_barrier();
    tw_comm_destroy(half); /* before its child */
    check_comm(quarter, 1 - rank % 2, 2);
    tw_comm_destroy(quarter);
    check_comm(whole, rank, 4);
    tw_comm_destroy(whole);
}

TEST_RANKS(split_arguments, "1,2")(tw_comm_t *comm)
{
    char name[TW_NAME_MAX + 2];
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    tw_comm_t *part = NULL;
    REFUSED(tw_comm_split(comm, 0, 0, NULL, NULL), TW_ERR_ARGUMENT, "comm_out");
    REFUSED(tw_comm_split(comm, -2, 0, NULL, &part), TW_ERR_ARGUMENT, "color -2");
    REFUSED(tw_comm_split(comm, 0, 0, "", &part), TW_ERR_ARGUMENT, "name");
    REFUSED(tw_comm_split(comm, 0, 0, name, &part), TW_ERR_ARGUMENT, "name");
    REFUSED(tw_comm_split(comm, 0, 0, tw_comm_name(comm), &part), TW_ERR_EXISTS, tw_comm_name(comm));
    CHECK(part == NULL);
    check_comm(comm, tw_comm_rank(comm), tw_comm_size(comm));
}

/* The names differ between ranks of one color: all of that color hear of it, the other color works. */
TEST_RANKS(split_names_differ, "4")(tw_comm_t *comm)
{
    const int rank = tw_comm_rank(comm);
    const char *const names[] = {"good", "good", "one", "two"};
    tw_comm_t *part = NULL;
    const tw_status_t status = tw_comm_split(comm, rank / 2, 0, names[rank], &part);
    if (rank < 2) {
        CHECK_OK(status);
        check_comm(part, rank, 2);
        tw_comm_destroy(part);
    } else {
        REFUSED(status, TW_ERR_ARGUMENT, "name");
    }
    check_comm(comm, rank, 4);
}

/* Derived names of parents whose long names differ only at the end. */
static void split_long_names(int rank, void *arg)
{
    (void)arg;
    tw_comm_t *parents[2] = {NULL, NULL}, *parts[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        char name[TW_NAME_MAX + 1] = {0};
        memset(name, 'p', TW_NAME_MAX);
        name[TW_NAME_MAX - 1] = (char)('0' + i);
        tw_comm_args_t args = callback_args(rank, 2);
        args.name = name;
        CHECK_OK(tw_comm_create(&args, &parents[i]));
        CHECK_OK(tw_comm_split(parents[i], 0, 0, NULL, &parts[i]));
    }
    for (int i = 0; i < 2; i++) {
        check_comm(parts[i], rank, 2);
        ranks_barrier();
        tw_comm_destroy(parts[i]);
        tw_comm_destroy(parents[i]);
    }
}
TEST_BARE(split_long_names, 2, NULL)

/* One name for two colors: fine between processes; within one the ranks of a color must agree. */
TEST_RANKS(split_one_name_for_two, "4")(tw_comm_t *comm)
{
    const int rank = tw_comm_rank(comm);
    for (int i = 0; i < 20; i++) {
        tw_comm_t *part = NULL;
        int32_t all[4];
        const int32_t status = tw_comm_split(comm, rank / 2, 0, "both", &part);
        CHECK_EQ(ranks_allgather(NULL, &status, all, sizeof status), 0);
        CHECK_EQ(status, all[rank ^ 1]);
        if (tw_comm_transport(comm) == TW_TRANSPORT_SHM)
            CHECK_EQ(status, TW_OK);
        CHECK(status == TW_OK || status == TW_ERR_EXISTS);
        ranks_barrier();
        tw_comm_destroy(part);
        ranks_barrier();
    }
}

/* ---- Symmetric memory ------------------------------------------------------------------------- */

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
    REFUSED(tw_mem_alloc(comm, 0, &ptr), TW_ERR_ARGUMENT, "bytes 0");
    REFUSED(tw_mem_alloc(comm, 1, NULL), TW_ERR_ARGUMENT, "ptr_out");
    CHECK(tw_mem_alloc(comm, SIZE_MAX, &ptr) != TW_OK);
    CHECK_CONTAINS(tw_last_error(), "bytes");
    REFUSED(tw_mem_alloc(comm, SIZE_MAX - 4096, &ptr), TW_ERR_NO_MEMORY, "bytes");
    REFUSED(tw_mem_alloc(comm, SIZE_MAX / 2, &ptr), TW_ERR_NO_MEMORY, "bytes");
    CHECK(ptr == NULL);
    CHECK_OK(tw_mem_alloc(comm, 128, &ptr));
    REFUSED(tw_mem_peer(comm, ptr, size, &peer), TW_ERR_ARGUMENT, "rank");
    REFUSED(tw_mem_peer(comm, ptr, -1, &peer), TW_ERR_ARGUMENT, "rank -1");
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
    run_bare(TW_TRANSPORT_SHM, 3, no_window, NULL);
}

/* ---- Start-up --------------------------------------------------------------------------------- */

static void init_refused(const char *setting, const char *fragment)
{
    const char *const settings[] = {"LOG=none", setting, NULL};
    tw_init_args_t args = TW_INIT_ARGS_INIT;
    args.settings = settings;
    REFUSED(tw_init(&args), TW_ERR_ARGUMENT, "settings[1]");
    CHECK_CONTAINS(tw_last_error(), fragment);
}

TEST(init_arguments)
{
    tw_init_args_t args = TW_INIT_ARGS_INIT;
    REFUSED(tw_init(NULL), TW_ERR_ARGUMENT, "args");
    args.struct_size = 3;
    REFUSED(tw_init(&args), TW_ERR_ARGUMENT, "struct_size");
    args = (tw_init_args_t)TW_INIT_ARGS_INIT;
    static const int versions[] = {-1, 200, TW_API_VERSION + 100, TW_API_VERSION + 10000};
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        args.api_version = versions[i];
        REFUSED(tw_init(&args), TW_ERR_ARGUMENT, "api_version");
    }
    init_refused("NOSUCH=1", "NOSUCH");
    init_refused("TIMEOUT", "NAME=value");
    init_refused("TIMEOUT=soon", "TIMEOUT");
    init_refused("WINDOW_BYTES=-1", "WINDOW_BYTES");
    init_refused("PROFILE=a9", "PROFILE");
    init_refused("=", "settings");
    args = (tw_init_args_t)TW_INIT_ARGS_INIT; /* what was refused left nothing behind */
    const char *const settings[] = {"WINDOW_BYTES=1M", "TIMEOUT=7s", NULL};
    args.settings = settings;
    CHECK_OK(tw_init(&args));
    REFUSED(tw_init(&args), TW_ERR_STATE, "settings");
    args.settings = NULL;
    CHECK_OK(tw_init(&args));
    tw_comm_t *comm = alone(NULL);
    void *ptr = NULL;
    REFUSED(tw_mem_alloc(comm, (1 << 20) + 1, &ptr), TW_ERR_NO_MEMORY, "1048576");
    tw_comm_destroy(comm);
}

TEST(init_is_late)
{
    const char *const settings[] = {"TIMEOUT=7s", NULL};
    tw_comm_t *comm = alone(NULL); /* initialises */
    tw_init_args_t args = TW_INIT_ARGS_INIT;
    CHECK_OK(tw_init(&args));
    args.settings = settings;
    REFUSED(tw_init(&args), TW_ERR_STATE, "settings");
    tw_comm_destroy(comm);
}

TEST(environment_is_read)
{
    CHECK_EQ(setenv("TILEWIRE_WINDOW_BYTES", "2M", 1), 0);
    CHECK_EQ(setenv("TILEWIRE_TIMEOUT", "nonsense", 1), 0); /* a warning */
    tw_comm_t *comm = alone(NULL);
    void *ptr = NULL;
    CHECK_OK(tw_mem_alloc(comm, 2 << 20, &ptr));
    REFUSED(tw_mem_alloc(comm, 1, &ptr), TW_ERR_NO_MEMORY, "2097152");
    tw_comm_destroy(comm);
}

TEST(info_rows)
{
    static const char *const sections[] = {"version", "cpu", "topology", "transport", "config"};
    unsigned seen[5] = {0};
    unsigned n = 0;
    tw_info_row_t row;
    REFUSED(tw_info(0, NULL), TW_ERR_ARGUMENT, "row_out");
    for (; tw_info(n, &row) == TW_OK; n++) {
        CHECK(row.section != NULL && row.name != NULL && row.value != NULL && row.help != NULL);
        CHECK(row.name[0] != '\0');
        int section = 0;
        while (section < 5 && strcmp(sections[section], row.section) != 0)
            section++;
        CHECK(section < 5);
        seen[section]++;
        if (strcmp(row.name, "tilewire") == 0)
            CHECK_STR(row.value, "0.1.0");
    }
    for (int i = 0; i < 5; i++)
        CHECK(seen[i] > 0);
    REFUSED(tw_info(n, &row), TW_ERR_NOT_FOUND, "index");
    REFUSED(tw_info(UINT32_MAX, &row), TW_ERR_NOT_FOUND, "index");
    CHECK_EQ(tw_version(), TW_API_VERSION);
}

/* Secrets are not shown. */
TEST(info_hides_the_token)
{
    CHECK_EQ(setenv("TILEWIRE_TOKEN", "open sesame", 1), 0);
    tw_info_row_t row;
    for (unsigned i = 0; tw_info(i, &row) == TW_OK; i++)
        CHECK(strstr(row.value, "sesame") == NULL);
}

TEST(statuses_have_texts)
{
    for (int s = -100; s < 10; s++) {
        const char *text = tw_status_string((tw_status_t)s);
        CHECK(text != NULL && text[0] != '\0');
    }
}
