/* SPDX-License-Identifier: Apache-2.0 */
/* What `tilewire bench gemm` prints: a table or JSON. Ratios are taken iteration by iteration. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_gemm.h"
#include "bench_stats.h"
#include "json.h"

typedef struct summary {
    double seconds;
    bench_spread_t gflops, peak, peak_ratio, stream_ratio, peer, peer_ratio;
} summary_t;

/* `work` has room for three arrays of result->iters values. */
static void summarise(const gemm_case_t *result, double *work, summary_t *sum)
{
    const cli_shape_t *shape = &result->operands->shape;
    const int n = result->iters;
    const double giga = 2e-9 * (double)shape->m * (double)shape->k * (double)shape->n;
    double *ours = work, *other = work + n, *ratios = work + 2 * n;
    for (int i = 0; i < n; i++)
        other[i] = giga;
    sum->gflops = bench_spread(other, result->values[GEMM_OURS], n, ratios);
    if (result->has[GEMM_TORCH]) {
        sum->peer = bench_spread(other, result->values[GEMM_TORCH], n, ratios);
        sum->peer_ratio = bench_spread(result->values[GEMM_TORCH], result->values[GEMM_OURS], n, ratios);
    }
    if (result->has[GEMM_STREAM])
        sum->stream_ratio = bench_spread(result->values[GEMM_OURS], result->values[GEMM_STREAM], n, ratios);
    for (int i = 0; i < n; i++) {
        ours[i] = giga / result->values[GEMM_OURS][i];
        other[i] = result->values[GEMM_PEAK][i] * 1e-9;
    }
    sum->peak_ratio = bench_spread(ours, other, n, ratios);
    sum->peak.median = bench_median(other, n);
    memcpy(ours, result->values[GEMM_OURS], (size_t)n * sizeof *ours);
    sum->seconds = bench_median(ours, n);
}

static void print_json(const gemm_case_t *result, const summary_t *sum)
{
    const gemm_plan_t *plan = result->plan;
    const cli_shape_t *shape = &result->operands->shape;
    FILE *out = stdout;
    (void)fputc('{', out);
    json_text(out, true, "op", "gemm");
    json_text(out, false, "dtype", result->operands->dtype->name);
    json_integer(out, false, "m", shape->m);
    json_integer(out, false, "k", shape->k);
    json_integer(out, false, "n", shape->n);
    json_text(out, false, "isa", bench_info("cpu", "isa"));
    json_integer(out, false, "threads", (unsigned)plan->threads);
    json_text(out, false, "weights", result->weights);
    json_integer(out, false, "copies", result->copies);
    json_boolean(out, false, "packed", !plan->plain);
    json_boolean(out, false, "verified", result->check.verified);
    json_integer(out, false, "verified_rows", result->check.rows);
    json_number(out, false, "max_err", result->check.max_err);
    json_number(out, false, "bound", result->check.bound);
    json_integer(out, false, "iters", (unsigned)result->iters);
    json_number(out, false, "t_median", sum->seconds);
    json_number(out, false, "gflops", sum->gflops.median);
    json_number(out, false, "gflops_iqr", sum->gflops.iqr);
    json_number(out, false, "peak_gflops", sum->peak.median);
    json_number(out, false, "peak_ratio", sum->peak_ratio.median);
    json_number(out, false, "peak_ratio_iqr", sum->peak_ratio.iqr);
    json_number(out, false, "stream_ratio", sum->stream_ratio.median);
    json_number(out, false, "stream_ratio_iqr", sum->stream_ratio.iqr);
    if (plan->peers) {
        json_text(out, false, "peer", result->peer);
        json_text(out, false, "peer_layout", result->peer_layout);
        json_number(out, false, "peer_gflops", sum->peer.median);
        json_number(out, false, "peer_ratio", sum->peer_ratio.median);
        json_number(out, false, "peer_ratio_iqr", sum->peer_ratio.iqr);
    }
    (void)fputs("}\n", out);
}

/* Two columns, empty if there is no value. */
static void print_spread(const bench_spread_t *spread, int width, int digits)
{
    if (isfinite(spread->median))
        (void)printf(" %*.*f %7.*f", width, digits, spread->median, digits, spread->iqr);
    else
        (void)printf(" %*s %7s", width, "-", "-");
}

static void print_row(const gemm_case_t *result, const summary_t *sum)
{
    char shape[64];
    (void)snprintf(shape, sizeof shape, "%zu,%zu,%zu", result->operands->shape.m, result->operands->shape.k,
                   result->operands->shape.n);
    (void)printf("%-20s %-7s %-8s %9.2e %9.2e", shape, result->weights, result->check.verified ? "true" : "false",
                 result->check.max_err, result->check.bound);
    if (result->iters == 0) {
        (void)printf("  wrong result, not timed\n");
        return;
    }
    (void)printf(" %6d %11.2f", result->iters, sum->seconds * 1e6);
    print_spread(&sum->gflops, 9, 1);
    (void)printf(" %9.1f", sum->peak.median);
    print_spread(&sum->peak_ratio, 10, 3);
    print_spread(&sum->stream_ratio, 12, 3);
    if (result->plan->peers) {
        (void)printf(" %11.1f", sum->peer.median);
        print_spread(&sum->peer_ratio, 10, 3);
        (void)printf(" %s", result->peer_layout != NULL ? result->peer_layout : "-");
    }
    (void)printf("\n");
}

void gemm_report_header(const gemm_plan_t *plan, bench_peak_t peak, int n_cpus, const bench_torch_t *torch)
{
    if (plan->json)
        return;
    (void)printf("# tilewire %s, %s, isa %s, pinned: %d of %d allowed cpus\n", bench_info("version", "tilewire"),
                 bench_info("cpu", "model"), bench_info("cpu", "isa"), plan->threads < n_cpus ? plan->threads : n_cpus,
                 n_cpus);
    (void)printf("# gemm, %s, threads %d, weights %s%s%s\n", gemm_dtypes[plan->dtype].name, plan->threads,
                 plan->plain ? "plain" : "packed", plan->peers ? ", beside " : "", torch->version);
    (void)printf("# verified against fp64: all rows, of large products at least one row in 16; all columns\n");
    (void)printf("# t_median in us; peak: %s without memory; stream_ratio: time over that of reading the weight once\n",
                 bench_peak_name(peak));
    (void)printf("%-20s %-7s %-8s %9s %9s %6s %11s %9s %7s %9s %10s %7s %12s %7s", "m,k,n", "weights", "verified",
                 "max_err", "bound", "iters", "t_median", "gflops", "iqr", "peak", "peak_ratio", "iqr", "stream_ratio",
                 "iqr");
    if (plan->peers)
        (void)printf(" %11s %10s %7s %s", "peer_gflops", "peer_ratio", "iqr", "layout");
    (void)printf("\n");
    (void)fflush(stdout);
}

void gemm_report_case(const gemm_case_t *result)
{
    static const bench_spread_t none = {NAN, NAN};
    summary_t sum = {NAN, none, none, none, none, none, none};
    double *work = result->iters > 0 ? calloc(3 * (size_t)result->iters, sizeof *work) : NULL;
    if (work != NULL)
        summarise(result, work, &sum);
    free(work);
    if (result->plan->json)
        print_json(result, &sum);
    else
        print_row(result, &sum);
    (void)fflush(stdout);
}
