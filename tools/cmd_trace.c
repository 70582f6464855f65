/* SPDX-License-Identifier: Apache-2.0 */
/* `tilewire trace`: runs a fused operator once, after a warm-up, and draws what every rank did. */
#include <stddef.h>
#include <stdio.h>

#include "commands.h"
#include "trace.h"

static const cli_option_t options[] = {
    FUSED_OPTIONS("M,K,N", "sizes of one rank (1024,1024,1024)"),
    {.name = "output",
     .letter = 'o',
     .type = CLI_TEXT,
     .offset = offsetof(fused_plan_t, folder),
     .argument = "DIR",
     .help = "folder for trace.json and trace.svg (tilewire-trace)"},
    {.name = NULL},
};

static const cli_command_t command = {
    .name = "tilewire trace",
    .usage = "OPERATOR [options]",
    .about = "Runs a fused operator once after a warm-up, and writes what every worker of every rank did, and\n"
             "when: trace.json for Perfetto (ui.perfetto.dev) or Chrome, trace.svg to look at.",
    .options = options,
};

static void default_shape(fused_plan_t *plan)
{
    if (plan->shapes.n == 0)
        plan->shapes = (cli_shapes_t){.n = 1, .value = {{1024, 1024, 1024}}};
}

int trace_run(const fused_plan_t *plan, const char *folder, const char *who)
{
    fused_board_t *board = NULL;
    trace_t trace;
    int status = fused_run(plan, who, &board);
    if (status == 0 && !trace_open(board, &trace)) {
        (void)fprintf(stderr, "%s: the operator left no events\n", who);
        status = 1;
    }
    if (status == 0 && !trace_write(&trace, folder, who))
        status = 1;
    bench_shared_close(board);
    return status;
}

int cmd_trace(int argc, char **argv)
{
    static fused_plan_t plan;
    int n_operands = 0;
    fused_plan_init(&plan);
    plan.mode = FUSED_TRACE;
    plan.folder = "tilewire-trace";
    const cli_result_t result = cli_parse(&command, argc, argv, &plan, &n_operands);
    if (result != CLI_OK)
        return cli_exit_status(result);
    default_shape(&plan);
    if (plan.shapes.n > 1)
        return cli_usage_error(&command, "--shape: one shape is traced, not %d", plan.shapes.n);
    const int refused = fused_plan_check(&command, &plan, n_operands, argv);
    return refused >= 0 ? refused : trace_run(&plan, plan.folder, command.name);
}
