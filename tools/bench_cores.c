/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CPUs that have a core each. What a virtual machine says of its cores is not to be relied on, so they are found by
 * trying: a loop of arithmetic runs on some CPUs at a time, and slows down where two of them are threads of one core.
 * One CPU after another is taken if all that were taken before stay as fast with it as the fastest one is alone.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>

#include "../bench/peak.h"
#include "bench.h"

enum {
    CPUS_MOST = 1024, /* among which is chosen */
    ATTEMPTS = 3,
    TURNS = 2000,        /* of the loop between two looks at the clock: some microseconds */
    TRIAL_NS = 10000000, /* of a trial, */
    FINAL_NS = 50000000, /* and of the last one of an attempt */
    FAST_PERCENT = 90,   /* of the fastest one: a core of its own */
    LINE = 64,
};

typedef struct trial {
    int n;
    int64_t duration_ns;
    _Atomic int here; /* of n */
    _Atomic bool off; /* not all could be started */
} trial_t;

typedef struct runner {
    trial_t *trial;
    int cpu;
    pthread_t thread;
    _Alignas(LINE) double rate; /* turns a nanosecond */
} runner_t;

typedef struct choice {
    int n;
    int cpus[CPUS_MOST];
    double rate; /* of the slowest one */
} choice_t;

static void *run(void *argument)
{
    runner_t *runner = argument;
    trial_t *trial = runner->trial;
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET((size_t)runner->cpu, &only);
    (void)sched_setaffinity(0, sizeof only, &only);
    (void)atomic_fetch_add(&trial->here, 1);
    while (atomic_load(&trial->here) < trial->n && !atomic_load(&trial->off))
        (void)sched_yield();
    const int64_t start = bench_now_ns();
    int64_t now = start;
    double turns = 0;
    for (; now - start < trial->duration_ns && !atomic_load(&trial->off); now = bench_now_ns(), turns += TURNS)
        (void)bench_peak_run(BENCH_PEAK_FMA_PORTABLE, TURNS);
    runner->rate = now > start ? turns / (double)(now - start) : 0;
    return NULL;
}

/* The rate of the slowest of n CPUs that run at the same time; 0 if they could not be started. */
static double try_together(const int *cpus, int n, int64_t duration_ns)
{
    static runner_t runners[CPUS_MOST];
    trial_t trial = {.n = n, .duration_ns = duration_ns};
    int started = 0;
    for (; started < n; started++) {
        runners[started] = (runner_t){.trial = &trial, .cpu = cpus[started]};
        if (pthread_create(&runners[started].thread, NULL, run, &runners[started]) != 0)
            break;
    }
    if (started < n)
        atomic_store(&trial.off, true);
    double slowest = started < n ? 0 : 1e300;
    for (int i = 0; i < started; i++) {
        (void)pthread_join(runners[i].thread, NULL);
        if (runners[i].rate < slowest)
            slowest = runners[i].rate;
    }
    return slowest;
}

static int find_allowed(int *cpus)
{
    cpu_set_t allowed;
    int n = 0;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return 0;
    for (int cpu = 0; cpu < CPUS_MOST && cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET((size_t)cpu, &allowed))
            cpus[n++] = cpu;
    return n;
}

/* Takes n of the allowed CPUs, beginning with number `first`; those that were too slow if there are not enough others. */
static choice_t choose(const int *allowed, int n_allowed, int first, int n, double alone)
{
    choice_t chosen = {.cpus = {allowed[first]}, .n = 1};
    int slow[CPUS_MOST], n_slow = 0;
    for (int i = 1; i < n_allowed && chosen.n < n; i++) {
        const int cpu = allowed[(first + i) % n_allowed];
        chosen.cpus[chosen.n] = cpu;
        if (try_together(chosen.cpus, chosen.n + 1, TRIAL_NS) * 100 >= alone * FAST_PERCENT)
            chosen.n++;
        else
            slow[n_slow++] = cpu;
    }
    while (chosen.n < n)
        chosen.cpus[chosen.n++] = slow[--n_slow];
    chosen.rate = try_together(chosen.cpus, n, FINAL_NS);
    return chosen;
}

static void settle(const choice_t *choice, double alone)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    (void)fprintf(stderr, "tilewire bench: --hold: on CPU");
    for (int i = 0; i < choice->n; i++) {
        CPU_SET((size_t)choice->cpus[i], &set);
        (void)fprintf(stderr, "%s%d", i > 0 ? "," : " ", choice->cpus[i]);
    }
    (void)fprintf(stderr, "; together the slowest has %.0f %% of the fastest alone\n", 100 * choice->rate / alone);
    (void)sched_setaffinity(0, sizeof set, &set); /* best effort, as all pinning */
}

void bench_choose_cores(int n)
{
    int allowed[CPUS_MOST], fastest = 0;
    const int n_allowed = find_allowed(allowed);
    if (n <= 0 || n >= n_allowed)
        return;
    double alone = 0;
    for (int i = 0; i < n_allowed; i++) {
        const double rate = try_together(&allowed[i], 1, TRIAL_NS);
        if (rate > alone) {
            alone = rate;
            fastest = i;
        }
    }
    if (alone <= 0)
        return;
    choice_t best = choose(allowed, n_allowed, fastest, n, alone);
    for (int i = 1; i < ATTEMPTS && best.rate * 100 < alone * FAST_PERCENT; i++) {
        const choice_t next = choose(allowed, n_allowed, (fastest + i * n_allowed / ATTEMPTS) % n_allowed, n, alone);
        if (next.rate > best.rate)
            best = next;
    }
    settle(&best, best.rate > alone ? best.rate : alone);
}
