/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The launcher. One thread, one poll loop over a signalfd and the output pipes. Every rank leads a
 * process group of its own, so that what it starts ends with it: groups are signalled while their
 * leader is running or a zombie, never later, so a pid that was reused is not hit. If the launcher
 * dies without warning, the kernel kills the ranks and the guard kills what they started.
 */
#define _GNU_SOURCE
#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "spawn_env.h"
#include "spawn_guard.h"
#include "spawn_output.h"

enum { EXIT_NOT_RUNNABLE = 126, EXIT_NOT_FOUND = 127, EXIT_SIGNAL = 128 };
#define GRACE_NS 2000000000u

typedef struct rank_process {
    pid_t pid; /* 0: not running */
    spawn_stream_t streams[2];
} rank_process_t;

typedef struct launcher {
    const spawn_args_t *args;
    spawn_env_t env;
    spawn_guard_t guard;
    pid_t self;
    sigset_t old_mask;
    struct sigaction old_pipe;
    int signal_fd;
    rank_process_t *ranks;
    int n_running;
    bool ending;         /* the remaining ranks were told to end */
    uint64_t kill_at_ns; /* when they are killed; 0: not ending, or done */
    int status;
} launcher_t;

static uint64_t now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- In the child ----------------------------------------------------------------------------- */

/* Ranks are no foreground group of a terminal, so reading from one would stop them. */
static bool set_stdin(int rank)
{
    if (rank == 0 && !isatty(STDIN_FILENO))
        return true;
    const int fd = open("/dev/null", O_RDONLY);
    return fd >= 0 && dup2(fd, STDIN_FILENO) >= 0 && (fd == STDIN_FILENO || close(fd) == 0);
}

static bool set_output(const int pipes[2])
{
    return (pipes[0] < 0 || dup2(pipes[0], STDOUT_FILENO) >= 0) && (pipes[1] < 0 || dup2(pipes[1], STDERR_FILENO) >= 0);
}

/* Becomes the rank; on failure errno is sent through `error_fd`. */
static _Noreturn void become_rank(const launcher_t *launcher, int rank, const int pipes[2], int error_fd)
{
    const spawn_args_t *args = launcher->args;
    (void)setpgid(0, 0);
    spawn_guard_add(&launcher->guard, getpid()); /* not the launcher, which may be killed before it gets to it */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher->self)
        _exit(EXIT_NOT_RUNNABLE);
    (void)sigaction(SIGPIPE, &launcher->old_pipe, NULL);
    (void)sigprocmask(SIG_SETMASK, &launcher->old_mask, NULL);
    if (set_stdin(rank) && set_output(pipes) && (!args->bind || spawn_bind(rank, args->n)) &&
        (!args->environment || spawn_env_enter(&launcher->env, rank)))
        (void)execvp(args->argv[0], args->argv);
    const int error = errno;
    const ssize_t n = write(error_fd, &error, sizeof error);
    _exit(n == (ssize_t)sizeof error ? EXIT_NOT_FOUND : EXIT_NOT_RUNNABLE);
}

/* ---- Starting --------------------------------------------------------------------------------- */

static bool open_streams(const launcher_t *launcher, int rank, int pipes_out[2])
{
    rank_process_t *process = &launcher->ranks[rank];
    static const int targets[2] = {STDOUT_FILENO, STDERR_FILENO};
    for (int i = 0; launcher->args->prefix && i < 2; i++) {
        if (!spawn_stream_open(&process->streams[i], rank, targets[i], &pipes_out[i]))
            return false;
    }
    return true;
}

static void close_pair(int pipes[2])
{
    for (int i = 0; i < 2; i++) {
        if (pipes[i] >= 0)
            (void)close(pipes[i]);
        pipes[i] = -1;
    }
}

/* Forks; returns 0 or the errno that kept the program from running. */
static int fork_rank(launcher_t *launcher, int rank, const int pipes[2])
{
    int ends[2], error = 0;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return errno;
    const pid_t pid = fork();
    if (pid == 0)
        become_rank(launcher, rank, pipes, ends[1]);
    error = pid < 0 ? errno : 0;
    (void)close(ends[1]);
    if (pid > 0) {
        (void)setpgid(pid, pid); /* both sides, whoever comes first */
        launcher->ranks[rank].pid = pid;
        launcher->n_running++;
        ssize_t n;
        do {
            n = read(ends[0], &error, sizeof error); /* ends when the child executes or fails to */
        } while (n < 0 && errno == EINTR);
        if (n != (ssize_t)sizeof error)
            error = 0;
    }
    (void)close(ends[0]);
    return error;
}

static bool start_rank(launcher_t *launcher, int rank)
{
    int pipes[2] = {-1, -1};
    const int error = open_streams(launcher, rank, pipes) ? fork_rank(launcher, rank, pipes) : errno;
    close_pair(pipes);
    if (error == 0)
        return true;
    (void)fprintf(stderr, "%s: cannot run '%s' as rank %d: %s\n", launcher->args->who, launcher->args->argv[0], rank,
                  strerror(error));
    launcher->status = error == ENOENT ? EXIT_NOT_FOUND : EXIT_NOT_RUNNABLE;
    return false;
}

/* ---- Ending ----------------------------------------------------------------------------------- */

static void signal_all(const launcher_t *launcher, int number)
{
    for (int rank = 0; rank < launcher->args->n; rank++) {
        const pid_t pid = launcher->ranks[rank].pid;
        if (pid <= 0)
            continue;
        (void)kill(-pid, number);
        if (number != SIGKILL)
            (void)kill(-pid, SIGCONT); /* a stopped process does not see other signals */
    }
}

static void end_all(launcher_t *launcher, int number)
{
    launcher->ending = true;
    launcher->kill_at_ns = now_ns() + GRACE_NS;
    signal_all(launcher, number);
}

static void report_failure(const launcher_t *launcher, int rank, int status)
{
    const char *who = launcher->args->who;
    if (WIFSIGNALED(status))
        (void)fprintf(stderr, "%s: rank %d was killed by signal %d (%s)\n", who, rank, WTERMSIG(status),
                      strsignal(WTERMSIG(status)));
    else
        (void)fprintf(stderr, "%s: rank %d exited with status %d\n", who, rank, WEXITSTATUS(status));
}

static void rank_ended(launcher_t *launcher, int rank, int status)
{
    launcher->ranks[rank].pid = 0;
    launcher->n_running--;
    for (int i = 0; i < 2; i++)
        spawn_stream_close(&launcher->ranks[rank].streams[i]);
    if (launcher->ending || (WIFEXITED(status) && WEXITSTATUS(status) == 0))
        return;
    report_failure(launcher, rank, status);
    launcher->status = WIFSIGNALED(status) ? EXIT_SIGNAL + WTERMSIG(status) : WEXITSTATUS(status);
    end_all(launcher, SIGTERM);
}

/* Finds ranks that ended. While one is a zombie its group cannot be anybody else's: empty it. */
static void collect(launcher_t *launcher)
{
    for (int rank = 0; rank < launcher->args->n; rank++) {
        const pid_t pid = launcher->ranks[rank].pid;
        siginfo_t info = {.si_pid = 0};
        int status = 0;
        if (pid <= 0 || waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != pid)
            continue;
        (void)kill(-pid, SIGKILL);
        spawn_guard_remove(&launcher->guard, pid);
        if (waitpid(pid, &status, 0) == pid)
            rank_ended(launcher, rank, status);
    }
}

static void told_to_end(launcher_t *launcher, int number)
{
    if (launcher->ending) { /* told twice: at once */
        signal_all(launcher, SIGKILL);
        return;
    }
    launcher->status = EXIT_SIGNAL + number;
    end_all(launcher, number);
}

static void read_signals(launcher_t *launcher)
{
    struct signalfd_siginfo info;
    while (read(launcher->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo != SIGCHLD)
            told_to_end(launcher, (int)info.ssi_signo);
    }
    collect(launcher);
}

/* ---- The loop --------------------------------------------------------------------------------- */

static int poll_timeout_ms(launcher_t *launcher)
{
    if (launcher->kill_at_ns == 0)
        return -1;
    const uint64_t now = now_ns();
    if (now < launcher->kill_at_ns)
        return (int)((launcher->kill_at_ns - now) / 1000000u) + 1;
    signal_all(launcher, SIGKILL);
    launcher->kill_at_ns = 0;
    return -1;
}

static void wait_for_ranks(launcher_t *launcher, struct pollfd *polled)
{
    const int n_streams = launcher->args->prefix ? 2 * launcher->args->n : 0;
    while (launcher->n_running > 0) {
        polled[0] = (struct pollfd){.fd = launcher->signal_fd, .events = POLLIN};
        for (int i = 0; i < n_streams; i++)
            polled[1 + i] = (struct pollfd){.fd = launcher->ranks[i / 2].streams[i % 2].fd, .events = POLLIN};
        if (poll(polled, (nfds_t)n_streams + 1, poll_timeout_ms(launcher)) <= 0)
            continue;
        for (int i = 0; i < n_streams; i++) {
            if (polled[1 + i].revents != 0)
                spawn_stream_pump(&launcher->ranks[i / 2].streams[i % 2]);
        }
        if (polled[0].revents != 0)
            read_signals(launcher);
    }
}

/* Output that could not be written fails a run that went well otherwise. */
static void report_lost(launcher_t *launcher)
{
    for (int i = 0; i < 2 * launcher->args->n; i++) {
        const spawn_stream_t *stream = &launcher->ranks[i / 2].streams[i % 2];
        if (!stream->lost)
            continue;
        (void)fprintf(stderr, "%s: output of rank %d is lost: %s\n", launcher->args->who, i / 2,
                      strerror(stream->lost));
        if (launcher->status == 0)
            launcher->status = 1;
    }
}

static bool open_launcher(launcher_t *launcher)
{
    const int n = launcher->args->n;
    launcher->ranks = calloc((size_t)n, sizeof *launcher->ranks);
    if (launcher->ranks == NULL)
        return false;
    for (int i = 0; i < 2 * n; i++)
        launcher->ranks[i / 2].streams[i % 2].fd = -1;
    const struct sigaction ignore = {.sa_handler = SIG_IGN}, standard = {.sa_handler = SIG_DFL};
    sigset_t set;
    (void)sigemptyset(&set);
    static const int numbers[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        (void)sigaddset(&set, numbers[i]);
    (void)sigprocmask(SIG_BLOCK, &set, &launcher->old_mask);
    (void)sigaction(SIGCHLD, &standard, NULL);
    (void)sigaction(SIGPIPE, &ignore, &launcher->old_pipe);
    launcher->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return launcher->signal_fd >= 0 && spawn_guard_open(&launcher->guard, n);
}

static void close_launcher(launcher_t *launcher)
{
    spawn_guard_close(&launcher->guard);
    if (launcher->signal_fd >= 0)
        (void)close(launcher->signal_fd);
    (void)sigaction(SIGPIPE, &launcher->old_pipe, NULL);
    (void)sigprocmask(SIG_SETMASK, &launcher->old_mask, NULL);
    free(launcher->ranks);
}

int spawn_ranks(const spawn_args_t *args)
{
    launcher_t launcher = {.args = args, .self = getpid(), .env.listen_fd = -1, .signal_fd = -1};
    struct pollfd *polled = calloc(2 * (size_t)args->n + 1, sizeof *polled);
    (void)fflush(NULL);
    if (polled == NULL || !open_launcher(&launcher)) {
        (void)fprintf(stderr, "%s: cannot start: %m\n", args->who);
        launcher.status = 1;
    } else if (args->environment && !spawn_env_open(&launcher.env, args->who, args->n)) {
        launcher.status = 1;
    } else {
        for (int rank = 0; rank < args->n && launcher.status == 0; rank++) {
            if (!start_rank(&launcher, rank))
                end_all(&launcher, SIGTERM);
        }
        spawn_env_close(&launcher.env);
        collect(&launcher);
        wait_for_ranks(&launcher, polled);
        report_lost(&launcher);
    }
    close_launcher(&launcher);
    free(polled);
    return launcher.status;
}
