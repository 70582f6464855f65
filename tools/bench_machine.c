/* SPDX-License-Identifier: Apache-2.0 */
/* The clock and the CPUs of a bench. */
#define _GNU_SOURCE
#include <time.h>

#include "bench.h"
#include "cpus.h"

int64_t bench_now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int bench_allowed(void)
{
    int cpus[CPUS_MOST];
    const int n = cpus_allowed(cpus);
    return n > 0 ? n : 1;
}

void bench_pin(long first, int count)
{
    int cpus[CPUS_MOST], own[CPUS_MOST], n = 0;
    const int n_allowed = cpus_allowed(cpus);
    for (; n < count && n < n_allowed; n++)
        own[n] = cpus[(first + n) % n_allowed];
    if (n > 0)
        (void)cpus_set(own, n);
}
