/* SPDX-License-Identifier: Apache-2.0 */
/* `tilewire demo`: all fused operators on 2 ranks, verified, beside the sequence; and a trace of one. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "commands.h"
#include "trace.h"

typedef struct demo_options {
    const char *folder;
    int isa, iters;
} demo_options_t;

static const cli_option_t options[] = {
    {.name = "output",
     .letter = 'o',
     .type = CLI_TEXT,
     .offset = offsetof(demo_options_t, folder),
     .argument = "DIR",
     .help = "folder for the trace (tilewire-demo)"},
    BENCH_OPTION_ITERS(demo_options_t, "timed calls of each (25)"),
    BENCH_OPTION_ISA(demo_options_t),
    {.name = NULL},
};

static const cli_command_t command = {
    .name = "tilewire demo",
    .usage = "[options]",
    .about = "Runs the five fused operators on 2 ranks of this machine, verifies their results, compares them with\n"
             "product and collective in sequence, and draws a trace. Takes a few seconds.",
    .options = options,
};

static const fused_case_t cases[] = {
    {.op = FUSED_MM_REDUCE_SCATTER, .m = 256, .k = 512, .n = 1024, .experts = 1},
    {.op = FUSED_MM_ALL_REDUCE, .m = 256, .k = 512, .n = 1024, .experts = 1},
    {.op = FUSED_ALL_GATHER_MM, .m = 128, .k = 512, .n = 1024, .experts = 1},
    {.op = FUSED_GMM_ALLTOALLV, .m = 256, .k = 512, .n = 1024, .experts = 2},
    {.op = FUSED_ALLTOALLV_GMM, .m = 256, .k = 512, .n = 1024, .experts = 2},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static void set_plan(fused_plan_t *plan, int mode, const demo_options_t *demo)
{
    fused_plan_init(plan);
    plan->mode = mode;
    plan->isa = demo->isa;
    plan->iters = demo->iters;
    plan->warmup = 1;
    plan->n_cases = mode == FUSED_DEMO ? CASES : 1;
    for (int i = 0; i < plan->n_cases; i++)
        plan->cases[i] = cases[i];
}

int cmd_demo(int argc, char **argv)
{
    static fused_plan_t plan;
    demo_options_t demo = {.folder = "tilewire-demo", .isa = -1, .iters = 25};
    int n_operands = 0;
    const cli_result_t result = cli_parse(&command, argc, argv, &demo, &n_operands);
    if (result != CLI_OK)
        return cli_exit_status(result);
    if (n_operands > 0)
        return cli_usage_error(&command, "unexpected argument '%s'", argv[0]);
    (void)printf("fused operators, bf16, 2 ranks of 1 thread; m, k, n of one rank, medians of %d call%s\n", demo.iters,
                 demo.iters > 1 ? "s" : "");
    set_plan(&plan, FUSED_DEMO, &demo);
    const int status = fused_run(&plan, command.name, NULL);
    if (status != 0)
        return status;
    (void)printf("a trace of %s:\n", fused_op_names[cases[0].op]);
    set_plan(&plan, FUSED_TRACE, &demo);
    return trace_run(&plan, demo.folder, command.name);
}
