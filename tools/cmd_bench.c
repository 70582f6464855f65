/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tilewire bench`: the grammar of the collectives' benches. bench_gemm.c has that of matrix products,
 * bench_fused.c that of the fused operators.
 */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "bench_fused.h"
#include "commands.h"

const char *const bench_transports[] = {"shm", "threads", NULL};
const char *const bench_memories[] = {"symmetric", "plain", NULL};
const char *const bench_isas[] = {"portable", "avx2", "avx512", "avx512bf16", "amx", NULL};

static const cli_option_t options[] = {
    {.name = "ranks",
     .letter = 'n',
     .type = CLI_INT,
     .offset = offsetof(bench_plan_t, ranks),
     .argument = "N",
     .help = "number of ranks (2)",
     .min = 1,
     .max = BENCH_RANKS_MAX},
    BENCH_OPTION_THREADS(bench_plan_t, "threads of a rank (1)"),
    BENCH_OPTION_WORD(bench_plan_t, dtype, "D", bench_dtype_names, "element type (fp32)"),
    BENCH_OPTION_WORD(bench_plan_t, transport, "X", bench_transports, "how ranks reach each other (shm)"),
    BENCH_OPTION_ISA(bench_plan_t),
    BENCH_OPTION_ITERS(bench_plan_t, "timed iterations (2000, from 64K on 200, from 8M on 51)"),
    BENCH_OPTION_WARMUP(bench_plan_t, "iterations before them (100, 20, 5)"),
    {.name = "bytes",
     .type = CLI_SIZES,
     .offset = offsetof(bench_plan_t, bytes),
     .argument = "B[,B...]",
     .help = "sizes, rounded down to whole elements per rank (8,64,512,4K,64K,1M,8M,64M)"},
    BENCH_OPTION_WORD(bench_plan_t, memory, "M", bench_memories, "kind of buffers (symmetric)"),
    BENCH_OPTION_FLAG(bench_plan_t, peers, "time Open MPI in the same iterations"),
    BENCH_OPTION_HOLD(bench_plan_t),
    BENCH_OPTION_JSON(bench_plan_t),
    {.name = NULL},
};

static const cli_command_t command = {
    .name = "tilewire bench",
    .usage = "COLLECTIVE [options]\n       tilewire bench OPERATOR [options]\n       tilewire bench gemm [options]",
    .about = "Verifies a collective, then times it: all_reduce, all_gather, reduce_scatter, alltoall or\n"
             "alltoallv. Bandwidths are those of nccl-tests. Every iteration also times one copy of the\n"
             "send buffer by every rank, for comparison.\n"
             "The fused operators are mm_reduce_scatter, mm_all_reduce, all_gather_mm, gmm_alltoallv and\n"
             "alltoallv_gmm; 'tilewire bench mm_reduce_scatter --help' has their options.\n"
             "gemm times matrix products; 'tilewire bench gemm --help' has its options.",
    .options = options,
};

/* ---- Plan -------------------------------------------------------------------------------------- */

enum { SMALL_BYTES = 64 << 10, LARGE_BYTES = 8 << 20 };

int bench_iters(const bench_plan_t *plan, size_t bytes)
{
    if (plan->iters >= 0)
        return plan->iters;
    return bytes < SMALL_BYTES ? 2000 : bytes < LARGE_BYTES ? 200 : 51;
}

int bench_warmup(const bench_plan_t *plan, size_t bytes)
{
    if (plan->warmup >= 0)
        return plan->warmup;
    return bytes < SMALL_BYTES ? 100 : bytes < LARGE_BYTES ? 20 : 5;
}

/* The default sizes that are large enough for so many ranks. */
static void default_sizes(bench_plan_t *plan, bench_shape_t *shape)
{
    static const size_t sizes[] = {8, 64, 512, 4 << 10, 64 << 10, 1 << 20, 8 << 20, 64 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (bench_shape_make(plan, 0, sizes[i], shape))
            plan->bytes.value[plan->bytes.n++] = sizes[i];
    }
}

/* -1 if the plan is complete and consistent, otherwise an exit status. */
static int check_plan(bench_plan_t *plan)
{
    static bench_shape_t shape;
    if (plan->peers && plan->transport == BENCH_THREADS)
        return cli_usage_error(&command, "--peers needs --transport shm: ranks of MPI are processes");
    if (plan->bytes.n == 0)
        default_sizes(plan, &shape);
    for (int i = 0; i < plan->bytes.n; i++) {
        if (!bench_shape_make(plan, 0, plan->bytes.value[i], &shape))
            return cli_usage_error(&command, "--bytes %zu is less than one %s element for each of %d ranks",
                                   plan->bytes.value[i], bench_dtypes[plan->dtype].name, plan->ranks);
    }
    return -1;
}

static int unknown_operation(const char *name)
{
    static const char *const gemm[] = {"gemm", NULL};
    const char *const *const lists[] = {bench_op_names, fused_op_names, gemm};
    const char *closest = NULL;
    for (int i = 0; closest == NULL && i < 3; i++)
        closest = cli_closest(name, lists[i]);
    return closest != NULL ? cli_usage_error(&command, "unknown operation '%s', did you mean '%s'?", name, closest)
                           : cli_usage_error(&command, "unknown operation '%s'", name);
}

/* -1 if all is well, otherwise an exit status. */
static int parse_plan(int argc, char **argv, bench_plan_t *plan)
{
    int n_operands = 0;
    const cli_result_t result = cli_parse(&command, argc, argv, plan, &n_operands);
    if (result != CLI_OK)
        return cli_exit_status(result);
    if (n_operands == 0)
        return cli_usage_error(&command, "the operation is missing, e.g. %s", bench_op_names[0]);
    if (n_operands > 1)
        return cli_usage_error(&command, "unexpected argument '%s'", argv[1]);
    plan->op = cli_find(argv[0], bench_op_names);
    if (plan->op < 0)
        return unknown_operation(argv[0]);
    return check_plan(plan);
}

/* ---- The command --------------------------------------------------------------------------------- */

/* Matrix products and fused operators have options of their own. */
static bool is_among(int argc, char **argv, const char *const *names)
{
    for (int i = 1; i < argc; i++) {
        if (cli_find(argv[i], names) >= 0)
            return true;
    }
    return false;
}

static int run_plan(const bench_plan_t *plan)
{
    char path[64];
    bench_board_t *board = bench_board_create(plan, path, sizeof path);
    if (board == NULL) {
        (void)fprintf(stderr, "tilewire bench: cannot set up shared memory: %m\n");
        return 1;
    }
    const bench_launch_t launch = {
        .who = command.name, .meeting = &board->meeting, .path = path, .word = "bench-rank", .run = bench_run_rank};
    int status = bench_launch(&launch);
    if (status == 0 && board->any_wrong != 0)
        status = 1;
    bench_shared_close(board);
    return status;
}

int cmd_bench(int argc, char **argv)
{
    static const char *const gemm[] = {"gemm", NULL};
    if (is_among(argc, argv, gemm))
        return bench_gemm(argc, argv);
    if (is_among(argc, argv, fused_op_names))
        return bench_fused(argc, argv);
    bench_plan_t plan = {.ranks = 2, .threads = 1, .isa = -1, .iters = -1, .warmup = -1};
    const int refused = parse_plan(argc, argv, &plan);
    if (refused >= 0)
        return refused;
    const int held = bench_hold_begin(plan.hold, plan.ranks * plan.threads);
    const int status = run_plan(&plan);
    bench_hold_end(held);
    return status;
}

int cmd_bench_rank(int argc, char **argv)
{
    return bench_be_rank(argc, argv, sizeof(bench_board_t), bench_run_rank);
}
