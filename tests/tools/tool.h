/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_TOOLS_TOOL_H
#define TESTS_TOOLS_TOOL_H
/*
 * Runs the built command as a user would: TILEWIRE_BIN, or ../tilewire beside the folder of the test
 * program. A case reads the command's output to its end, so a rank that is left behind and still
 * holds the pipe makes the case run into the harness's deadline. Define _GNU_SOURCE first.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness/test.h"

enum { TEXT_BYTES = 4 << 20, ARGS_MAX = 32 };

typedef struct output {
    char *text;
    size_t used;
} output_t;

typedef struct tool {
    pid_t pid;
    int fds[2]; /* stdout, stderr */
    output_t out[2];
} tool_t;

static inline const char *tool_path(void)
{
    static char path[PATH_MAX + 32];
    const char *given = getenv("TILEWIRE_BIN");
    if (given != NULL && given[0] != '\0') {
        (void)snprintf(path, sizeof path, "%s", given);
    } else {
        char self[PATH_MAX];
        const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
        CHECK(n > 0);
        self[n] = '\0';
        *strrchr(self, '/') = '\0';
        (void)snprintf(path, sizeof path, "%s/../tilewire", self);
    }
    if (access(path, X_OK) != 0)
        SKIP("the command is not built");
    return path;
}

/* Room for one stream; it lives as long as the case. */
static inline char *keep_text(void)
{
    enum { TEXTS_MAX = 128 };
    static char *texts[TEXTS_MAX];
    static int n_texts;
    CHECK(n_texts < TEXTS_MAX);
    texts[n_texts] = calloc(1, TEXT_BYTES);
    CHECK(texts[n_texts] != NULL);
    return texts[n_texts++];
}

/* Starts the command; the arguments end with NULL. */
static inline void start(tool_t *tool, char *const *argv)
{
    const char *path = tool_path();
    int out[2], err[2];
    CHECK(pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0);
    (void)fflush(stdout);
    tool->pid = fork();
    CHECK(tool->pid >= 0);
    if (tool->pid == 0) {
        (void)dup2(out[1], STDOUT_FILENO);
        (void)dup2(err[1], STDERR_FILENO);
        (void)unsetenv("TILEWIRE_BIN");
        (void)execv(path, argv);
        _exit(99);
    }
    (void)close(out[1]);
    (void)close(err[1]);
    tool->fds[0] = out[0];
    tool->fds[1] = err[0];
    for (int i = 0; i < 2; i++) {
        tool->out[i] = (output_t){.text = keep_text()};
    }
}

/* Reads what comes next on either stream; false at the end of both. */
static inline bool read_more(tool_t *tool)
{
    struct pollfd polled[2] = {{.fd = tool->fds[0], .events = POLLIN}, {.fd = tool->fds[1], .events = POLLIN}};
    if (tool->fds[0] < 0 && tool->fds[1] < 0)
        return false;
    CHECK(poll(polled, 2, -1) >= 0 || errno == EINTR);
    for (int i = 0; i < 2; i++) {
        output_t *output = &tool->out[i];
        if (tool->fds[i] < 0 || polled[i].revents == 0)
            continue;
        CHECK(output->used < TEXT_BYTES - 1);
        const ssize_t n = read(tool->fds[i], output->text + output->used, TEXT_BYTES - 1 - output->used);
        if (n <= 0) {
            (void)close(tool->fds[i]);
            tool->fds[i] = -1;
        } else {
            output->used += (size_t)n;
        }
    }
    return true;
}

static inline int count_lines(const char *text)
{
    int n = 0;
    for (const char *at = strchr(text, '\n'); at != NULL; at = strchr(at + 1, '\n'))
        n++;
    return n;
}

/* Exit status as a shell shows it, after the end of all output. */
static inline int finish(tool_t *tool)
{
    int status = 0;
    while (read_more(tool))
        continue;
    CHECK_EQ(waitpid(tool->pid, &status, 0), tool->pid);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static inline void make_argv(char *argv[ARGS_MAX], va_list words)
{
    int n = 0;
    argv[n++] = (char *)(uintptr_t) "tilewire";
    do {
        CHECK(n < ARGS_MAX);
        argv[n] = va_arg(words, char *);
    } while (argv[n++] != NULL);
}

/* Starts the command with the words given, ended by NULL. */
static inline void start_words(tool_t *tool, ...)
{
    char *argv[ARGS_MAX];
    va_list words;
    va_start(words, tool);
    make_argv(argv, words);
    va_end(words);
    start(tool, argv);
}

/* Runs it to its end. */
static inline int run_words(tool_t *tool, ...)
{
    char *argv[ARGS_MAX];
    va_list words;
    va_start(words, tool);
    make_argv(argv, words);
    va_end(words);
    start(tool, argv);
    return finish(tool);
}

#define START(tool, ...) start_words((tool), __VA_ARGS__, (char *)NULL)
#define RUN(tool, ...) run_words((tool), __VA_ARGS__, (char *)NULL)

static inline const char *out_of(const tool_t *tool)
{
    return tool->out[0].text;
}

static inline const char *err_of(const tool_t *tool)
{
    return tool->out[1].text;
}

#endif
