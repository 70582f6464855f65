/* SPDX-License-Identifier: Apache-2.0 */
/* `tilewire run`: a program as n ranks on this machine. */
#include <stddef.h>

#include "cli.h"
#include "commands.h"
#include "spawn.h"

typedef struct run_options {
    int n;
    bool prefix;
    bool bind;
} run_options_t;

static const cli_option_t options[] = {
    {.name = "ranks",
     .letter = 'n',
     .type = CLI_INT,
     .offset = offsetof(run_options_t, n),
     .argument = "N",
     .help = "number of ranks; required",
     .min = 1,
     .max = SPAWN_RANKS_MAX},
    {.name = "prefix",
     .type = CLI_FLAG,
     .offset = offsetof(run_options_t, prefix),
     .help = "start each line of output with the rank that wrote it"},
    {.name = "bind",
     .type = CLI_FLAG,
     .offset = offsetof(run_options_t, bind),
     .help = "pin each rank to its share of the allowed CPUs"},
    {.name = NULL},
};

static const cli_command_t command = {
    .name = "tilewire run",
    .usage = "-n N [options] [--] program [arguments]",
    .about = "Starts N local ranks of a program with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,\n"
             "MASTER_ADDR and MASTER_PORT set. When one fails, ends the rest and returns its code.",
    .options = options,
    .stops = true,
};

int cmd_run(int argc, char **argv)
{
    run_options_t run = {0};
    int n_operands = 0;
    const cli_result_t result = cli_parse(&command, argc, argv, &run, &n_operands);
    if (result != CLI_OK)
        return cli_exit_status(result);
    if (run.n == 0)
        return cli_usage_error(&command, "-n, the number of ranks, is missing");
    if (n_operands == 0)
        return cli_usage_error(&command, "the program to run is missing");
    argv[n_operands] = NULL;
    const spawn_args_t args = {
        .who = command.name, .n = run.n, .argv = argv, .environment = true, .bind = run.bind, .prefix = run.prefix};
    return spawn_ranks(&args);
}
