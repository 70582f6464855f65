/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CPUs that have a core each. What a virtual machine says of its cores is not to be relied on, so they are found by
 * trying: a loop of arithmetic runs on some CPUs at a time, and slows down where two of them are threads of one core.
 * One CPU after another is taken if with it all that were taken stay as fast as each is alone. The main thread, before
 * there are others.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>

#include "../bench/peak.h"
#include "bench.h"
#include "cpus.h"

enum {
    CPUS_MANY = 64, /* more of them take seconds */
    ATTEMPTS = 3,
    TURNS = 2000,        /* of the loop between two looks at the clock: some microseconds */
    TRIAL_NS = 10000000, /* of a trial, */
    FINAL_NS = 50000000, /* and of the last one of an attempt */
    FAST_PERCENT = 90,   /* of the rate alone: a core of its own */
    LINE = 64,
};

/* ---- Trials ------------------------------------------------------------------------------------ */

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

static void *run(void *argument)
{
    runner_t *runner = argument;
    trial_t *trial = runner->trial;
    (void)cpus_set(&runner->cpu, 1);
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

static bool run_together(const int *cpus, int n, int64_t duration_ns, double *rates_out)
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
    for (int i = 0; i < started; i++) {
        (void)pthread_join(runners[i].thread, NULL);
        rates_out[i] = runners[i].rate;
    }
    return started == n;
}

/* ---- The choice -------------------------------------------------------------------------------- */

typedef struct search {
    bench_run_cpus_fn *run;
    const int *cpus;
    int n_cpus, n; /* among them, wanted */
    double alone[CPUS_MOST];
} search_t;

typedef struct choice {
    int n;
    int cpus[CPUS_MOST];
    double alone[CPUS_MOST];
    double rate;       /* of the slowest one, together */
    double share;      /* of its rate alone: the least, */
    double last_share; /* and that of the last one */
} choice_t;

static bool is_fast(double share)
{
    return share * 100 >= FAST_PERCENT;
}

static void add(const search_t *search, choice_t *choice, int at)
{
    choice->cpus[choice->n] = search->cpus[at];
    choice->alone[choice->n++] = search->alone[at];
}

/* What those of a choice are together. */
static void measure(const search_t *search, choice_t *choice, int64_t duration_ns)
{
    double rates[CPUS_MOST];
    const bool ran = search->run(choice->cpus, choice->n, duration_ns, rates);
    for (int i = 0; i < choice->n; i++) {
        const double rate = ran ? rates[i] : 0, share = rate / choice->alone[i];
        choice->rate = i == 0 || rate < choice->rate ? rate : choice->rate;
        choice->share = i == 0 || share < choice->share ? share : choice->share;
        choice->last_share = share;
    }
}

/* Takes one more, if nobody is slow for its sake: who is slow without it, too, is so for another reason. */
static bool take(const search_t *search, choice_t *choice, int at)
{
    add(search, choice, at);
    measure(search, choice, TRIAL_NS);
    bool fits = is_fast(choice->share);
    choice->n--;
    if (!fits && is_fast(choice->last_share)) {
        measure(search, choice, TRIAL_NS);
        fits = !is_fast(choice->share);
    }
    choice->n += fits;
    return fits;
}

/* Begins with number `first`; takes those that make others slow if there are not enough that do not. */
static void choose(const search_t *search, int first, choice_t *choice)
{
    int slow[CPUS_MOST], n_slow = 0;
    choice->n = 0;
    add(search, choice, first);
    for (int i = 1; i < search->n_cpus && choice->n < search->n; i++) {
        const int at = (first + i) % search->n_cpus;
        if (!take(search, choice, at))
            slow[n_slow++] = at;
    }
    for (int i = 0; choice->n < search->n; i++)
        add(search, choice, slow[i]);
    measure(search, choice, FINAL_NS);
}

/* The number of the fastest one alone; -1 if they cannot be tried. */
static int run_alone(search_t *search)
{
    int fastest = 0;
    for (int i = 0; i < search->n_cpus; i++) {
        if (!search->run(&search->cpus[i], 1, TRIAL_NS, &search->alone[i]) || search->alone[i] <= 0)
            return -1;
        if (search->alone[i] > search->alone[fastest])
            fastest = i;
    }
    return fastest;
}

double bench_pick_cores(bench_run_cpus_fn *run_cpus, const int *cpus, int n_cpus, int n, int *chosen_out)
{
    search_t search = {.run = run_cpus, .cpus = cpus, .n_cpus = n_cpus, .n = n};
    choice_t best, next;
    const int fastest = run_alone(&search);
    if (fastest < 0)
        return 0;
    choose(&search, fastest, &best);
    for (int i = 1; i < ATTEMPTS && !is_fast(best.share); i++) {
        choose(&search, (fastest + i * n_cpus / ATTEMPTS) % n_cpus, &next);
        if (next.rate > best.rate)
            best = next;
    }
    for (int i = 0; i < n; i++)
        chosen_out[i] = best.cpus[i];
    return best.share;
}

/* ---- This machine ------------------------------------------------------------------------------ */

static void settle(const int *cpus, int n, double share)
{
    (void)fprintf(stderr, "tilewire bench: --hold: on CPU");
    for (int i = 0; i < n; i++)
        (void)fprintf(stderr, "%s%d", i > 0 ? "," : " ", cpus[i]);
    (void)fprintf(stderr, "; together each has at least %.0f %% of its rate alone\n", share < 1 ? 100 * share : 100);
    (void)cpus_set(cpus, n);
}

void bench_choose_cores(int n)
{
    int allowed[CPUS_MOST], chosen[CPUS_MOST];
    const int n_allowed = cpus_allowed(allowed);
    if (n_allowed == 0)
        (void)fprintf(stderr, "tilewire bench: --hold: all CPUs, since it is not known which are allowed: %m\n");
    if (n <= 0 || n >= n_allowed)
        return;
    if (n_allowed > CPUS_MANY)
        (void)fprintf(stderr, "tilewire bench: --hold: tries %d CPUs, which takes some seconds\n", n_allowed);
    const double share = bench_pick_cores(run_together, allowed, n_allowed, n, chosen);
    if (share > 0)
        settle(chosen, n, share);
    else
        (void)fprintf(stderr, "tilewire bench: --hold: all CPUs, since they cannot be tried\n");
}
