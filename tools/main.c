/* SPDX-License-Identifier: Apache-2.0 */
/* The `tilewire` command: finds the sub-command in a table and hands over. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tilewire/tilewire.h>

#include "cli.h"
#include "commands.h"

static int cmd_help(int argc, char **argv);
static int cmd_version(int argc, char **argv);

typedef struct command {
    const char *name;
    const char *help; /* NULL: not shown */
    int (*run)(int argc, char **argv);
} command_t;

static const command_t commands[] = {
    {"run", "start a program as several ranks on this machine", cmd_run},
    {"info", "show version, machine, transports and settings", cmd_info},
    {"bench", "verify and time a fused operator, a collective or a matrix product", cmd_bench},
    {"trace", "draw what every rank does in a fused operator", cmd_trace},
    {"demo", "run all fused operators on 2 ranks", cmd_demo},
    {"help", "show this text, or the help of a command", cmd_help},
    {"version", "show the version", cmd_version},
    {"bench-rank", NULL, cmd_bench_rank},
    {"fused-rank", NULL, cmd_fused_rank},
};
enum { COMMAND_COUNT = sizeof commands / sizeof commands[0] };

static void print_commands(FILE *out)
{
    (void)fprintf(out, "usage: tilewire COMMAND [options]\n\n");
    for (int i = 0; i < COMMAND_COUNT; i++) {
        if (commands[i].help != NULL)
            (void)fprintf(out, "  %-8s  %s\n", commands[i].name, commands[i].help);
    }
    (void)fprintf(out, "\n'tilewire COMMAND --help' has the options of a command.\n");
}

static int unknown_command(const char *name)
{
    const char *names[COMMAND_COUNT + 1] = {NULL};
    for (int i = 0, n = 0; i < COMMAND_COUNT; i++) {
        if (commands[i].help != NULL)
            names[n++] = commands[i].name;
    }
    const char *closest = cli_closest(name, names);
    if (closest != NULL)
        (void)fprintf(stderr, "tilewire: unknown command '%s', did you mean '%s'?\n", name, closest);
    else
        (void)fprintf(stderr, "tilewire: unknown command '%s'\n", name);
    (void)fprintf(stderr, "see 'tilewire --help'\n");
    return EXIT_USAGE;
}

static const command_t *find_command(const char *name)
{
    for (int i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(name, commands[i].name) == 0)
            return &commands[i];
    }
    return NULL;
}

/* For the two commands without options: more words than `most` are an error. */
static int check_operands(const char *name, const char *about, int argc, char **argv, int most, int *n_out)
{
    static const cli_option_t none[] = {{.name = NULL}};
    char full[32];
    (void)snprintf(full, sizeof full, "tilewire %s", name);
    const cli_command_t cli = {.name = full, .usage = most > 0 ? "[COMMAND]" : "", .about = about, .options = none};
    const cli_result_t result = cli_parse(&cli, argc, argv, NULL, n_out);
    if (result != CLI_OK)
        return cli_exit_status(result);
    return *n_out > most ? cli_usage_error(&cli, "unexpected argument '%s'", argv[most]) : -1;
}

static int cmd_help(int argc, char **argv)
{
    int n = 0;
    const int status = check_operands("help", "Shows the commands, or the options of one.", argc, argv, 1, &n);
    if (status >= 0)
        return status;
    if (n == 0) {
        print_commands(stdout);
        return 0;
    }
    const command_t *command = find_command(argv[0]);
    if (command == NULL || command->help == NULL)
        return unknown_command(argv[0]);
    char option[] = "--help";
    char *words[] = {argv[0], option, NULL};
    return command->run(2, words);
}

static int cmd_version(int argc, char **argv)
{
    int n = 0;
    const int status = check_operands("version", "Shows the version of the library.", argc, argv, 0, &n);
    if (status >= 0)
        return status;
    const int version = tw_version();
    (void)printf("tilewire %d.%d.%d\n", version / 10000, version / 100 % 100, version % 100);
    return 0;
}

/* Output that went nowhere is no success. */
static int ended(int status)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    (void)fprintf(stderr, "tilewire: standard output: %s\n", errno != 0 ? strerror(errno) : "cannot be written");
    return status != 0 ? status : EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_commands(stderr);
        return EXIT_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        name = "help";
    else if (strcmp(name, "--version") == 0)
        name = "version";
    else if (name[0] == '-') {
        (void)fprintf(stderr, "tilewire: unknown option %s\nsee 'tilewire --help'\n", name);
        return EXIT_USAGE;
    }
    const command_t *command = find_command(name);
    return ended(command != NULL ? command->run(argc - 1, argv + 1) : unknown_command(name));
}
