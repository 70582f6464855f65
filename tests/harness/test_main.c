/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the registered cases one after the other, each in a forked child with a process group of its
 * own, so that a case that hangs, crashes or leaves processes behind disturbs nobody. The child's
 * output goes to an anonymous file and is shown when the case fails.
 */
#define _GNU_SOURCE
#include "test.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CASE_MAX 4096
#define REASON_MAX 256

static test_case_t g_cases[CASE_MAX];
static int g_case_count;
static char *g_skip_reason; /* shared with the children */
static bool g_leaks_allowed;
static _Thread_local int t_rank = -1;

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1 /* gcc's name */
#endif
#endif
#if defined(__SANITIZE_THREAD__)
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "halt_on_error=1:report_thread_leaks=0";
}
#endif

__attribute__((weak)) int __lsan_do_recoverable_leak_check(void);

/* ---- Registration ----------------------------------------------------------------------------- */

test_case_t *test_new_case(void)
{
    if (g_case_count == CASE_MAX) {
        (void)fprintf(stderr, "more than %d cases\n", CASE_MAX);
        abort();
    }
    return &g_cases[g_case_count++];
}

static void run_plain(const test_case_t *self)
{
    self->body();
}

void test_add(const char *name, int seconds, void (*body)(void))
{
    test_case_t *c = test_new_case();
    *c = (test_case_t){.seconds = seconds, .run = run_plain, .body = body, .transport = TW_TRANSPORT_AUTO};
    (void)snprintf(c->name, sizeof c->name, "%s", name);
}

/* ---- Environment ------------------------------------------------------------------------------ */

static double timeout_scale(void)
{
    const char *text = getenv("TEST_TIMEOUT_SCALE");
    const double scale = text != NULL ? strtod(text, NULL) : 1.0;
    return scale > 0.0 ? scale : 1.0;
}

uint64_t test_scale_ns(uint64_t ns)
{
    return (uint64_t)((double)ns * timeout_scale());
}

bool test_transport_selected(tw_transport_t transport)
{
    const char *list = getenv("TEST_TRANSPORTS");
    if (list == NULL || *list == '\0' || transport == TW_TRANSPORT_AUTO)
        return true;
    return strstr(list, transport == TW_TRANSPORT_THREADS ? "threads" : "shm") != NULL;
}

void *test_shared_alloc(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        test_fail(__FILE__, __LINE__, "mmap of %zu shared bytes: %s", bytes, strerror(errno));
    return memory;
}

/* ---- Reports ---------------------------------------------------------------------------------- */

void test_set_rank(int rank)
{
    t_rank = rank;
}

/* One write a report, so that those of several ranks do not mix. */
static void report(const char *file, int line, const char *format, va_list args)
{
    char text[4096];
    int used = 0;
    if (t_rank >= 0)
        used += snprintf(text, sizeof text, "[rank %d] ", t_rank);
    if (file != NULL)
        used += snprintf(text + used, sizeof text - (size_t)used, "%.200s:%d: ", file, line);
    const int wanted = vsnprintf(text + used, sizeof text - (size_t)used - 1, format, args);
    if (wanted > 0)
        used = (int)strlen(text);
    text[used++] = '\n';
    if (write(STDERR_FILENO, text, (size_t)used) < 0)
        return;
}

void test_note(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    report(NULL, 0, format, args);
    va_end(args);
}

void test_fail(const char *file, int line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    report(file, line, format, args);
    va_end(args);
    _exit(TEST_EXIT_FAILED);
}

/* Ranks may be threads, and all of them have a reason: the first one ends the case. */
void test_skip(const char *reason)
{
    static pthread_mutex_t first = PTHREAD_MUTEX_INITIALIZER;
    (void)pthread_mutex_lock(&first);
    if (g_skip_reason != NULL)
        (void)snprintf(g_skip_reason, REASON_MAX, "%s", reason);
    _exit(TEST_EXIT_SKIPPED);
}

void test_check_eq(const char *file, int line, const char *a_text, const char *b_text, intmax_t a, intmax_t b)
{
    if (a != b)
        test_fail(file, line, "%s is %jd (0x%jx), %s is %jd (0x%jx)", a_text, a, (uintmax_t)a, b_text, b, (uintmax_t)b);
}

void test_check_str(const char *file, int line, const char *a_text, const char *b_text, const char *a, const char *b)
{
    if (a == NULL || b == NULL ? a != b : strcmp(a, b) != 0)
        test_fail(file, line, "%s is \"%s\", %s is \"%s\"", a_text, a != NULL ? a : "(null)", b_text,
                  b != NULL ? b : "(null)");
}

void test_check_contains(const char *file, int line, const char *name, const char *text, const char *fragment)
{
    if (text == NULL || strstr(text, fragment) == NULL)
        test_fail(file, line, "%s is \"%s\", which does not contain \"%s\"", name, text != NULL ? text : "(null)",
                  fragment);
}

void test_check_status(const char *file, int line, const char *expr, tw_status_t status, tw_status_t expected)
{
    if (status != expected)
        test_fail(file, line, "%s gave %d (%s), expected %d (%s); last error: %s", expr, (int)status,
                  tw_status_string(status), (int)expected, tw_status_string(expected), tw_last_error());
}

void test_allow_leaks(void)
{
    g_leaks_allowed = true;
}

int test_leaks(void)
{
    if (g_leaks_allowed || __lsan_do_recoverable_leak_check == NULL)
        return 0;
    return __lsan_do_recoverable_leak_check();
}

const char *test_exit_text(int wait_status, char *text, size_t bytes)
{
    if (WIFSIGNALED(wait_status))
        (void)snprintf(text, bytes, "killed by signal %d, %s", WTERMSIG(wait_status), strsignal(WTERMSIG(wait_status)));
    else
        (void)snprintf(text, bytes, "exit status %d", WEXITSTATUS(wait_status));
    return text;
}

/* ---- Running ---------------------------------------------------------------------------------- */

__attribute__((noreturn)) static void child_main(const test_case_t *c, int output)
{
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)dup2(output, STDOUT_FILENO);
    (void)dup2(output, STDERR_FILENO);
    (void)close(output);
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    c->run(c);
    _exit(test_leaks() != 0 ? TEST_EXIT_FAILED : 0);
}

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* True if the child ended in time. SIGCHLD is blocked, so that its arrival ends the pause. */
static bool wait_child(pid_t pid, double seconds, int *status)
{
    const double deadline = now_s() + seconds;
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGCHLD);
    while (waitpid(pid, status, WNOHANG) == 0) {
        if (now_s() >= deadline)
            return false;
        (void)sigtimedwait(&set, NULL, &(struct timespec){.tv_nsec = 50000000});
    }
    return true;
}

/* Copies the captured output, each line after "# ". */
static void show_output(int fd)
{
    (void)lseek(fd, 0, SEEK_SET);
    FILE *file = fdopen(dup(fd), "r");
    if (file == NULL)
        return;
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, file) > 0)
        (void)printf("# %s%s", line, line[strlen(line) - 1] == '\n' ? "" : "\n");
    free(line);
    (void)fclose(file);
}

typedef struct counts {
    int number, passed, failed, skipped;
} counts_t;

static void judge(const test_case_t *c, bool in_time, int status, int output, counts_t *counts)
{
    const int code = in_time && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    char text[100];
    if (code == TEST_EXIT_LEFT_OUT) {
        (void)printf("# not selected - %s\n", c->name);
        return;
    }
    counts->number++;
    if (code == 0 || code == TEST_EXIT_SKIPPED) {
        const bool skipped = code != 0;
        (void)printf("ok %d - %s%s%s\n", counts->number, c->name, skipped ? " # SKIP " : "",
                     skipped ? g_skip_reason : "");
        counts->passed += !skipped;
        counts->skipped += skipped;
    } else {
        (void)printf("not ok %d - %s (%s)\n", counts->number, c->name,
                     in_time ? test_exit_text(status, text, sizeof text) : "timed out");
        counts->failed++;
    }
    if ((code != 0 && code != TEST_EXIT_SKIPPED) || getenv("TEST_VERBOSE") != NULL)
        show_output(output);
}

static void run_case(const test_case_t *c, counts_t *counts)
{
    sigset_t set, old;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGCHLD);
    (void)sigprocmask(SIG_BLOCK, &set, &old);
    const int output = memfd_create("output", MFD_CLOEXEC);
    (void)fflush(stdout);
    g_skip_reason[0] = '\0';
    const pid_t pid = fork();
    if (pid == 0) {
        (void)sigprocmask(SIG_SETMASK, &old, NULL);
        child_main(c, output);
    }
    if (pid < 0 || output < 0) {
        (void)fprintf(stderr, "%s: cannot start: %s\n", c->name, strerror(errno));
        exit(2);
    }
    (void)setpgid(pid, pid);
    int status = 0;
    const bool in_time = wait_child(pid, c->seconds * timeout_scale(), &status);
    (void)kill(-pid, SIGKILL); /* also what a finished case left behind */
    if (!in_time)
        (void)waitpid(pid, &status, 0);
    judge(c, in_time, status, output, counts);
    (void)close(output);
    (void)sigprocmask(SIG_SETMASK, &old, NULL);
}

static bool selected(const test_case_t *c, int n_words, char **words)
{
    if (!test_transport_selected(c->transport))
        return false;
    for (int i = 0; i < n_words; i++)
        if (strstr(c->name, words[i]) != NULL)
            return true;
    return n_words == 0;
}

int main(int argc, char **argv)
{
    const int own = test_option ? test_option(argc, argv) : -1;
    if (own >= 0)
        return own;
    const bool list = argc > 1 && strcmp(argv[1], "--list") == 0;
    const int first = list ? 2 : 1;
    if (argc > 1 && !list && argv[1][0] == '-') {
        (void)fprintf(stderr, "usage: %s [--list] [part of a case's name]...\n", argv[0]);
        return 2;
    }
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    g_skip_reason = (char *)test_shared_alloc(REASON_MAX);
    counts_t counts = {0};
    int n_selected = 0;
    for (int i = 0; i < g_case_count; i++) {
        if (!selected(&g_cases[i], argc - first, argv + first))
            continue;
        n_selected++;
        if (list)
            (void)puts(g_cases[i].name);
        else
            run_case(&g_cases[i], &counts);
    }
    if (list)
        return 0;
    if (n_selected == 0 && argc > first) {
        (void)fprintf(stderr, "no case has such a name\n");
        return 2;
    }
    (void)printf("%d passed, %d failed, %d skipped\n", counts.passed, counts.failed, counts.skipped);
    return counts.failed > 0 ? 1 : 0;
}
