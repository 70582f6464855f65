/* SPDX-License-Identifier: Apache-2.0 */
/* The clock and the CPUs of a bench. */
#define _GNU_SOURCE
#include <sched.h>
#include <time.h>

#include "bench.h"

enum { CPU_LIMIT = 8192 };

int64_t bench_now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int bench_allowed(void)
{
    cpu_set_t *allowed = CPU_ALLOC(CPU_LIMIT);
    const size_t bytes = CPU_ALLOC_SIZE(CPU_LIMIT);
    int count = 1;
    if (allowed != NULL && sched_getaffinity(0, bytes, allowed) == 0)
        count = CPU_COUNT_S(bytes, allowed);
    CPU_FREE(allowed);
    return count;
}

void bench_pin(long first, int count)
{
    cpu_set_t *allowed = CPU_ALLOC(CPU_LIMIT), *own = CPU_ALLOC(CPU_LIMIT);
    const size_t bytes = CPU_ALLOC_SIZE(CPU_LIMIT);
    if (allowed != NULL && own != NULL && sched_getaffinity(0, bytes, allowed) == 0) {
        const int n_allowed = CPU_COUNT_S(bytes, allowed);
        CPU_ZERO_S(bytes, own);
        for (int cpu = 0, seen = 0; cpu < CPU_LIMIT; cpu++) {
            if (!CPU_ISSET_S(cpu, bytes, allowed))
                continue;
            const int distance = (int)((seen - first) % n_allowed);
            if ((distance + n_allowed) % n_allowed < count)
                CPU_SET_S(cpu, bytes, own);
            seen++;
        }
        (void)sched_setaffinity(0, bytes, own); /* best effort: a bench without pinning is still one */
    }
    CPU_FREE(allowed);
    CPU_FREE(own);
}
