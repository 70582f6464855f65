/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CPUs of a virtual machine are threads of its host, and two of them that are busy may be put on one core while others
 * idle: hosts that let only CPUs of one guest share a core like to fill it. With a task of the lowest priority on each
 * of them none is idle, and they stay where they are; `pause` leaves a core to its other thread.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "bench.h"

static void *hold(void *unused)
{
    (void)unused;
    for (;;) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#else
        (void)sched_yield();
#endif
    }
    return NULL;
}

/* In a process of its own: a task on every CPU that will have one. */
static void hold_all(pid_t parent)
{
    const struct sched_param lowest = {0};
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || sched_setscheduler(0, SCHED_IDLE, &lowest) != 0) {
        (void)fprintf(stderr, "tilewire bench: --hold: no tasks of the lowest priority: %m\n");
        _exit(1);
    }
    if (getppid() != parent)
        _exit(1);
    const long n_cpus = sysconf(_SC_NPROCESSORS_CONF);
    cpu_set_t *only = CPU_ALLOC((size_t)n_cpus);
    const size_t bytes = CPU_ALLOC_SIZE((size_t)n_cpus);
    for (long cpu = 0; only != NULL && cpu < n_cpus; cpu++) {
        pthread_attr_t attr;
        pthread_t thread;
        CPU_ZERO_S(bytes, only);
        CPU_SET_S((size_t)cpu, bytes, only);
        (void)pthread_attr_init(&attr);
        (void)pthread_attr_setaffinity_np(&attr, bytes, only);
        (void)pthread_create(&thread, &attr, hold, NULL); /* not on a CPU that is off, or not for us */
        (void)pthread_attr_destroy(&attr);
    }
    for (;;)
        (void)pause();
}

int bench_hold_begin(bool wanted, int n_cpus)
{
    if (!wanted)
        return 0;
    const pid_t parent = getpid(), pid = fork();
    if (pid == 0)
        hold_all(parent);
    if (pid < 0)
        (void)fprintf(stderr, "tilewire bench: --hold: no process for it: %m\n");
    bench_choose_cores(n_cpus);
    return pid < 0 ? 0 : (int)pid;
}

void bench_hold_end(int held)
{
    if (held <= 0)
        return;
    (void)kill(held, SIGKILL); /* not waited for: such tasks are slow to die where others run */
}
