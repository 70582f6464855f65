/* SPDX-License-Identifier: Apache-2.0 */
/* Cases that pass, fail, hang, crash and skip; scripts/test_checks.sh knows which must do what. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "test.h"

TEST(pass)
{
    CHECK(true);
    CHECK_EQ(2 + 2, 4);
    CHECK_STR("a", "a");
    CHECK_CONTAINS("abc", "b");
    CHECK_OK(TW_OK);
}

TEST(fail_eq)
{
    CHECK_EQ(2 + 2, 5);
}

TEST(fail_status)
{
    CHECK_OK(TW_ERR_TIMEOUT);
}

TEST_SLOW(hang, 1)
{
    if (fork() == 0)
        (void)pause();
    (void)pause();
}

TEST(crash)
{
    (void)raise(SIGSEGV);
}

TEST(skip)
{
    SKIP("because");
}

static void meet_twice(int rank, void *arg)
{
    (void)arg;
    int all[3] = {-1, -1, -1};
    CHECK_EQ(ranks_allgather(NULL, &rank, all, sizeof rank), 0);
    CHECK_EQ(all[2], 2);
    ranks_barrier();
}

static void fail_on_1(int rank, void *arg)
{
    (void)arg;
    CHECK(rank != 1);
}

static void wait_for_dead(int rank, void *arg)
{
    (void)arg;
    if (rank == 1)
        (void)kill(getpid(), SIGKILL);
    ranks_barrier();
}

static void stop_1(int rank, void *arg)
{
    (void)arg;
    if (rank == 1)
        (void)raise(SIGSTOP);
}

static void skip_all(int rank, void *arg)
{
    (void)rank;
    (void)arg;
    SKIP("ranks");
}

static void bare(tw_transport_t transport, int victim, void (*body)(int, void *))
{
    const ranks_args_t args = {.transport = transport, .n = 3, .victim = victim};
    ranks_run_bare(&args, body, NULL);
}

TEST(pass_ranks)
{
    bare(TW_TRANSPORT_THREADS, -1, meet_twice);
    bare(TW_TRANSPORT_SHM, -1, meet_twice);
}

TEST(pass_ranks_victim)
{
    bare(TW_TRANSPORT_SHM, 1, stop_1);
}

TEST(skip_ranks)
{
    bare(TW_TRANSPORT_SHM, -1, skip_all);
}

TEST(fail_ranks_process)
{
    bare(TW_TRANSPORT_SHM, -1, fail_on_1);
}

TEST(fail_ranks_thread)
{
    bare(TW_TRANSPORT_THREADS, -1, fail_on_1);
}

TEST(fail_ranks_dead)
{
    bare(TW_TRANSPORT_SHM, -1, wait_for_dead);
}
