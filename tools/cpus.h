/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_CPUS_H
#define TOOLS_CPUS_H
/* The CPUs that the calling thread may use, by their numbers. */
#include <stdbool.h>

enum { CPUS_MOST = 8192 };

/* Which those are, ascending, at most CPUS_MOST; returns how many: 0, and errno, if that is not known. */
int cpus_allowed(int *cpus_out);
/* Leaves it these. For a bench that is best effort: it is one without, too. */
bool cpus_set(const int *cpus, int n);

#endif
