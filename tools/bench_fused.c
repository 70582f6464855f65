/* SPDX-License-Identifier: Apache-2.0 */
/* `tilewire bench OP` for the fused operators: the grammar, and how a plan is run. */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "bench_fused.h"
#include "commands.h"

enum { ITERS_BY_TIME_MAX = 201 };

static const cli_option_t options[] = {
    FUSED_OPTIONS("M,K,N[;...]", "sizes of one rank, may be repeated (a few)"),
    BENCH_OPTION_ITERS(fused_plan_t, "timed iterations (51; more of short calls, fewer of long ones)"),
    {.name = "shapes",
     .type = CLI_TEXT,
     .offset = offsetof(fused_plan_t, shapes_file),
     .argument = "FILE",
     .help = "take the shapes from a file, or from one of bench/shapes"},
    BENCH_OPTION_FLAG(fused_plan_t, explain, "say how it is computed: the schedule and why, or how rows come and go"),
    BENCH_OPTION_FLAG(fused_plan_t, peers, "time torch with gloo, and with Open MPI, in the same iterations"),
    BENCH_OPTION_HOLD(fused_plan_t),
    BENCH_OPTION_JSON(fused_plan_t),
    {.name = NULL},
};

static const cli_command_t command = {
    .name = "tilewire bench",
    .usage = "OPERATOR [options]",
    .about = "Verifies a fused operator against fp64, then times it beside the product alone, the collective\n"
             "alone and the two in sequence: mm_reduce_scatter, mm_all_reduce, all_gather_mm, gmm_alltoallv or\n"
             "alltoallv_gmm. m, k, n are those of one rank: m the rows of its left operand, for the last two\n"
             "the rows that it sends.",
    .options = options,
};

/* ---- Plan -------------------------------------------------------------------------------------- */

void fused_plan_init(fused_plan_t *plan)
{
    *plan = (fused_plan_t){
        .ranks = 2, .threads = 1, .isa = -1, .dtype = -1, .iters = -1, .warmup = -1, .experts = -1, .hot = -1};
}

static void default_shapes(fused_plan_t *plan)
{
    static const cli_shape_t plain[] = {{1024, 2048, 4096}, {1024, 1024, 4096}, {4096, 1024, 4096}, {128, 512, 64}};
    static const cli_shape_t grouped[] = {{1024, 2048, 2048}, {1024, 7168, 2048}};
    const bool experts = fused_op_grouped(plan->op);
    const cli_shape_t *shapes = experts ? grouped : plain;
    const int n = experts ? sizeof grouped / sizeof grouped[0] : sizeof plain / sizeof plain[0];
    for (int i = 0; i < n; i++) {
        if (plan->op != FUSED_MM_REDUCE_SCATTER || shapes[i].m % (size_t)plan->ranks == 0)
            plan->shapes.value[plan->shapes.n++] = shapes[i];
    }
}

static void add_shapes(fused_plan_t *plan)
{
    for (int i = 0; i < plan->shapes.n && plan->n_cases < FUSED_CASES_MAX; i++) {
        const cli_shape_t *shape = &plan->shapes.value[i];
        plan->cases[plan->n_cases++] =
            (fused_case_t){.op = plan->op, .m = shape->m, .k = shape->k, .n = shape->n, .experts = plan->experts};
    }
}

/* What is wrong with a case, or NULL. */
static const char *check_case(const fused_plan_t *plan, const fused_case_t *c)
{
    static const size_t most_elements = (size_t)1 << 40, int8_most_k = 131071;
    const size_t rows = c->m * (size_t)plan->ranks;
    if (c->op == FUSED_MM_REDUCE_SCATTER && c->m % (size_t)plan->ranks != 0)
        return "m must be a multiple of the number of ranks";
    if (plan->quant >= FUSED_A8W8_U64 && c->k > int8_most_k)
        return "k of int8 is at most 131071";
    if (plan->quant == FUSED_A16W8_GROUP && c->k < 33)
        return "scales of groups need k of at least 33";
    if (rows * c->k > most_elements || (size_t)c->experts * c->k * c->n > most_elements || rows * c->n > most_elements)
        return "a matrix has more than 2^40 elements";
    return NULL;
}

static int check_cases(const cli_command_t *cli, const fused_plan_t *plan)
{
    for (int i = 0; i < plan->n_cases; i++) {
        const fused_case_t *c = &plan->cases[i];
        const char *wrong = check_case(plan, c);
        if (wrong != NULL)
            return cli_usage_error(cli, "shape %zu,%zu,%zu with %d ranks: %s", c->m, c->k, c->n, plan->ranks, wrong);
    }
    return -1;
}

static int check_operator(const cli_command_t *cli, fused_plan_t *plan, int n_operands, char **operands)
{
    if (n_operands == 0)
        return cli_usage_error(cli, "the operator is missing, e.g. %s", fused_op_names[0]);
    if (n_operands > 1)
        return cli_usage_error(cli, "unexpected argument '%s'", operands[1]);
    plan->op = cli_find(operands[0], fused_op_names);
    if (plan->op >= 0)
        return -1;
    const char *closest = cli_closest(operands[0], fused_op_names);
    return closest != NULL ? cli_usage_error(cli, "unknown operator '%s', did you mean '%s'?", operands[0], closest)
                           : cli_usage_error(cli, "unknown operator '%s'", operands[0]);
}

static int check_experts(const cli_command_t *cli, fused_plan_t *plan)
{
    if (!fused_op_grouped(plan->op) && (plan->experts >= 0 || plan->hot >= 0 || plan->shared.m > 0))
        return cli_usage_error(cli,
                               "%s has no experts: --experts, --hot and --shared are for gmm_alltoallv and "
                               "alltoallv_gmm",
                               fused_op_names[plan->op]);
    if (plan->experts < 0)
        plan->experts = fused_op_grouped(plan->op) ? 2 : 1;
    return -1;
}

int fused_plan_check(const cli_command_t *cli, fused_plan_t *plan, int n_operands, char **operands)
{
    fused_types_t types;
    int refused = check_operator(cli, plan, n_operands, operands);
    if (refused < 0)
        refused = check_experts(cli, plan);
    if (refused >= 0)
        return refused;
    const char *wrong = fused_types_of(plan, plan->op, &types);
    if (wrong != NULL)
        return cli_usage_error(cli, "%s: %s", fused_op_names[plan->op], wrong);
    if (plan->peers && plan->transport == BENCH_THREADS)
        return cli_usage_error(cli, "--peers needs --transport shm: ranks of peers are processes");
    if (plan->shapes_file != NULL) {
        refused = fused_shapes_read(cli, plan);
        if (refused >= 0)
            return refused;
    } else if (plan->shapes.n == 0) {
        default_shapes(plan);
    }
    add_shapes(plan);
    return check_cases(cli, plan);
}

/* ---- Running ----------------------------------------------------------------------------------- */

static fused_board_t *make_board(const fused_plan_t *plan, char *path, size_t path_bytes)
{
    const int iters = plan->iters >= 0 ? plan->iters : ITERS_BY_TIME_MAX;
    const size_t ranks = (size_t)plan->ranks;
    const size_t fixed = sizeof(fused_board_t) + FUSED_VARIANTS * ranks * (size_t)iters * sizeof(double);
    const size_t events = plan->mode == FUSED_TRACE ? ranks * FUSED_EVENTS_MAX * sizeof(fused_event_t) : 0;
    fused_board_t *board = bench_shared_create(fixed + events, plan->ranks, path, path_bytes);
    if (board == NULL)
        return NULL;
    board->plan = *plan;
    board->plan.shapes_file = board->plan.folder = NULL;
    board->meeting.threads = plan->threads;
    board->meeting.isa = plan->isa;
    board->meeting.transport = plan->transport;
    board->meeting.mpi = plan->mpi;
    board->iters_max = iters;
    board->events_at = fixed;
    return board;
}

int fused_run(const fused_plan_t *plan, const char *who, fused_board_t **board_out)
{
    char path[64];
    fused_board_t *board = make_board(plan, path, sizeof path);
    if (board == NULL) {
        (void)fprintf(stderr, "%s: cannot set up shared memory: %m\n", who);
        return 1;
    }
    const bench_launch_t launch = {
        .who = who, .meeting = &board->meeting, .path = path, .word = "fused-rank", .run = fused_run_rank};
    int status = bench_launch(&launch);
    if (status == 0 && board->any_wrong != 0)
        status = 1;
    if (board_out != NULL)
        *board_out = board;
    else
        bench_shared_close(board);
    return status;
}

/* The command with the operator in its name. */
static cli_command_t name_command(int argc, char **argv)
{
    static char name[64];
    cli_command_t named = command;
    for (int i = 1; i < argc; i++) {
        if (cli_find(argv[i], fused_op_names) < 0)
            continue;
        (void)snprintf(name, sizeof name, "%s %s", command.name, argv[i]);
        named.name = name;
        named.usage = "[options]";
        break;
    }
    return named;
}

int bench_fused(int argc, char **argv)
{
    static fused_plan_t plan;
    int n_operands = 0;
    const cli_command_t named = name_command(argc, argv);
    fused_plan_init(&plan);
    const cli_result_t result = cli_parse(&named, argc, argv, &plan, &n_operands);
    if (result != CLI_OK)
        return cli_exit_status(result);
    const int refused = fused_plan_check(&named, &plan, n_operands, argv);
    if (refused >= 0)
        return refused;
    if (plan.peers)
        fused_peers_find(&plan);
    const int held = bench_hold_begin(plan.hold, plan.ranks * plan.threads);
    const int status = fused_run(&plan, command.name, NULL);
    bench_hold_end(held);
    fused_peers_forget(&plan);
    return status;
}

int cmd_fused_rank(int argc, char **argv)
{
    return bench_be_rank(argc, argv, sizeof(fused_board_t), fused_run_rank);
}
