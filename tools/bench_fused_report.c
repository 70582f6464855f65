/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What rank 0 prints about a fused operator: a table or JSON. The time of an iteration is the maximum
 * over the ranks; ratios are taken iteration by iteration, never between medians.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_fused.h"
#include "bench_stats.h"
#include "json.h"

typedef struct summary {
    double times[FUSED_VARIANTS]; /* medians */
    bench_spread_t over_gemm, over_seq, over_max, overlap, gloo, mpi;
} summary_t;

double *fused_board_times(fused_board_t *board, int variant, int rank)
{
    const size_t row = (size_t)variant * (size_t)board->plan.ranks + (size_t)rank;
    return board->times + row * (size_t)board->iters_max;
}

fused_event_t *fused_board_events(fused_board_t *board, int rank)
{
    return (fused_event_t *)((char *)board + board->events_at) + (size_t)rank * FUSED_EVENTS_MAX;
}

/* ---- Numbers ----------------------------------------------------------------------------------- */

/* `work` has room for two arrays more than there are variants. */
static void summarise(fused_board_t *board, double *work, summary_t *sum)
{
    const int n = board->iters;
    double *t[FUSED_VARIANTS], *other = work + FUSED_VARIANTS * n, *ratios = other + n;
    for (int v = 0; v < FUSED_VARIANTS; v++) {
        t[v] = work + v * n;
        bench_slowest(fused_board_times(board, v, 0), board->plan.ranks, board->iters_max, n, t[v]);
    }
    sum->over_gemm = bench_spread(t[FUSED_T_FUSED], t[FUSED_T_GEMM], n, ratios);
    sum->over_seq = bench_spread(t[FUSED_T_FUSED], t[FUSED_T_SEQ], n, ratios);
    for (int i = 0; i < n; i++)
        other[i] = fmax(t[FUSED_T_GEMM][i], t[FUSED_T_COMM][i]);
    sum->over_max = bench_spread(t[FUSED_T_FUSED], other, n, ratios);
    for (int i = 0; i < n; i++)
        other[i] = t[FUSED_T_COMM][i] - (t[FUSED_T_FUSED][i] - t[FUSED_T_GEMM][i]);
    sum->overlap = bench_spread(other, t[FUSED_T_COMM], n, ratios);
    if (board->has[FUSED_T_GLOO])
        sum->gloo = bench_spread(t[FUSED_T_GLOO], t[FUSED_T_FUSED], n, ratios);
    if (board->has[FUSED_T_MPI])
        sum->mpi = bench_spread(t[FUSED_T_MPI], t[FUSED_T_FUSED], n, ratios);
    for (int v = 0; v < FUSED_VARIANTS; v++)
        sum->times[v] = board->has[v] ? bench_median(t[v], n) : NAN;
}

static fused_check_t check_of_all(const fused_board_t *board)
{
    fused_check_t all = {.verified = true, .max_err = 0};
    for (int rank = 0; rank < board->plan.ranks; rank++) {
        all.verified = all.verified && board->checks[rank].verified;
        all.max_err = fmax(all.max_err, board->checks[rank].max_err);
    }
    return all;
}

/* The type of the result. */
static const char *dtype_name(const fused_plan_t *plan, int op)
{
    fused_types_t types;
    (void)fused_types_of(plan, op, &types);
    return types.y.code == TW_CODE_BFLOAT ? "bf16" : "fp16";
}

static const char *rounds_text(const fused_plan_t *plan, char *text, size_t bytes)
{
    (void)snprintf(text, bytes, "%d", plan->rounds);
    return plan->rounds <= 0 ? fused_rounds[-plan->rounds] : text;
}

/* ---- JSON -------------------------------------------------------------------------------------- */

static void json_spread(FILE *out, const char *name, const bench_spread_t *spread)
{
    char iqr[64];
    (void)snprintf(iqr, sizeof iqr, "%s_iqr", name);
    json_number(out, false, name, spread->median);
    json_number(out, false, iqr, spread->iqr);
}

static void json_grouped(FILE *out, const fused_plan_t *plan, const fused_case_t *c)
{
    json_integer(out, false, "experts", (unsigned)c->experts);
    json_number(out, false, "hot", plan->hot >= 0 ? plan->hot : NAN);
    json_integer(out, false, "shared_m", plan->shared.m);
    json_integer(out, false, "shared_k", plan->shared.k);
    json_integer(out, false, "shared_n", plan->shared.n);
}

static void json_peers(FILE *out, const summary_t *sum)
{
    json_number(out, false, "t_torch_gloo", sum->times[FUSED_T_GLOO]);
    json_spread(out, "torch_gloo_speedup", &sum->gloo);
    json_number(out, false, "t_torch_mpi", sum->times[FUSED_T_MPI]);
    json_spread(out, "torch_mpi_speedup", &sum->mpi);
}

static void print_json(const fused_board_t *board, const fused_case_t *c, const fused_check_t *check,
                       const summary_t *sum)
{
    const fused_plan_t *plan = &board->plan;
    char rounds[16];
    FILE *out = stdout;
    (void)fputc('{', out);
    json_text(out, true, "op", fused_op_names[c->op]);
    json_text(out, false, "dtype", dtype_name(plan, c->op));
    json_text(out, false, "quant", fused_quants[plan->quant]);
    json_text(out, false, "wire", fused_wires[plan->wire]);
    json_integer(out, false, "m", c->m);
    json_integer(out, false, "k", c->k);
    json_integer(out, false, "n", c->n);
    json_integer(out, false, "ranks", (unsigned)plan->ranks);
    json_integer(out, false, "threads", (unsigned)plan->threads);
    json_text(out, false, "transport", bench_transports[plan->transport]);
    json_text(out, false, "isa", board->isa);
    json_text(out, false, "rounds", rounds_text(plan, rounds, sizeof rounds));
    json_boolean(out, false, "verified", check->verified);
    json_number(out, false, "max_err", check->max_err);
    json_number(out, false, "t_gemm", sum->times[FUSED_T_GEMM]);
    json_number(out, false, "t_comm", sum->times[FUSED_T_COMM]);
    json_number(out, false, "t_seq", sum->times[FUSED_T_SEQ]);
    json_number(out, false, "t_fused", sum->times[FUSED_T_FUSED]);
    json_spread(out, "fused_over_gemm", &sum->over_gemm);
    json_spread(out, "fused_over_seq", &sum->over_seq);
    json_spread(out, "fused_over_max", &sum->over_max);
    json_spread(out, "overlap_eff", &sum->overlap);
    json_integer(out, false, "iters", (unsigned)board->iters);
    if (fused_op_grouped(c->op))
        json_grouped(out, plan, c);
    if (plan->peers)
        json_peers(out, sum);
    if (c->name[0] != '\0')
        json_text(out, false, "name", c->name);
    if (plan->explain)
        json_text(out, false, "explain", board->explain);
    (void)fputs("}\n", out);
}

/* ---- Table ------------------------------------------------------------------------------------- */

static void print_spread(const bench_spread_t *spread, int width)
{
    if (isfinite(spread->median))
        (void)printf(" %*.3f %6.3f", width, spread->median, spread->iqr);
    else
        (void)printf(" %*s %6s", width, "-", "-");
}

static void print_peer(double seconds, const bench_spread_t *factor)
{
    if (isfinite(seconds))
        (void)printf(" %10.1f", seconds * 1e6);
    else
        (void)printf(" %10s", "-");
    print_spread(factor, 7);
}

static void print_explain(const fused_board_t *board)
{
    char text[FUSED_TEXT_BYTES], *state;
    (void)snprintf(text, sizeof text, "%s", board->explain);
    for (char *line = strtok_r(text, "\n", &state); line != NULL; line = strtok_r(NULL, "\n", &state))
        (void)printf("#   %s\n", line);
}

static void print_row(const fused_board_t *board, const fused_case_t *c, const fused_check_t *check,
                      const summary_t *sum)
{
    char shape[64];
    const int used = snprintf(shape, sizeof shape, "%zu,%zu,%zu", c->m, c->k, c->n);
    if (fused_op_grouped(c->op))
        (void)snprintf(shape + used, sizeof shape - (size_t)used, " x%d", c->experts);
    (void)printf("%-18s %-8s %7.3f", shape, check->verified ? "true" : "false", check->max_err);
    if (board->iters == 0) {
        (void)printf("  wrong result, not timed\n");
        return;
    }
    (void)printf(" %5d", board->iters);
    for (int v = FUSED_T_GEMM; v <= FUSED_T_FUSED; v++)
        (void)printf(" %10.1f", sum->times[v] * 1e6);
    print_spread(&sum->over_gemm, 10);
    print_spread(&sum->over_seq, 9);
    print_spread(&sum->over_max, 9);
    print_spread(&sum->overlap, 8);
    if (board->plan.peers) {
        print_peer(sum->times[FUSED_T_GLOO], &sum->gloo);
        print_peer(sum->times[FUSED_T_MPI], &sum->mpi);
    }
    (void)printf("%s%s%s%s\n", c->name[0] != '\0' ? "  " : "", c->name, sum->over_seq.median > 1 ? "  LOSS" : "",
                 board->iters < FUSED_RATIOS ? "  FEW" : "");
    if (board->plan.explain)
        print_explain(board);
}

static void print_grouped(const fused_plan_t *plan)
{
    if (plan->hot >= 0)
        (void)printf(", a hot one with %g of the rows", plan->hot);
    if (plan->shared.m > 0)
        (void)printf(", shared expert %zu,%zu,%zu", plan->shared.m, plan->shared.k, plan->shared.n);
}

static void print_header(const fused_board_t *board)
{
    const fused_plan_t *plan = &board->plan;
    char rounds[16];
    (void)printf("# tilewire %s, %s, isa %s, pinned: %d cpu%s a rank of %d allowed\n",
                 bench_info("version", "tilewire"), bench_info("cpu", "model"), board->isa, plan->threads,
                 plan->threads > 1 ? "s" : "", board->meeting.n_cpus);
    (void)printf("# %s, %s, quant %s, wire %s, rounds %s, ranks %d, threads %d, transport %s, weights packed",
                 fused_op_names[plan->op], dtype_name(plan, plan->op), fused_quants[plan->quant],
                 fused_wires[plan->wire], rounds_text(plan, rounds, sizeof rounds), plan->ranks, plan->threads,
                 bench_transports[plan->transport]);
    if (fused_op_grouped(plan->op))
        print_grouped(plan);
    (void)printf("\n# verified against fp64, max_err in bounds; m, k, n of one rank; times in us, of the slowest rank\n"
                 "# ratios by iteration, median and interquartile range; LOSS: slower than product and collective in "
                 "sequence\n"
                 "# FEW: of fewer than %d ratios, --iters %d takes them\n",
                 FUSED_RATIOS, FUSED_RATIOS);
    (void)printf("%-18s %-8s %7s %5s %10s %10s %10s %10s %10s %6s %9s %6s %9s %6s %8s %6s",
                 fused_op_grouped(plan->op) ? "m,k,n xexperts" : "m,k,n", "verified", "max_err", "iters", "t_gemm",
                 "t_comm", "t_seq", "t_fused", "over_gemm", "iqr", "over_seq", "iqr", "over_max", "iqr", "overlap",
                 "iqr");
    if (plan->peers)
        (void)printf(" %10s %7s %6s %10s %7s %6s", "torch_gloo", "factor", "iqr", "torch_mpi", "factor", "iqr");
    (void)printf("\n");
}

/* ---- Demo -------------------------------------------------------------------------------------- */

static void print_demo_row(const fused_board_t *board, const fused_case_t *c, const fused_check_t *check,
                           const summary_t *sum)
{
    char shape[64];
    (void)snprintf(shape, sizeof shape, "%zu,%zu,%zu", c->m, c->k, c->n);
    (void)printf("  %-18s %-15s %-9s", fused_op_names[c->op], shape, check->verified ? "yes" : "NO");
    if (board->iters > 0)
        (void)printf(" %9.0f us %9.0f us %8.2f", sum->times[FUSED_T_SEQ] * 1e6, sum->times[FUSED_T_FUSED] * 1e6,
                     sum->over_seq.median);
    (void)printf("\n");
}

/* ---- Both -------------------------------------------------------------------------------------- */

void fused_report_header(const fused_board_t *board)
{
    const fused_plan_t *plan = &board->plan;
    if (plan->mode == FUSED_DEMO)
        (void)printf("  %-18s %-15s %-9s %12s %12s %8s\n", "operator", "m,k,n", "verified", "in sequence", "fused",
                     "ratio");
    else if (plan->mode == FUSED_BENCH && !plan->json)
        print_header(board);
    (void)fflush(stdout);
}

void fused_report_case(fused_board_t *board, int index)
{
    static const bench_spread_t none = {NAN, NAN};
    const fused_plan_t *plan = &board->plan;
    const fused_case_t *c = &plan->cases[index];
    const fused_check_t check = check_of_all(board);
    summary_t sum = {{NAN, NAN, NAN, NAN, NAN, NAN}, none, none, none, none, none, none};
    if (plan->mode == FUSED_TRACE)
        return;
    double *work = board->iters > 0 ? calloc((FUSED_VARIANTS + 2) * (size_t)board->iters, sizeof *work) : NULL;
    if (work != NULL)
        summarise(board, work, &sum);
    free(work);
    if (plan->mode == FUSED_DEMO)
        print_demo_row(board, c, &check, &sum);
    else if (plan->json)
        print_json(board, c, &check, &sum);
    else
        print_row(board, c, &check, &sum);
    (void)fflush(stdout);
}
