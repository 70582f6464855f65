/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_COMMANDS_H
#define TOOLS_COMMANDS_H
/* The commands. argv[0] is the command's own name; each returns the exit status. */

int cmd_run(int argc, char **argv);
int cmd_info(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_trace(int argc, char **argv);
int cmd_demo(int argc, char **argv);
int cmd_bench_rank(int argc, char **argv); /* one rank of a bench; started by cmd_bench */
int cmd_fused_rank(int argc, char **argv); /* one rank that runs fused operators; started by the three above */

#endif
