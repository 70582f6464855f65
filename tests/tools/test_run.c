/* SPDX-License-Identifier: Apache-2.0 */
/* The built command, run as a user would: all but `bench gemm`. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/config.h"
#include "harness/test.h"
#include "tools/tool.h"

/* ---- Usage ------------------------------------------------------------------------------------- */

TEST(usage_errors_have_status_2)
{
    tool_t tool;
    char *none[] = {(char *)(uintptr_t) "tilewire", NULL};
    start(&tool, none);
    CHECK_EQ(finish(&tool), 2);
    CHECK_CONTAINS(err_of(&tool), "usage: tilewire COMMAND");
    CHECK_EQ(RUN(&tool, "rnu"), 2);
    CHECK_CONTAINS(err_of(&tool), "did you mean 'run'?");
    CHECK_EQ(RUN(&tool, "--nothing"), 2);
    CHECK_EQ(RUN(&tool, "version", "now"), 2);
    CHECK_EQ(RUN(&tool, "help", "nothing"), 2);
    CHECK_EQ(RUN(&tool, "info", "--jsno"), 2);
    CHECK_CONTAINS(err_of(&tool), "did you mean --json?");
    CHECK_EQ(RUN(&tool, "info", "--json=1"), 2);
    CHECK_EQ(RUN(&tool, "run", "--rank", "2", "true"), 2);
    CHECK_CONTAINS(err_of(&tool), "did you mean --ranks?");
    CHECK_EQ(RUN(&tool, "run", "true"), 2);
    CHECK_EQ(RUN(&tool, "run", "-n", "2"), 2);
    CHECK_EQ(RUN(&tool, "run", "-n", "0", "true"), 2);
    CHECK_EQ(RUN(&tool, "run", "-n", "two", "true"), 2);
    CHECK_EQ(RUN(&tool, "run", "-n"), 2);
    CHECK_STR(out_of(&tool), "");
}

TEST(output_that_is_lost_is_an_error)
{
    static const char *const commands[] = {"version", "info", "bench all_reduce --bytes 8 --iters 1",
                                           "run -n 2 --prefix -- sh -c 'echo a; echo b; test $? -eq 0'",
                                           "run -n 2 --prefix -- printf unfinished"};
    char command[2 * PATH_MAX];
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        (void)snprintf(command, sizeof command, "exec '%s' %s >/dev/full 2>/dev/null", tool_path(), commands[i]);
        const int status = system(command);
        CHECK(WIFEXITED(status));
        CHECK_EQ(WEXITSTATUS(status), 1);
    }
}

TEST(bench_usage_errors_have_status_2)
{
    tool_t tool;
    CHECK_EQ(RUN(&tool, "bench"), 2);
    CHECK_EQ(RUN(&tool, "bench", "allreduce"), 2);
    CHECK_CONTAINS(err_of(&tool), "did you mean 'all_reduce'?");
    CHECK_EQ(RUN(&tool, "bench", "all_reduce", "all_gather"), 2);
    CHECK_EQ(RUN(&tool, "bench", "all_reduce", "--size", "8"), 2);
    CHECK_EQ(RUN(&tool, "bench", "all_reduce", "--dtype", "fp64"), 2);
    CHECK_CONTAINS(err_of(&tool), "bf16");
    CHECK_EQ(RUN(&tool, "bench", "all_reduce", "--transport", "tcp"), 2);
    CHECK_EQ(RUN(&tool, "bench", "all_reduce", "--isa", "sse"), 2);
    CHECK_EQ(RUN(&tool, "bench", "all_reduce", "--bytes", "8,"), 2);
    CHECK_EQ(RUN(&tool, "bench", "all_reduce", "--bytes", "8Q"), 2);
    CHECK_EQ(RUN(&tool, "bench", "all_reduce", "--bytes", "-8"), 2);
    CHECK_EQ(RUN(&tool, "bench", "all_reduce", "--bytes", "99999999999999999999"), 2);
    CHECK_EQ(RUN(&tool, "bench", "all_gather", "--bytes", "4", "--ranks", "2"), 2);
    CHECK_CONTAINS(err_of(&tool), "less than one fp32 element");
    CHECK_EQ(RUN(&tool, "bench", "all_reduce", "--ranks", "0"), 2);
    CHECK_EQ(RUN(&tool, "bench", "all_reduce", "--iters", "0"), 2);
    CHECK_EQ(RUN(&tool, "bench", "all_reduce", "--peers", "--transport", "threads"), 2);
    CHECK_STR(out_of(&tool), "");
}

TEST(every_command_has_help)
{
    static const char *const names[] = {"run", "info", "bench", "help", "version"};
    tool_t tool;
    CHECK_EQ(RUN(&tool, "--help"), 0);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        CHECK_CONTAINS(out_of(&tool), names[i]);
        tool_t one;
        CHECK_EQ(RUN(&one, names[i], "--help"), 0);
        CHECK_CONTAINS(out_of(&one), "usage: tilewire ");
        CHECK_STR(err_of(&one), "");
        tool_t other;
        CHECK_EQ(RUN(&other, "help", names[i]), 0);
        CHECK_STR(out_of(&one), out_of(&other));
    }
}

TEST(version_is_shown)
{
    tool_t tool;
    char expected[32];
    (void)snprintf(expected, sizeof expected, "tilewire %d.%d.%d\n", TW_VERSION_MAJOR, TW_VERSION_MINOR,
                   TW_VERSION_PATCH);
    CHECK_EQ(RUN(&tool, "version"), 0);
    CHECK_STR(out_of(&tool), expected);
    CHECK_EQ(RUN(&tool, "--version"), 0);
    CHECK_STR(out_of(&tool), expected);
}

/* ---- Info -------------------------------------------------------------------------------------- */

TEST(info_lists_every_setting)
{
    tool_t all, config, json;
    CHECK_EQ(RUN(&all, "info"), 0);
    CHECK_EQ(RUN(&config, "info", "-c"), 0);
    CHECK_EQ(RUN(&json, "info", "--json", "--config"), 0);
    tw_info_row_t row;
    unsigned n = 0;
    for (; twi_config_row(n, &row); n++) {
        CHECK_CONTAINS(out_of(&all), row.name);
        CHECK_CONTAINS(out_of(&config), row.help);
        CHECK_CONTAINS(out_of(&json), row.name);
    }
    CHECK(n > 0);
    CHECK_EQ(count_lines(out_of(&json)), n);
    CHECK_CONTAINS(out_of(&all), "isa_machine");
    CHECK_CONTAINS(out_of(&all), "numa_nodes");
    CHECK_CONTAINS(out_of(&all), "shm");
    CHECK(strstr(out_of(&config), "numa_nodes") == NULL);
}

TEST(info_shows_values_in_force)
{
    tool_t tool;
    CHECK_EQ(setenv("TILEWIRE_EAGER_BYTES", "12K", 1), 0);
    CHECK_EQ(setenv("TILEWIRE_TOKEN", "quite-secret", 1), 0);
    CHECK_EQ(RUN(&tool, "info", "-c"), 0);
    CHECK_CONTAINS(out_of(&tool), "12K");
    CHECK(strstr(out_of(&tool), "quite-secret") == NULL);
}

/* ---- Run --------------------------------------------------------------------------------------- */

TEST(run_sets_the_environment)
{
    tool_t tool;
    CHECK_EQ(unsetenv("TILEWIRE_TOKEN"), 0);
    CHECK_EQ(setenv("TILEWIRE_LISTEN_FD", "77", 1), 0);
    CHECK_EQ(RUN(&tool, "run", "-n", "3", "--", "sh", "-c",
                 "echo \"$RANK/$WORLD_SIZE/$LOCAL_RANK/$LOCAL_WORLD_SIZE/$MASTER_ADDR/$MASTER_PORT/$TILEWIRE_PORT/"
                 "$TILEWIRE_TOKEN/${TILEWIRE_LISTEN_FD:-none}\""),
             0);
    unsigned seen = 0;
    char first_token[64] = "";
    char *state;
    for (char *line = strtok_r(tool.out[0].text, "\n", &state); line != NULL; line = strtok_r(NULL, "\n", &state)) {
        int rank, size, local, local_size, master, port;
        char token[64], fd[16];
        CHECK_EQ(sscanf(line, "%d/%d/%d/%d/127.0.0.1/%d/%d/%63[0-9a-f]/%15s", &rank, &size, &local, &local_size,
                        &master, &port, token, fd),
                 8);
        CHECK(rank >= 0 && rank < 3);
        CHECK_EQ(local, rank);
        CHECK(size == 3 && local_size == 3);
        CHECK(master > 0 && port > 0 && master != port);
        CHECK_EQ(strlen(token), 32);
        if (first_token[0] == '\0')
            (void)snprintf(first_token, sizeof first_token, "%s", token);
        CHECK_STR(token, first_token);
        CHECK_EQ(strcmp(fd, "none") == 0, rank != 0);
        seen |= 1u << rank;
    }
    CHECK_EQ(seen, 7);
}

TEST(run_hands_the_socket_to_rank_0_only)
{
    tool_t tool;
    CHECK_EQ(RUN(&tool, "run", "-n", "2", "--", "sh", "-c",
                 "for f in /proc/$$/fd/*; do case $(readlink $f) in socket:*) echo \"$RANK ${f##*/}\";; esac; done; "
                 "[ $RANK != 0 ] || echo \"0 $TILEWIRE_LISTEN_FD\""),
             0);
    CHECK_EQ(count_lines(out_of(&tool)), 2);
    const char *second = strchr(out_of(&tool), '\n') + 1;
    CHECK(strncmp(out_of(&tool), second, (size_t)(second - out_of(&tool))) == 0);
}

TEST(run_keeps_a_token)
{
    tool_t tool;
    CHECK_EQ(setenv("TILEWIRE_TOKEN", "mine", 1), 0);
    CHECK_EQ(RUN(&tool, "run", "-n1", "sh", "-c", "echo $TILEWIRE_TOKEN"), 0);
    CHECK_STR(out_of(&tool), "mine\n");
}

TEST(run_returns_the_code_of_the_failed_rank)
{
    tool_t tool;
    CHECK_EQ(RUN(&tool, "run", "-n", "2", "true"), 0);
    CHECK_STR(err_of(&tool), "");
    CHECK_EQ(RUN(&tool, "run", "-n", "3", "--", "sh", "-c", "[ $RANK != 1 ] || exit 7"), 7);
    CHECK_CONTAINS(err_of(&tool), "rank 1 exited with status 7");
    CHECK_EQ(RUN(&tool, "run", "-n", "3", "--", "sh", "-c", "[ $RANK != 2 ] || kill -9 $$"), 128 + SIGKILL);
    CHECK_CONTAINS(err_of(&tool), "rank 2 was killed by signal 9");
    CHECK_EQ(RUN(&tool, "run", "-n", "2", "no-such-program"), 127);
    CHECK_CONTAINS(err_of(&tool), "'no-such-program'");
    CHECK_EQ(RUN(&tool, "run", "-n", "2", "/"), 126);
}

TEST(run_ends_the_rest_when_one_fails)
{
    tool_t tool;
    CHECK_EQ(RUN(&tool, "run", "-n", "4", "--", "sh", "-c", "[ $RANK != 2 ] || exit 5; sleep 1000 & exec sleep 1000"),
             5);
    CHECK_CONTAINS(err_of(&tool), "rank 2 exited with status 5");
    CHECK_EQ(count_lines(err_of(&tool)), 1);
}

/* A pipe that every rank inherits: what one rank writes to 9, another reads from 8. */
static void open_rank_pipe(void)
{
    int ends[2];
    CHECK_EQ(pipe2(ends, O_CLOEXEC), 0);
    CHECK(dup2(ends[0], 8) == 8 && dup2(ends[1], 9) == 9);
}

TEST(run_kills_ranks_that_ignore_sigterm)
{
    tool_t tool;
    open_rank_pipe();
    CHECK_EQ(RUN(&tool, "run", "-n", "2", "--", "sh", "-c",
                 "if [ $RANK = 1 ]; then read line <&8; exit 3; fi; "
                 "trap '' TERM; echo ready >&9; while :; do sleep 1000; done"),
             3);
}

TEST(run_leaves_nothing_of_a_finished_rank)
{
    tool_t tool;
    CHECK_EQ(RUN(&tool, "run", "-n", "2", "--", "sh", "-c", "sleep 1000 & exit 0"), 0);
}

static void start_sleepers(tool_t *tool, const char *prefix)
{
    const char *script = "sleep 1000 & echo ready; exec sleep 1000";
    if (prefix != NULL)
        START(tool, "run", "-n", "3", prefix, "--", "sh", "-c", script);
    else
        START(tool, "run", "-n", "3", "--", "sh", "-c", script);
    while (count_lines(out_of(tool)) < 3)
        CHECK(read_more(tool));
}

TEST(run_ends_ranks_when_killed)
{
    tool_t tool;
    start_sleepers(&tool, NULL);
    CHECK_EQ(kill(tool.pid, SIGKILL), 0);
    CHECK_EQ(finish(&tool), 128 + SIGKILL);
}

TEST(run_forwards_signals)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        tool_t tool;
        start_sleepers(&tool, i == 1 ? "--prefix" : NULL);
        CHECK_EQ(kill(tool.pid, numbers[i]), 0);
        CHECK_EQ(finish(&tool), 128 + numbers[i]);
        CHECK_STR(err_of(&tool), "");
    }
}

static bool is_stopped(int pid)
{
    char path[64], state = '?';
    (void)snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    CHECK(file != NULL);
    CHECK_EQ(fscanf(file, "%*d %*s %c", &state), 1);
    (void)fclose(file);
    return state == 'T';
}

TEST(run_ends_stopped_ranks)
{
    tool_t tool;
    open_rank_pipe();
    START(&tool, "run", "-n", "2", "--", "sh", "-c",
          "if [ $RANK = 1 ]; then read line <&8; exit 6; fi; echo $$; kill -STOP $$; exec sleep 1000");
    while (count_lines(out_of(&tool)) < 1)
        CHECK(read_more(&tool));
    while (!is_stopped(atoi(out_of(&tool))))
        (void)sched_yield();
    CHECK_EQ(write(9, "go\n", 3), 3);
    CHECK_EQ(finish(&tool), 6);
}

TEST(run_prefixes_whole_lines)
{
    tool_t tool;
    CHECK_EQ(RUN(&tool, "run", "-n", "3", "--prefix", "--", "sh", "-c",
                 "x=$(printf '%03000d' 0 | tr 0 $RANK); i=0; "
                 "while [ $i -lt 60 ]; do echo $x; i=$((i + 1)); done; echo bad$RANK >&2; printf end$RANK"),
             0);
    char *state;
    int lines[3] = {0};
    for (char *line = strtok_r(tool.out[0].text, "\n", &state); line != NULL; line = strtok_r(NULL, "\n", &state)) {
        const int rank = line[1] - '0';
        CHECK(line[0] == '[' && rank >= 0 && rank < 3 && line[2] == ']' && line[3] == ' ');
        const char digit[2] = {line[1], '\0'};
        if (++lines[rank] == 61) {
            CHECK(strncmp(line + 4, "end", 3) == 0 && line[7] == digit[0] && line[8] == '\0');
        } else {
            CHECK_EQ(strspn(line + 4, digit), 3000);
            CHECK_EQ(strlen(line), 3004);
        }
    }
    for (int rank = 0; rank < 3; rank++) {
        char expected[16];
        CHECK_EQ(lines[rank], 61);
        (void)snprintf(expected, sizeof expected, "[%d] bad%d\n", rank, rank);
        CHECK_CONTAINS(err_of(&tool), expected);
    }
    CHECK_EQ(count_lines(err_of(&tool)), 3);
}

TEST(run_gives_stdin_to_rank_0)
{
    tool_t tool;
    int ends[2];
    CHECK_EQ(pipe(ends), 0);
    CHECK_EQ(write(ends[1], "hello\n", 6), 6);
    (void)close(ends[1]);
    CHECK_EQ(dup2(ends[0], STDIN_FILENO), STDIN_FILENO);
    CHECK_EQ(RUN(&tool, "run", "-n", "2", "--prefix", "cat"), 0);
    CHECK_STR(out_of(&tool), "[0] hello\n");
}

TEST(run_binds_ranks_to_their_share)
{
    cpu_set_t allowed;
    CHECK_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    char n[16];
    (void)snprintf(n, sizeof n, "%d", CPU_COUNT(&allowed));
    tool_t tool;
    CHECK_EQ(RUN(&tool, "run", "-n", n, "--bind", "grep", "Cpus_allowed_list", "/proc/self/status"), 0);
    CHECK_EQ(count_lines(out_of(&tool)), CPU_COUNT(&allowed));
    char *state;
    for (char *line = strtok_r(tool.out[0].text, "\n", &state); line != NULL; line = strtok_r(NULL, "\n", &state)) {
        int cpu = -1, used = 0;
        CHECK_EQ(sscanf(line, "Cpus_allowed_list: %d%n", &cpu, &used), 1);
        CHECK_EQ(line[used], '\0');
        CHECK(CPU_ISSET(cpu, &allowed));
        CPU_CLR(cpu, &allowed);
    }
    CHECK_EQ(CPU_COUNT(&allowed), 0);
}

/* ---- Bench ------------------------------------------------------------------------------------- */

static void check_bench_line(const char *line, const char *op)
{
    static const char *const names[] = {"dtype",  "bytes", "ranks",    "threads",   "transport",
                                        "memory", "isa",   "verified", "iters",     "t_p99",
                                        "algbw",  "busbw", "t_copy",   "over_copy", "over_copy_iqr"};
    char text[64];
    (void)snprintf(text, sizeof text, "{\"op\": \"%s\", ", op);
    CHECK(strncmp(line, text, strlen(text)) == 0);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        (void)snprintf(text, sizeof text, ", \"%s\": ", names[i]);
        CHECK_CONTAINS(line, text);
    }
    CHECK_CONTAINS(line, "\"verified\": true");
    CHECK_EQ(line[strlen(line) - 1], '}');
    const char *median = strstr(line, "\"t_median\": ");
    CHECK(median != NULL);
    const double seconds = strtod(median + strlen("\"t_median\": "), NULL);
    CHECK(seconds > 0 && seconds < 100);
}

static void check_bench(const char *op, const char *transport, const char *ranks, const char *dtype)
{
    tool_t tool;
    const int status = RUN(&tool, "bench", op, "--json", "--transport", transport, "--ranks", ranks, "--dtype", dtype,
                           "--iters", "65", "--warmup", "2", "--bytes", "256,10000");
    if (status != 0)
        printf("%s", err_of(&tool));
    CHECK_EQ(status, 0);
    CHECK_EQ(count_lines(out_of(&tool)), 2);
    char *state;
    for (char *line = strtok_r(tool.out[0].text, "\n", &state); line != NULL; line = strtok_r(NULL, "\n", &state))
        check_bench_line(line, op);
}

TEST(bench_json_shm)
{
    check_bench("all_reduce", "shm", "2", "fp32");
    check_bench("all_gather", "shm", "2", "fp16");
    check_bench("reduce_scatter", "shm", "3", "bf16");
    check_bench("alltoall", "shm", "2", "int8");
    check_bench("alltoallv", "shm", "3", "int32");
}

TEST(bench_json_threads)
{
    check_bench("all_reduce", "threads", "3", "int16");
    check_bench("all_gather", "threads", "2", "fp32");
    check_bench("reduce_scatter", "threads", "2", "fp16");
    check_bench("alltoall", "threads", "3", "bf16");
    check_bench("alltoallv", "threads", "2", "fp32");
}

TEST(bench_table_says_what_was_measured)
{
    tool_t tool;
    CHECK_EQ(
        RUN(&tool, "bench", "all_reduce", "--bytes", "1K", "--iters", "5", "--memory", "plain", "--isa", "portable"),
        0);
    CHECK_CONTAINS(out_of(&tool), "isa portable");
    CHECK_CONTAINS(out_of(&tool), "memory plain");
    CHECK_CONTAINS(out_of(&tool), "transport shm");
    CHECK_CONTAINS(out_of(&tool), "busbw");
}

TEST(bench_ranks_are_not_a_command)
{
    tool_t tool;
    CHECK_EQ(RUN(&tool, "bench-rank", "/dev/null"), 2);
    CHECK_EQ(RUN(&tool, "bench-rank"), 2);
}
