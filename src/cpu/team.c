/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker team. The caller holds `callers` during a run, so that there is one job at a time, and
 * every worker takes part in every job.
 *
 *     caller                                        worker
 *     fn, arg, left = n - 1                         wait until job differs from the last one  (J2)
 *     job = next                     (J1)           fn(arg, ...)
 *     fn(arg, 0, n)                                 left--                                    (L1)
 *     wait until left is 0           (L2)
 *
 * J1 is a release that pairs with the acquire J2: the worker sees fn, arg and what they point to. L1 is
 * a release that pairs with the acquire L2, from every worker, because decrements continue each
 * other's release sequence: the caller sees what the workers wrote, and may overwrite fn and arg.
 *
 * No wake-up is lost, because "somebody sleeps" is a bit of the very word that is waited for. A sleeper
 * sets the bit by compare-and-swap from the value that makes it wait, then calls futex_wait with the
 * value that has the bit. All changes of a word have one order. If the sleeper's comes first, J1 (an
 * exchange) or the last L1 (a decrement) returns the bit and whoever made it calls futex_wake; the
 * sleeper is either queued and woken, or finds another value in the word and does not sleep. If it
 * comes second, it fails and the sleeper looks again. The bits go away with J1 and with the next job's
 * left. A late futex_wake of an earlier job wakes for nothing; all waits are loops.
 *
 * The number of the job may wrap: a worker is never more than one job behind.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/futex.h"
#include "base/log.h"
#include "base/sizes.h"
#include "cpu/cpu.h"
#include "cpu/team.h"

#define SPIN_NS 20000
#define SPINS_PER_CLOCK 16 /* looks at the word between looks at the clock */

enum { CPU_LIMIT = 1 << 16 };

#define JOB_SLEEPERS 1u         /* of `job`: workers sleep on it */
#define JOB_STEP 2u             /* from one job to the next */
#define LEFT_SLEEPER (1u << 31) /* of `left`: the caller sleeps on it */

typedef struct worker {
    pthread_t thread;
    twi_team_t *team;
    int index;
    int cpu; /* the one it is bound to; -1: none */
} worker_t;

struct twi_team {
    int n_workers;
    int n_threads; /* started, at most n_workers - 1 */
    pid_t owner;   /* the process that has the threads */
    uint64_t spin_ns;
    int free_cpu; /* the CPU left to the caller; -1: workers are not bound */
    pthread_mutex_t callers;

    _Alignas(TWI_CACHE_LINE) _Atomic uint32_t job; /* number of the job and JOB_SLEEPERS */
    twi_team_fn fn;                                /* NULL: the workers end */
    void *arg;

    _Alignas(TWI_CACHE_LINE) _Atomic uint32_t left; /* workers still busy and LEFT_SLEEPER */

    _Alignas(TWI_CACHE_LINE) worker_t workers[]; /* [0] is the thread of worker 1 */
};

/* This thread runs a share of some team. */
static _Thread_local bool t_inside;

/* ---- Waiting ---------------------------------------------------------------------------------- */

/* True if the word apart from `bit` is `value`, acquired; *seen_out is all of it. */
static bool word_is(_Atomic uint32_t *word, uint32_t bit, uint32_t value, uint32_t *seen_out)
{
    *seen_out = atomic_load_explicit(word, memory_order_acquire); /* J2, L2 */
    return (*seen_out & ~bit) == value;
}

/* Spins until the word apart from `bit` is `value` or is not, as `equal` says; false: out of time. */
static bool spin(_Atomic uint32_t *word, uint32_t bit, uint32_t value, bool equal, uint64_t spin_ns)
{
    uint32_t seen;
    if (word_is(word, bit, value, &seen) == equal)
        return true;
    if (spin_ns == 0)
        return false;
    const uint64_t end = twi_now_ns() + spin_ns;
    do {
        for (int i = 0; i < SPINS_PER_CLOCK; i++) {
            twi_pause();
            if (word_is(word, bit, value, &seen) == equal)
                return true;
        }
    } while (twi_now_ns() < end);
    return false;
}

/* Sleeps until the word apart from `bit` is `value` or is not, as `equal` says. */
static void doze(_Atomic uint32_t *word, uint32_t bit, uint32_t value, bool equal)
{
    uint32_t seen;
    while (word_is(word, bit, value, &seen) != equal) {
        if ((seen & bit) == 0 && !atomic_compare_exchange_strong_explicit(word, &seen, seen | bit, memory_order_relaxed,
                                                                          memory_order_relaxed))
            continue;
        twi_futex_wait_private(word, seen | bit, TWI_FUTEX_NO_LIMIT);
    }
}

/* ---- Jobs ------------------------------------------------------------------------------------- */

/* Returns the number of the job after `last`. */
static uint32_t wait_for_job(twi_team_t *team, uint32_t last)
{
    if (!spin(&team->job, JOB_SLEEPERS, last, false, team->spin_ns))
        doze(&team->job, JOB_SLEEPERS, last, false);
    return last + JOB_STEP;
}

static void wait_for_workers(twi_team_t *team)
{
    if (!spin(&team->left, LEFT_SLEEPER, 0, true, team->spin_ns))
        doze(&team->left, LEFT_SLEEPER, 0, true);
}

static void *worker_main(void *arg)
{
    const worker_t *self = arg;
    twi_team_t *team = self->team;
    uint32_t job = 0;
    t_inside = true;
    for (;;) {
        job = wait_for_job(team, job);
        if (team->fn == NULL)
            return NULL;
        team->fn(team->arg, self->index, team->n_workers);
        if (atomic_fetch_sub_explicit(&team->left, 1, memory_order_release) == (LEFT_SLEEPER | 1u)) /* L1 */
            twi_futex_wake_private(&team->left, INT32_MAX);
    }
}

/* Only the thread that holds `callers`, or destroys the team, hands out jobs. */
static void hand_out(twi_team_t *team, twi_team_fn fn, void *arg)
{
    const uint32_t last = atomic_load_explicit(&team->job, memory_order_relaxed) & ~JOB_SLEEPERS;
    team->fn = fn;
    team->arg = arg;
    atomic_store_explicit(&team->left, (uint32_t)team->n_threads, memory_order_relaxed); /* published by J1 */
    if (atomic_exchange_explicit(&team->job, last + JOB_STEP, memory_order_release) & JOB_SLEEPERS) /* J1 */
        twi_futex_wake_private(&team->job, INT32_MAX);
}

static void run_all_here(const twi_team_t *team, twi_team_fn fn, void *arg)
{
    const bool outer = t_inside;
    t_inside = true;
    for (int i = 0; i < team->n_workers; i++)
        fn(arg, i, team->n_workers);
    t_inside = outer;
}

/* In a forked child `callers` may be held for ever, so nothing but n_workers is touched there. */
static bool has_threads_here(const twi_team_t *team)
{
    return team->n_threads > 0 && team->owner == getpid();
}

/* ---- Places ----------------------------------------------------------------------------------- */

typedef struct mask {
    cpu_set_t sets[CPU_LIMIT / CPU_SETSIZE];
} mask_t;

static void bind_worker(worker_t *worker, int cpu)
{
    mask_t own = {0};
    CPU_SET_S((size_t)cpu, sizeof own, own.sets);
    errno = pthread_setaffinity_np(worker->thread, sizeof own, own.sets);
    if (errno != 0)
        TWI_LOG(DEBUG, "cpu", "worker %d is not bound to cpu %d: %m", worker->index, cpu);
    else
        worker->cpu = cpu;
}

/* The caller may have moved to the CPU of a worker, which cannot leave by itself: they change places. */
static void make_room(twi_team_t *team)
{
    const int here = team->free_cpu >= 0 ? sched_getcpu() : -1;
    if (here < 0 || here == team->free_cpu)
        return;
    for (int i = 0; i < team->n_threads; i++) {
        worker_t *worker = &team->workers[i];
        if (worker->cpu == here) {
            bind_worker(worker, team->free_cpu);
            break;
        }
    }
    team->free_cpu = here;
}

void twi_team_run(twi_team_t *team, twi_team_fn fn, void *arg)
{
    if (team == NULL) {
        fn(arg, 0, 1);
        return;
    }
    if (t_inside || !has_threads_here(team)) {
        run_all_here(team, fn, arg);
        return;
    }
    (void)pthread_mutex_lock(&team->callers);
    make_room(team);
    hand_out(team, fn, arg);
    t_inside = true;
    fn(arg, 0, team->n_workers);
    t_inside = false;
    wait_for_workers(team);
    (void)pthread_mutex_unlock(&team->callers);
}

int twi_team_size(const twi_team_t *team)
{
    return team != NULL ? team->n_workers : 1;
}

/* ---- Making ----------------------------------------------------------------------------------- */

/* The next CPU of a mask that is not empty, after `cpu` and round. */
static int next_cpu(const mask_t *mask, int cpu)
{
    do
        cpu = (cpu + 1) % CPU_LIMIT;
    while (!CPU_ISSET_S((size_t)cpu, sizeof *mask, mask->sets));
    return cpu;
}

/* The CPUs after the caller's, which it keeps. Best effort: an unbound worker works, too. */
static void bind_workers(twi_team_t *team)
{
    mask_t mask = {0};
    if (sched_getaffinity(0, sizeof mask, mask.sets) != 0 || CPU_COUNT_S(sizeof mask, mask.sets) < team->n_workers)
        return;
    const int here = sched_getcpu();
    int cpu = here < 0 ? 0 : here;
    team->free_cpu = here;
    for (int i = 0; i < team->n_threads; i++) {
        cpu = next_cpu(&mask, cpu);
        bind_worker(&team->workers[i], cpu);
    }
}

/* All signals but those that a thread causes itself, which would kill the process if blocked. */
static void worker_signals(sigset_t *blocked_out)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
    (void)sigfillset(blocked_out);
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        (void)sigdelset(blocked_out, own[i]);
}

static int start_one(twi_team_t *team, worker_t *worker)
{
    *worker = (worker_t){.team = team, .index = team->n_threads + 1, .cpu = -1};
    const int error = pthread_create(&worker->thread, NULL, worker_main, worker);
    if (error == 0) {
        char name[16];
        (void)snprintf(name, sizeof name, "tilewire-%d", worker->index);
        (void)pthread_setname_np(worker->thread, name);
        team->n_threads++;
    }
    return error;
}

static tw_status_t start_workers(twi_team_t *team)
{
    sigset_t blocked, old;
    worker_signals(&blocked);
    (void)pthread_sigmask(SIG_BLOCK, &blocked, &old);
    int error = 0;
    while (error == 0 && team->n_threads < team->n_workers - 1)
        error = start_one(team, &team->workers[team->n_threads]);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (error == 0)
        return TW_OK;
    errno = error;
    return twi_fail(error == ENOMEM ? TW_ERR_NO_MEMORY : TW_ERR_SYSTEM,
                    "team of %d workers: thread %d of %d cannot be created: %m", team->n_workers, team->n_threads + 1,
                    team->n_workers - 1);
}

static int default_size(int local_ranks)
{
    const int set = (int)twi_config()->threads;
    if (set > 0)
        return set;
    return (int)twi_min(twi_max(twi_cpu_allowed() / local_ranks, 1), TWI_TEAM_MAX);
}

static twi_team_t *allocate(int n_workers)
{
    const size_t wanted = sizeof(twi_team_t) + (size_t)(n_workers - 1) * sizeof(worker_t);
    const size_t bytes = (wanted + TWI_CACHE_LINE - 1) / TWI_CACHE_LINE * TWI_CACHE_LINE;
    twi_team_t *team = aligned_alloc(TWI_CACHE_LINE, bytes);
    if (team == NULL)
        return NULL;
    memset(team, 0, bytes);
    team->n_workers = n_workers;
    team->owner = getpid();
    team->free_cpu = -1;
    (void)pthread_mutex_init(&team->callers, NULL);
    return team;
}

tw_status_t twi_team_create(int threads, int local_ranks, twi_team_t **team_out)
{
    TW_REQUIRE(threads >= 0 && threads <= TWI_TEAM_MAX, "threads is %d, not 0 to %d", threads, TWI_TEAM_MAX);
    TW_REQUIRE(local_ranks >= 1, "local_ranks is %d, not 1 or more", local_ranks);
    TW_REQUIRE(team_out != NULL, "team_out is NULL");
    const int n_workers = threads > 0 ? threads : default_size(local_ranks);
    twi_team_t *team = allocate(n_workers);
    if (team == NULL)
        return twi_fail(TW_ERR_NO_MEMORY, "no memory for a team of %d workers", n_workers);
    if ((int64_t)n_workers * local_ranks <= twi_cpu_allowed())
        team->spin_ns = SPIN_NS;
    const tw_status_t status = start_workers(team);
    if (status != TW_OK) {
        twi_team_destroy(team);
        return status;
    }
    if (local_ranks == 1)
        bind_workers(team);
    *team_out = team;
    return TW_OK;
}

void twi_team_destroy(twi_team_t *team)
{
    if (team == NULL)
        return;
    if (has_threads_here(team)) {
        hand_out(team, NULL, NULL);
        for (int i = 0; i < team->n_threads; i++)
            (void)pthread_join(team->workers[i].thread, NULL);
    }
    if (team->owner == getpid())
        (void)pthread_mutex_destroy(&team->callers);
    free(team);
}
