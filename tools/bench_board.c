/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The board: a memfd mapped by every rank. Other processes open it through /proc/<pid>/fd, because
 * not every launcher hands descriptors on; only processes of the same user can. Nothing has a name.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

enum {
    BARRIER_SECONDS = 600, /* a rank that verifies a large case on a busy machine is slow, not dead */
    NOTICE_SECONDS = 30,   /* after which that is said */
};

static int most_iters(const bench_plan_t *plan)
{
    int most = 1;
    for (int i = 0; i < plan->bytes.n; i++) {
        const int iters = bench_iters(plan, plan->bytes.value[i]);
        most = iters > most ? iters : most;
    }
    return most;
}

static void *map_shared(int fd, size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return memory != MAP_FAILED ? memory : NULL;
}

void *bench_shared_create(size_t bytes, int ranks, char *path_out, size_t path_bytes)
{
    const int fd = memfd_create("tilewire-bench", MFD_CLOEXEC); /* stays open: ranks open it by our pid */
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
        return NULL;
    bench_meeting_t *meeting = map_shared(fd, bytes);
    if (meeting == NULL)
        return NULL;
    meeting->bytes = bytes;
    meeting->ranks = ranks;
    meeting->n_cpus = bench_allowed();
    (void)snprintf(path_out, path_bytes, "/proc/%d/fd/%d", (int)getpid(), fd);
    return meeting;
}

void *bench_shared_open(const char *path, size_t least_bytes)
{
    struct stat info;
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    void *shared = NULL;
    if (fstat(fd, &info) == 0 && (size_t)info.st_size >= least_bytes)
        shared = map_shared(fd, (size_t)info.st_size);
    (void)close(fd);
    return shared;
}

void bench_shared_close(void *shared)
{
    if (shared != NULL)
        (void)munmap(shared, ((bench_meeting_t *)shared)->bytes);
}

bench_board_t *bench_board_create(const bench_plan_t *plan, char *path_out, size_t path_bytes)
{
    const int iters = most_iters(plan);
    const size_t bytes = sizeof(bench_board_t) + BENCH_VARIANTS * (size_t)plan->ranks * (size_t)iters * sizeof(double);
    bench_board_t *board = bench_shared_create(bytes, plan->ranks, path_out, path_bytes);
    if (board != NULL) {
        board->plan = *plan;
        board->iters_max = iters;
        board->meeting.threads = plan->threads;
        board->meeting.isa = plan->isa;
        board->meeting.transport = plan->transport;
        board->meeting.mpi = plan->peers;
    }
    return board;
}

double *bench_board_times(bench_board_t *board, bench_variant_t variant, int rank)
{
    const size_t row = (size_t)variant * (size_t)board->plan.ranks + (size_t)rank;
    return board->times + row * (size_t)board->iters_max;
}

static void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static time_t seconds_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec;
}

/* Of several ranks that wait one speaks. */
static void say_that_some_lack(bench_meeting_t *meeting, uint32_t round, time_t seconds)
{
    uint32_t said = atomic_load_explicit(&meeting->said, memory_order_relaxed);
    if (said == round + 1 || !atomic_compare_exchange_strong(&meeting->said, &said, round + 1))
        return;
    const uint32_t arrived = atomic_load_explicit(&meeting->arrived, memory_order_relaxed);
    (void)fprintf(stderr, "tilewire: %u of %d ranks have waited for the others for %ld s; at most %d\n", arrived,
                  meeting->ranks, (long)seconds, BARRIER_SECONDS);
}

/* The slow part of waiting: gives the core away between looks. Naps would make ranks start apart: not before long. */
static bool wait_slowly(bench_meeting_t *meeting, uint32_t round)
{
    const time_t begin = seconds_now();
    bool naps = false;
    for (unsigned i = 1; atomic_load_explicit(&meeting->round, memory_order_acquire) == round; i++) {
        const time_t waited = naps || i % 1024 == 0 ? seconds_now() - begin : 0;
        if (atomic_load_explicit(&meeting->failed, memory_order_relaxed) != 0 || waited > BARRIER_SECONDS)
            return false;
        if (waited > NOTICE_SECONDS && !naps) {
            say_that_some_lack(meeting, round, waited);
            naps = true;
        }
        if (naps)
            (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        else
            (void)sched_yield();
    }
    return true;
}

bool bench_barrier(bench_meeting_t *meeting)
{
    const uint32_t ranks = (uint32_t)meeting->ranks;
    const int spins = meeting->ranks <= meeting->n_cpus ? 20000 : 20;
    const uint32_t round = atomic_load_explicit(&meeting->round, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&meeting->arrived, 1, memory_order_acq_rel) + 1 == ranks) {
        atomic_store_explicit(&meeting->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&meeting->round, round + 1, memory_order_release);
        return atomic_load_explicit(&meeting->failed, memory_order_relaxed) == 0;
    }
    for (int i = 0; i < spins; i++) {
        if (atomic_load_explicit(&meeting->round, memory_order_acquire) != round)
            return true;
        pause_cpu();
    }
    return wait_slowly(meeting, round);
}
