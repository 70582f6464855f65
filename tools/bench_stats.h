/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_BENCH_STATS_H
#define TOOLS_BENCH_STATS_H
/* The order in which variants are timed; medians and quartiles of small arrays. */
#include <stdbool.h>

/*
 * The variants that are there, one after the other as they are numbered, beginning with the next one in each iteration.
 * Iterations of warm-up are negative. Returns how many there are.
 */
int bench_turn(const bool *has, int n_variants, int iteration, int *variants_out);

/* Sorts ascending. */
void bench_sort(double *values, int n);

/* The value below which a share of the n >= 1 sorted values lies; between two of them, interpolated. */
double bench_quantile(const double *sorted, int n, double share);

/* The smallest sorted value that at least `share` of all values do not exceed. */
double bench_percentile(const double *sorted, int n, double share);

/* Sorts; the median of the n >= 1 values. */
double bench_median(double *values, int n);

/* A median and an interquartile range. */
typedef struct bench_spread {
    double median, iqr;
} bench_spread_t;

/* Of a[i] / b[i]. `work` has room for n values. */
bench_spread_t bench_spread(const double *a, const double *b, int n, double *work);

/* The largest of each column of rows that lie `stride` apart. */
void bench_slowest(const double *rows, int n_rows, int stride, int n, double *out);

/* Median and interquartile range of a[i] / b[i]. `work` has room for n values. */
double bench_ratio(const double *a, const double *b, int n, double *work, double *iqr_out);

#endif
