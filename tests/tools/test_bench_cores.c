/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choice of CPUs with a core each, on machines that are made up, and what the benches ask it for. Linked with --wrap
 * for the functions that say so.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "harness/test.h"
#include "tools/bench_gemm.h"
#include "tools/commands.h"

/* ---- Machines that are made up ------------------------------------------------------------------- */

enum { CORES = 8, CPUS = 2 * CORES };

typedef enum sharing {
    EQUAL, /* both threads of a busy core are slow */
    UNFAIR /* the one that was there is, and the other one is not */
} sharing_t;

typedef struct machine {
    double core[CORES]; /* rates alone */
    bool far;           /* the threads of core i are i and i + CORES, not 2 * i and 2 * i + 1 */
    sharing_t sharing;
    int weak;       /* a core that becomes slow, */
    int weak_after; /* after so many runs; 0: never */
    int most;       /* threads that can be started; 0: all */
} machine_t;

static machine_t g_machine;
static int g_runs;

static int core_of(int cpu)
{
    return g_machine.far ? cpu % CORES : cpu / 2;
}

static bool run_model(const int *cpus, int n, int64_t duration_ns, double *rates_out)
{
    CHECK(n > 0 && n <= CPUS && duration_ns > 0);
    g_runs++;
    if (g_machine.most > 0 && n > g_machine.most)
        return false;
    for (int i = 0; i < n; i++) {
        rates_out[i] = g_machine.core[core_of(cpus[i])];
        for (int j = 0; j < n; j++)
            if (j != i && core_of(cpus[j]) == core_of(cpus[i]) && (g_machine.sharing == EQUAL || j > i))
                rates_out[i] *= 0.55;
        if (g_machine.weak_after > 0 && g_runs > g_machine.weak_after && core_of(cpus[i]) == g_machine.weak)
            rates_out[i] *= 0.6;
    }
    return true;
}

/* Cores of one rate. */
static machine_t even_machine(double rate)
{
    machine_t machine = {.weak = -1};
    for (int i = 0; i < CORES; i++)
        machine.core[i] = rate;
    return machine;
}

static double pick(machine_t machine, int n, int *chosen)
{
    int cpus[CPUS];
    for (int i = 0; i < CPUS; i++)
        cpus[i] = i;
    g_machine = machine;
    g_runs = 0;
    return bench_pick_cores(run_model, cpus, CPUS, n, chosen);
}

/* n CPUs, no more of a core than there have to be. */
static void check_cores(const int *chosen, int n)
{
    int threads[CORES] = {0}, cores = 0, seen[CPUS] = {0};
    for (int i = 0; i < n; i++) {
        CHECK(chosen[i] >= 0 && chosen[i] < CPUS && seen[chosen[i]]++ == 0);
        cores += threads[core_of(chosen[i])]++ == 0;
    }
    CHECK_EQ(cores, n < CORES ? n : CORES);
}

static void check_pick(machine_t machine, int n)
{
    int chosen[CPUS];
    CHECK(pick(machine, n, chosen) >= 0.99);
    check_cores(chosen, n);
}

static void check_first_threads(machine_t machine, int n)
{
    int chosen[CPUS];
    CHECK(pick(machine, n, chosen) >= 0.99);
    for (int i = 0; i < n; i++)
        CHECK_EQ(chosen[i], 2 * i);
}

TEST(a_core_for_each_thread)
{
    machine_t machine = even_machine(1);
    for (int n = 1; n <= CORES; n++) {
        check_first_threads(machine, n);
        machine.far = true;
        check_pick(machine, n);
        machine.far = false;
    }
}

TEST(cores_that_differ)
{
    machine_t machine = even_machine(0.85);
    machine.core[0] = 1;
    check_first_threads(machine, 8);
    machine = even_machine(0.88);
    machine.core[0] = machine.core[1] = 1;
    check_first_threads(machine, 4);
    machine = even_machine(1);
    machine.core[3] = 0.8;
    check_first_threads(machine, 8);
    for (int i = 0; i < CORES; i++) {
        machine.core[i] = 1 + 0.25 * (i * 3 % CORES);
        machine.far = i % 2;
        check_pick(machine, 8);
    }
}

TEST(more_threads_than_cores)
{
    int chosen[CPUS];
    for (int n = CORES + 1; n < CPUS; n++) {
        const double share = pick(even_machine(1), n, chosen);
        CHECK(share > 0.5 && share < 0.6);
        check_cores(chosen, n);
    }
}

/* The slowest one counts, whichever it is. */
TEST(unfair_cores)
{
    machine_t machine = even_machine(1);
    machine.sharing = UNFAIR;
    check_first_threads(machine, 8);
}

/* Later ones are not to blame. */
TEST(a_chosen_one_that_becomes_slow)
{
    for (int after = CPUS; after < CPUS + CORES; after++) {
        int chosen[CPUS];
        machine_t machine = even_machine(1);
        machine.weak = 0;
        machine.weak_after = after;
        CHECK(pick(machine, CORES, chosen) >= 0.59);
        check_cores(chosen, CORES);
    }
}

/* With another first one, it can be done without. */
TEST(another_attempt)
{
    int chosen[CPUS];
    machine_t machine = even_machine(1);
    machine.weak = 0;
    machine.weak_after = CPUS;
    CHECK(pick(machine, 3, chosen) >= 0.99);
    check_cores(chosen, 3);
    for (int i = 0; i < 3; i++)
        CHECK(core_of(chosen[i]) != machine.weak);
}

TEST(no_attempt_more_than_it_takes)
{
    int chosen[CPUS];
    CHECK(pick(even_machine(1), 1, chosen) >= 0.99);
    CHECK_EQ(g_runs, CPUS + 1);
}

TEST(threads_that_cannot_be_started)
{
    int chosen[CPUS];
    machine_t machine = even_machine(1);
    machine.most = 3;
    CHECK(pick(machine, 8, chosen) <= 0);
    machine.core[5] = 0;
    CHECK(pick(machine, 2, chosen) <= 0);
}

/* ---- This machine -------------------------------------------------------------------------------- */

TEST(the_calling_thread_is_left_as_many)
{
    const int n_allowed = bench_allowed();
    bench_choose_cores(n_allowed);
    CHECK_EQ(bench_allowed(), n_allowed);
    bench_choose_cores(1);
    CHECK_EQ(bench_allowed(), 1);
}

/* ---- What the benches ask for -------------------------------------------------------------------- */

int __wrap_bench_hold_begin(bool wanted, int n_cpus);
int __wrap_bench_launch(const bench_launch_t *launch);
void __wrap_gemm_report_header(const gemm_plan_t *plan, bench_peak_t peak, int n_cpus, const bench_torch_t *torch);

static int g_asked, g_reported;

/* As if a single CPU were left. */
int __wrap_bench_hold_begin(bool wanted, int n_cpus)
{
    CHECK(wanted);
    g_asked = n_cpus;
    bench_pin(0, 1);
    return 0;
}

int __wrap_bench_launch(const bench_launch_t *launch)
{
    g_reported = launch->meeting->n_cpus;
    return 0;
}

void __wrap_gemm_report_header(const gemm_plan_t *plan, bench_peak_t peak, int n_cpus, const bench_torch_t *torch)
{
    (void)plan;
    (void)peak;
    (void)torch;
    g_reported = n_cpus;
}

/* A core for each thread of each rank; who counts CPUs does so when they have been chosen. */
static void check_bench(char **argv, int n_cpus)
{
    int argc = 0;
    while (argv[argc] != NULL)
        argc++;
    CHECK_EQ(cmd_bench(argc, argv), 0);
    CHECK_EQ(g_asked, n_cpus);
    CHECK_EQ(g_reported, 1);
}

TEST(collectives)
{
    check_bench((char *[]){"bench", "all_reduce", "--hold", "--ranks", "3", "--threads", "5", NULL}, 15);
}

TEST(operators)
{
    check_bench((char *[]){"bench", "mm_all_reduce", "--hold", "--ranks", "3", "--threads", "5", NULL}, 15);
}

TEST(products)
{
    char *argv[] = {"bench", "gemm",     "--hold", "--threads", "2",      "--iters",
                    "1",     "--warmup", "0",      "--shape",   "17,8,8", NULL};
    check_bench(argv, 2);
}
