/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of CPUs, of and for the system. */
#define _GNU_SOURCE
#include "cpus.h"

#include <sched.h>

int cpus_allowed(int *cpus_out)
{
    cpu_set_t *allowed = CPU_ALLOC(CPUS_MOST);
    const size_t bytes = CPU_ALLOC_SIZE(CPUS_MOST);
    int n = 0;
    if (allowed != NULL && sched_getaffinity(0, bytes, allowed) == 0) {
        for (int cpu = 0; cpu < CPUS_MOST; cpu++) {
            if (CPU_ISSET_S((size_t)cpu, bytes, allowed))
                cpus_out[n++] = cpu;
        }
    }
    CPU_FREE(allowed);
    return n;
}

bool cpus_set(const int *cpus, int n)
{
    cpu_set_t *set = CPU_ALLOC(CPUS_MOST);
    const size_t bytes = CPU_ALLOC_SIZE(CPUS_MOST);
    if (set == NULL)
        return false;
    CPU_ZERO_S(bytes, set);
    for (int i = 0; i < n; i++)
        CPU_SET_S((size_t)cpus[i], bytes, set);
    const bool ok = sched_setaffinity(0, bytes, set) == 0;
    CPU_FREE(set);
    return ok;
}
