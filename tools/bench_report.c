/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What rank 0 prints: a table or JSON. The time of an iteration is the maximum over the ranks; ratios
 * are taken iteration by iteration, never between medians.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bench_stats.h"
#include "json.h"

typedef struct summary {
    double median, p99;
    double algbw, busbw;
    double copy, over_copy, over_copy_iqr;
    double peer, speedup, speedup_iqr;
} summary_t;

const char *bench_info(const char *section, const char *name)
{
    tw_info_row_t row;
    for (unsigned i = 0; tw_info(i, &row) == TW_OK; i++) {
        if (strcmp(row.section, section) == 0 && strcmp(row.name, name) == 0)
            return row.value;
    }
    return "unknown";
}

static void slowest_rank(bench_board_t *board, bench_variant_t variant, int iters, double *times_out)
{
    bench_slowest(bench_board_times(board, variant, 0), board->plan.ranks, board->iters_max, iters, times_out);
}

/* `work` has room for four arrays of result->iters values. */
static void summarise(bench_board_t *board, const bench_case_t *result, double *work, summary_t *sum)
{
    const int n = result->iters, ranks = board->plan.ranks;
    double *ours = work, *copy = work + n, *peer = work + 2 * n, *ratios = work + 3 * n;
    slowest_rank(board, BENCH_OURS, n, ours);
    slowest_rank(board, BENCH_COPY, n, copy);
    sum->over_copy = bench_ratio(ours, copy, n, ratios, &sum->over_copy_iqr);
    if (result->peer) {
        slowest_rank(board, BENCH_PEER, n, peer);
        sum->speedup = bench_ratio(peer, ours, n, ratios, &sum->speedup_iqr);
        sum->peer = bench_median(peer, n);
    }
    sum->copy = bench_median(copy, n);
    sum->median = bench_median(ours, n);
    sum->p99 = bench_percentile(ours, n, 0.99);
    sum->algbw = (double)result->bytes / sum->median;
    sum->busbw = sum->algbw * bench_ops[board->plan.op].bus_rounds * (ranks - 1) / ranks;
}

static void print_json(const bench_board_t *board, const bench_case_t *result, const summary_t *sum)
{
    const bench_plan_t *plan = &board->plan;
    FILE *out = stdout;
    (void)fputc('{', out);
    json_text(out, true, "op", bench_ops[plan->op].name);
    json_text(out, false, "dtype", bench_dtypes[plan->dtype].name);
    json_integer(out, false, "bytes", result->bytes);
    json_integer(out, false, "ranks", (unsigned)plan->ranks);
    json_integer(out, false, "threads", (unsigned)plan->threads);
    json_text(out, false, "transport", bench_transports[plan->transport]);
    json_text(out, false, "memory", bench_memories[plan->memory]);
    json_text(out, false, "isa", bench_info("cpu", "isa"));
    json_boolean(out, false, "verified", result->verified);
    json_integer(out, false, "iters", (unsigned)result->iters);
    json_number(out, false, "t_median", sum->median);
    json_number(out, false, "t_p99", sum->p99);
    json_number(out, false, "algbw", sum->algbw);
    json_number(out, false, "busbw", sum->busbw);
    json_number(out, false, "t_copy", sum->copy);
    json_number(out, false, "over_copy", sum->over_copy);
    json_number(out, false, "over_copy_iqr", sum->over_copy_iqr);
    if (plan->peers) {
        json_number(out, false, "t_mpi", sum->peer);
        json_number(out, false, "mpi_speedup", sum->speedup);
        json_number(out, false, "mpi_speedup_iqr", sum->speedup_iqr);
    }
    (void)fputs("}\n", out);
}

static void print_row(const bench_board_t *board, const bench_case_t *result, const summary_t *sum)
{
    (void)printf("%12zu %6d  %-8s", result->bytes, result->iters, result->verified ? "true" : "false");
    if (!result->verified) {
        (void)printf("  wrong result, not timed\n");
        return;
    }
    (void)printf(" %11.2f %11.2f %8.2f %8.2f %11.2f %9.2f %6.2f", sum->median * 1e6, sum->p99 * 1e6, sum->algbw * 1e-9,
                 sum->busbw * 1e-9, sum->copy * 1e6, sum->over_copy, sum->over_copy_iqr);
    if (board->plan.peers && result->peer)
        (void)printf(" %11.2f %8.2f %6.2f", sum->peer * 1e6, sum->speedup, sum->speedup_iqr);
    else if (board->plan.peers)
        (void)printf(" %11s %8s %6s", "-", "-", "-");
    (void)printf("\n");
}

void bench_report_header(const bench_board_t *board, const bench_peer_t *peer)
{
    const bench_plan_t *plan = &board->plan;
    if (plan->json)
        return;
    (void)printf("# tilewire %s, %s, isa %s, pinned: %d cpu%s a rank of %d allowed\n",
                 bench_info("version", "tilewire"), bench_info("cpu", "model"), bench_info("cpu", "isa"), plan->threads,
                 plan->threads > 1 ? "s" : "", board->meeting.n_cpus);
    (void)printf("# %s, %s, ranks %d, threads %d, transport %s, memory %s%s%s\n", bench_ops[plan->op].name,
                 bench_dtypes[plan->dtype].name, plan->ranks, plan->threads, bench_transports[plan->transport],
                 bench_memories[plan->memory], peer != NULL ? ", beside " : "", peer != NULL ? peer->name : "");
    (void)printf("# times in us, bandwidth in GB/s; over_copy: time over that of copying the send buffer once\n");
    (void)printf("%12s %6s  %-8s %11s %11s %8s %8s %11s %9s %6s", "bytes", "iters", "verified", "t_median", "t_p99",
                 "algbw", "busbw", "t_copy", "over_copy", "iqr");
    if (plan->peers)
        (void)printf(" %11s %8s %6s", "t_mpi", "speedup", "iqr");
    (void)printf("\n");
    (void)fflush(stdout);
}

void bench_report_case(bench_board_t *board, const bench_case_t *result)
{
    summary_t sum = {NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};
    if (result->verified) {
        double *work = calloc(4 * (size_t)result->iters, sizeof *work);
        if (work == NULL)
            return;
        summarise(board, result, work, &sum);
        free(work);
    }
    if (board->plan.json)
        print_json(board, result, &sum);
    else
        print_row(board, result, &sum);
    (void)fflush(stdout);
}
