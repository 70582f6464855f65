/* SPDX-License-Identifier: Apache-2.0 */
/* Order statistics. */
#include "bench_stats.h"

#include <math.h>
#include <stdlib.h>

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void bench_sort(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, compare);
}

double bench_quantile(const double *sorted, int n, double share)
{
    const double place = share * (n - 1);
    const int below = (int)place;
    const int above = below + 1 < n ? below + 1 : below;
    return sorted[below] + (sorted[above] - sorted[below]) * (place - below);
}

double bench_percentile(const double *sorted, int n, double share)
{
    int place = (int)ceil(share * n) - 1;
    place = place < 0 ? 0 : place >= n ? n - 1 : place;
    return sorted[place];
}
