/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of communicators: their lengths, finding one by name, names that are taken, and ranks in the log.
 */
#include <stdio.h>

#include "comm/comm_make.h"

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

static char g_log[65536];

static void collect(void *user, tw_log_level_t level, const char *line)
{
    (void)level;
    CHECK(user == g_log && strlen(g_log) + strlen(line) + 2 < sizeof g_log);
    strcat(strcat(g_log, line), "\n");
}

/* Many ranks write to one terminal. */
TEST(log_shows_the_rank)
{
    tw_init_args_t init = TW_INIT_ARGS_INIT;
    tw_comm_args_t args = alone_args();
    tw_comm_t *comm = NULL, *none = NULL;
    init.log = collect;
    init.log_user = g_log;
    init.settings = (const char *const[]){"LOG=debug", NULL};
    CHECK_OK(tw_init(&init));
    CHECK_OK(tw_comm_create(&args, &comm));
    REFUSED(tw_comm_find("inside", 0, &none), TW_ERR_NOT_FOUND, "inside");
    CHECK_CONTAINS(g_log, " debug rank 0 ");
    tw_comm_destroy(comm);
    g_log[0] = '\0';
    REFUSED(tw_comm_find("outside", 0, &none), TW_ERR_NOT_FOUND, "outside");
    CHECK_CONTAINS(g_log, "outside");
    CHECK(strstr(g_log, " debug rank ") == NULL);
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
    REFUSED(tw_comm_find("x", -2, &found), TW_ERR_ARGUMENT, "rank is -2");
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
