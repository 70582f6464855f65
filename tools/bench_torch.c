/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch beside us: a child process that runs a script of bench/peers and answers line by line, each
 * waiting in read() while the other computes.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "bench_torch.h"

/* ---- Finding it -------------------------------------------------------------------------------- */

/* The first readable file "<folder of the command or library>/<below[i]>". */
static bool find_file(const char *const *below, char *path_out, size_t bytes)
{
    bool (*const folders[])(char *, size_t) = {bench_folder_of_command, bench_folder_of_library};
    for (int i = 0; i < 2; i++) {
        char folder[PATH_MAX];
        for (int j = 0; folders[i](folder, sizeof folder) && below[j] != NULL; j++) {
            if (snprintf(path_out, bytes, "%s/%s", folder, below[j]) < (int)bytes && access(path_out, R_OK) == 0)
                return true;
        }
    }
    return false;
}

static bool find_script(const bench_torch_args_t *args, char *path_out, size_t bytes)
{
    char below[3][64];
    const char *const places[] = {below[0], below[1], below[2], NULL};
    const char *given = getenv(args->variable);
    if (given != NULL && given[0] != '\0') {
        if (snprintf(path_out, bytes, "%s", given) < (int)bytes && access(path_out, R_OK) == 0)
            return true;
        (void)fprintf(stderr, "tilewire bench: --peers: %s is %s, which cannot be read\n", args->variable, given);
        return false;
    }
    (void)snprintf(below[0], sizeof below[0], "../bench/peers/%s", args->script);
    (void)snprintf(below[1], sizeof below[1], "../lib/tilewire/%s", args->script);
    (void)snprintf(below[2], sizeof below[2], "tilewire/%s", args->script);
    if (find_file(places, path_out, bytes))
        return true;
    (void)fprintf(stderr, "tilewire bench: --peers: bench/peers/%s is not found; %s may say where it is\n",
                  args->script, args->variable);
    return false;
}

static void find_python(char *path_out, size_t bytes)
{
    static const char *const below[] = {"../.venv/bin/python", NULL};
    const char *given = getenv("PEER_PYTHON");
    if (given != NULL && given[0] != '\0')
        (void)snprintf(path_out, bytes, "%s", given);
    else if (!find_file(below, path_out, bytes))
        (void)snprintf(path_out, bytes, "python3");
}

/* ---- The child --------------------------------------------------------------------------------- */

/* What the library is capped to, torch is: names of oneDNN, and of torch's own kernels. */
static void cap_child(int wanted)
{
    static const char *const onednn[] = {"SSE41", "AVX2", "AVX512_CORE_VNNI", "AVX512_CORE_BF16", "AVX512_CORE_AMX"};
    static const char *const torch[] = {"default", "avx2", "avx512", "avx512", "avx512"};
    const char *level = bench_info("cpu", "isa");
    const int isa = cli_find(level, bench_isas);
    if (isa < 0 || (wanted < 0 && strcmp(level, bench_info("cpu", "isa_machine")) == 0))
        return;
    (void)setenv("ONEDNN_MAX_CPU_ISA", onednn[isa], 1);
    (void)setenv("ATEN_CPU_CAPABILITY", torch[isa], 1);
}

static void run_child(const bench_torch_args_t *args, int fd, char *python, char *script)
{
    char threads[16];
    char *argv[4 + BENCH_TORCH_WORDS] = {python, script, threads, NULL};
    (void)snprintf(threads, sizeof threads, "%d", args->threads);
    for (int i = 0; i < args->n_words; i++)
        argv[3 + i] = (char *)(uintptr_t)args->words[i]; /* exec does not write to them */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)setenv("OMP_NUM_THREADS", threads, 1);
    cap_child(args->isa);
    if (dup2(fd, STDIN_FILENO) >= 0 && dup2(fd, STDOUT_FILENO) >= 0)
        (void)execvp(python, argv);
    (void)fprintf(stderr, "tilewire bench: --peers: %s: %m\n", python);
    _exit(127);
}

/* ---- Talking ----------------------------------------------------------------------------------- */

static bool ask(bench_torch_t *torch, const char *line)
{
    const size_t bytes = strlen(line);
    return send(torch->fd, line, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

/* A line without its end; false if the child has ended. */
static bool answer(bench_torch_t *torch, char *line_out, int bytes)
{
    if (fgets(line_out, bytes, torch->in) == NULL)
        return false;
    line_out[strcspn(line_out, "\n")] = '\0';
    return true;
}

static bool lost(void)
{
    (void)fprintf(stderr, "tilewire bench: --peers: the process of torch has ended\n");
    return false;
}

bool bench_torch_odd(const char *question, const char *line)
{
    (void)fprintf(stderr, "tilewire bench: --peers: '%s' is no answer of torch to '%s'\n", line, question);
    return false;
}

/* The first line is the version of torch; prints what it is otherwise. */
static bool greet(bench_torch_t *torch, const char *python, const char *script)
{
    static const char help[] = "scripts/peers.sh installs torch into .venv; PEER_PYTHON may name another python";
    char line[256];
    const bool answered = answer(torch, line, sizeof line);
    if (answered && strncmp(line, "torch ", 6) == 0) {
        (void)snprintf(torch->version, sizeof torch->version, "%s", line);
        return true;
    }
    if (answered && strncmp(line, "none ", 5) == 0)
        (void)fprintf(stderr, "tilewire bench: --peers needs torch, and %s has none (%s): %s\n", python, line + 5,
                      help);
    else
        (void)fprintf(stderr, "tilewire bench: --peers: %s %s does not name its torch: %s\n", python, script, help);
    return false;
}

bool bench_torch_start(const bench_torch_args_t *args, bench_torch_t *torch_out)
{
    char script[PATH_MAX], python[PATH_MAX];
    int fds[2];
    if (!find_script(args, script, sizeof script))
        return false;
    find_python(python, sizeof python);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
        return false;
    (void)fflush(NULL);
    torch_out->pid = fork();
    if (torch_out->pid == 0)
        run_child(args, fds[1], python, script);
    (void)close(fds[1]);
    torch_out->fd = fds[0];
    torch_out->in = fdopen(fds[0], "r");
    if (torch_out->pid > 0 && torch_out->in != NULL && greet(torch_out, python, script))
        return true;
    bench_torch_stop(torch_out);
    return false;
}

bool bench_torch_ask(bench_torch_t *torch, const char *question, char *answer_out, int bytes)
{
    return (ask(torch, question) && answer(torch, answer_out, bytes)) || lost();
}

double bench_torch_time(bench_torch_t *torch, const char *word)
{
    char question[32], line[64];
    (void)snprintf(question, sizeof question, "%s\n", word);
    if (!bench_torch_ask(torch, question, line, sizeof line))
        return -1;
    char *end;
    const double ns = strtod(line, &end);
    if (*end == '\0' && ns > 0 && isfinite(ns))
        return ns * 1e-9;
    (void)bench_torch_odd(word, line);
    return -1;
}

void bench_torch_stop(bench_torch_t *torch)
{
    if (torch->in != NULL)
        (void)fclose(torch->in); /* the end of its input ends it */
    if (torch->pid > 0)
        (void)waitpid(torch->pid, NULL, 0);
    *torch = (bench_torch_t){0};
}
