/* SPDX-License-Identifier: Apache-2.0 */
/* The order of variants, and order statistics. */
#include "bench_stats.h"

#include <math.h>
#include <stdlib.h>

int bench_turn(const bool *has, int n_variants, int iteration, int *variants_out)
{
    int n = 0;
    for (int variant = 0; variant < n_variants; variant++)
        n += has[variant];
    const int first = n > 0 ? (iteration % n + n) % n : 0;
    for (int variant = 0, place = n - first; variant < n_variants; variant++) {
        if (has[variant])
            variants_out[place++ % n] = variant;
    }
    return n;
}

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

double bench_median(double *values, int n)
{
    bench_sort(values, n);
    return bench_quantile(values, n, 0.5);
}

double bench_ratio(const double *a, const double *b, int n, double *work, double *iqr_out)
{
    for (int i = 0; i < n; i++)
        work[i] = a[i] / fmax(b[i], 1e-9);
    bench_sort(work, n);
    *iqr_out = bench_quantile(work, n, 0.75) - bench_quantile(work, n, 0.25);
    return bench_quantile(work, n, 0.5);
}

bench_spread_t bench_spread(const double *a, const double *b, int n, double *work)
{
    bench_spread_t spread;
    spread.median = bench_ratio(a, b, n, work, &spread.iqr);
    return spread;
}

void bench_slowest(const double *rows, int n_rows, int stride, int n, double *out)
{
    for (int i = 0; i < n; i++) {
        out[i] = 0;
        for (int row = 0; row < n_rows; row++)
            out[i] = fmax(out[i], rows[(size_t)row * (size_t)stride + (size_t)i]);
    }
}
