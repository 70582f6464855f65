/* SPDX-License-Identifier: Apache-2.0 */
/* The guard of a launcher: a list of process groups, fed through a pipe. */
#define _GNU_SOURCE
#include "spawn_guard.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Keeps nothing open but the pipe, so that readers of our output see its end without us. */
static void keep_only(int fd)
{
    (void)dup2(fd, STDIN_FILENO);
#ifdef SYS_close_range
    if (syscall(SYS_close_range, 1u, ~0u, 0u) == 0)
        return;
#endif
    for (int other = (int)sysconf(_SC_OPEN_MAX); other >= 1; other--)
        (void)close(other);
}

static bool read_message(int32_t *message_out)
{
    ssize_t n;
    do {
        n = read(STDIN_FILENO, message_out, sizeof *message_out);
    } while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof *message_out;
}

/* A positive message adds a group, a negative one removes it; 0 marks a free place. */
static _Noreturn void keep_watch(int32_t *groups, int n)
{
    int32_t message;
    while (read_message(&message)) {
        const int32_t wanted = message > 0 ? 0 : -message;
        for (int i = 0; i < n; i++) {
            if (groups[i] == wanted) {
                groups[i] = message > 0 ? message : 0;
                break;
            }
        }
    }
    for (int i = 0; i < n; i++) {
        if (groups[i] > 1)
            (void)kill(-groups[i], SIGKILL);
    }
    _exit(0);
}

bool spawn_guard_open(spawn_guard_t *guard_out, int n)
{
    int ends[2];
    int32_t *groups = calloc((size_t)n, sizeof *groups);
    if (groups == NULL || pipe2(ends, O_CLOEXEC) != 0) {
        free(groups);
        return false;
    }
    const pid_t pid = fork();
    if (pid == 0) {
        (void)setsid();
        (void)prctl(PR_SET_NAME, "tilewire-guard");
        keep_only(ends[0]);
        keep_watch(groups, n);
    }
    free(groups);
    (void)close(ends[0]);
    if (pid < 0) {
        (void)close(ends[1]);
        return false;
    }
    *guard_out = (spawn_guard_t){.pid = pid, .fd = ends[1]};
    return true;
}

static void tell(const spawn_guard_t *guard, int32_t message)
{
    ssize_t n = -1;
    if (guard->pid > 0)
        n = write(guard->fd, &message, sizeof message);
    (void)n; /* without a guard the kernel still kills the ranks themselves */
}

void spawn_guard_add(const spawn_guard_t *guard, pid_t pgid)
{
    tell(guard, (int32_t)pgid);
}

void spawn_guard_remove(const spawn_guard_t *guard, pid_t pgid)
{
    tell(guard, -(int32_t)pgid);
}

void spawn_guard_close(spawn_guard_t *guard)
{
    if (guard->pid <= 0)
        return;
    (void)close(guard->fd);
    while (waitpid(guard->pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    guard->pid = 0;
}
