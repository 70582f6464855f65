/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everything that can be wrong with a request for a communicator. When one rank's part is wrong, every
 * rank must hear of it at once.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "comm/comm_make.h"

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
    ALL_REFUSED(TW_ERR_ARGUMENT, transport, TW_TRANSPORT_AUTO, TW_TRANSPORT_SHM,
                "transport: rank 0 asks for auto, rank 1 for shm");
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
    ranks_run_on(transport, 3, wrong_place, e);
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
    ranks_run_on(TW_TRANSPORT_SHM, 3, meet_strangers, &(strangers_t){free_port(), {0, 1, 1}, {3, 3, 3}});
}

TEST(sizes_disagree)
{
    ranks_run_on(TW_TRANSPORT_SHM, 2, meet_strangers, &(strangers_t){free_port(), {0, 1}, {2, 3}});
}

/* ---- No room for the exchange ------------------------------------------------------------------ */

/* One rank has no descriptors left: all hear of it at once, none waits for the others' deadline. */
static void crowded(int rank, void *arg)
{
    (void)arg;
    if (rank == 1) {
        const int next = dup(0); /* enough for the window, the listener and two peers */
        CHECK(next >= 0 && close(next) == 0);
        const struct rlimit limit = {.rlim_cur = (rlim_t)next + 4, .rlim_max = (rlim_t)next + 4};
        CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    }
    tw_comm_args_t args = callback_args(rank, 6);
    args.transport = TW_TRANSPORT_SHM;
    tw_comm_t *comm = NULL;
    CHECK_STATUS(tw_comm_create(&args, &comm), TW_ERR_SYSTEM);
    CHECK_CONTAINS(tw_last_error(), rank == 1 ? "descriptors" : "rank 1");
}

TEST_SLOW(no_descriptors_left, 60)
{
    ranks_run_on(TW_TRANSPORT_SHM, 6, crowded, NULL);
}

TEST(world_too_large)
{
    tw_comm_args_t args = TW_COMM_ARGS_INIT;
    tw_comm_t *comm = NULL;
    CHECK_EQ(setenv("RANK", "0", 1), 0);
    CHECK_EQ(setenv("WORLD_SIZE", "2000", 1), 0);
    CHECK_STATUS(tw_comm_create(&args, &comm), TW_ERR_ARGUMENT);
    CHECK_CONTAINS(tw_last_error(), "WORLD_SIZE");
    args.address = "tcp://127.0.0.1:1";
    args.size = 1025;
    CHECK_STATUS(tw_comm_create(&args, &comm), TW_ERR_ARGUMENT);
    CHECK_CONTAINS(tw_last_error(), "1025");
}

/* Slots of different sizes lie at different places: the ranks must agree on them, and find out. */
static void other_size(int rank, void *arg)
{
    const char *name = arg;
    char sentence[128];
    CHECK_EQ(setenv(name, rank == 1 ? "4K" : "8K", 1), 0);
    tw_comm_args_t args = callback_args(rank, 2);
    tw_comm_t *comm = NULL;
    CHECK_STATUS(tw_comm_create(&args, &comm), TW_ERR_ARGUMENT);
    (void)snprintf(sentence, sizeof sentence, "%s: rank 0 says 8192, rank 1 says 4096", name);
    CHECK_CONTAINS(tw_last_error(), sentence);
}

TEST(eager_sizes_differ)
{
    ranks_run_on(TW_TRANSPORT_SHM, 2, other_size, "TILEWIRE_EAGER_BYTES");
}

TEST(stage_sizes_differ)
{
    ranks_run_on(TW_TRANSPORT_SHM, 2, other_size, "TILEWIRE_STAGE_BYTES");
}

TEST(fuse_sizes_differ)
{
    ranks_run_on(TW_TRANSPORT_SHM, 2, other_size, "TILEWIRE_FUSE_BYTES");
}
