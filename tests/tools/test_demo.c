/* SPDX-License-Identifier: Apache-2.0 */
/* `tilewire demo` as a user runs it. */
#define _GNU_SOURCE
#include "harness/test.h"
#include "tools/tool.h"

static const char *const operators[] = {"mm_reduce_scatter", "mm_all_reduce", "all_gather_mm", "gmm_alltoallv",
                                        "alltoallv_gmm"};
enum { OPERATORS = sizeof operators / sizeof operators[0] };

static char folder[64];

static void make_folder(void)
{
    (void)snprintf(folder, sizeof folder, "/tmp/tilewire-test-XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
}

/* With the trace, which must be there. */
static void remove_folder(void)
{
    char path[128];
    (void)snprintf(path, sizeof path, "%s/trace.svg", folder);
    CHECK_EQ(unlink(path), 0);
    (void)snprintf(path, sizeof path, "%s/trace.json", folder);
    CHECK_EQ(unlink(path), 0);
    CHECK_EQ(rmdir(folder), 0);
}

/* Every operator has a row that says "yes". */
static void check_rows(const char *text)
{
    char word[64];
    for (int i = 0; i < OPERATORS; i++) {
        (void)snprintf(word, sizeof word, "\n  %-18s ", operators[i]);
        const char *row = strstr(text, word);
        CHECK(row != NULL);
        const char *verified = strstr(row + 1, " yes "), *end = strchr(row + 1, '\n');
        CHECK(verified != NULL && end != NULL && verified < end);
    }
}

TEST(all_operators_are_shown_and_verified)
{
    char path[128];
    tool_t tool;
    make_folder();
    const int status = RUN(&tool, "demo", "--iters", "1", "-o", folder);
    if (status != 0)
        printf("%s", err_of(&tool));
    CHECK_EQ(status, 0);
    check_rows(out_of(&tool));
    CHECK_STR(err_of(&tool), "");
    (void)snprintf(path, sizeof path, "%s/trace.svg", folder);
    CHECK_CONTAINS(out_of(&tool), path);
    remove_folder();
}

/* ---- On a terminal ----------------------------------------------------------------------------- */

/* Its stderr is a terminal, whose other end is *terminal_out; its stdout is `out`. */
static pid_t start_on_terminal(int *terminal_out, FILE *out)
{
    const char *path = tool_path();
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (terminal < 0) {
        remove_folder();
        SKIP("there are no terminals");
    }
    CHECK(grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    const int own = open(ptsname(terminal), O_RDWR | O_NOCTTY | O_CLOEXEC);
    CHECK(own >= 0);
    (void)fflush(stdout);
    const pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        (void)dup2(fileno(out), STDOUT_FILENO);
        (void)dup2(own, STDERR_FILENO);
        (void)execl(path, "tilewire", "demo", "-o", folder, (char *)NULL);
        _exit(99);
    }
    (void)close(own);
    *terminal_out = terminal;
    return pid;
}

/* Up to the end of the last process that has it open. */
static void read_terminal(int terminal, char *text)
{
    size_t used = 0;
    for (ssize_t n = 1; n > 0; used += n > 0 ? (size_t)n : 0) {
        CHECK(used < TEXT_BYTES - 1);
        n = read(terminal, text + used, TEXT_BYTES - 1 - used);
    }
    (void)close(terminal);
}

static void check_progress(const char *text)
{
    char line[128];
    for (int i = 0; i < OPERATORS; i++) {
        const int m = strcmp(operators[i], "all_gather_mm") == 0 ? 128 : 256;
        (void)snprintf(line, sizeof line, "\r\033[K%s %d,512,1024: verifying ...", operators[i], m);
        CHECK_CONTAINS(text, line);
        (void)snprintf(line, sizeof line, "\r\033[K%s %d,512,1024: timing 0 of 25", operators[i], m);
        CHECK_CONTAINS(text, line);
        (void)snprintf(line, sizeof line, "\r\033[K%s %d,512,1024: timing 24 of 25\r\033[K", operators[i], m);
        CHECK_CONTAINS(text, line);
    }
    CHECK_STR(text + strlen(text) - 4, "\r\033[K");
}

/* As it is run for the first time: it takes less than the minute that a case has. */
TEST(on_a_terminal_it_says_what_it_is_at)
{
    int terminal, status;
    FILE *out = tmpfile();
    char *text = keep_text();
    CHECK(out != NULL);
    make_folder();
    const pid_t pid = start_on_terminal(&terminal, out);
    read_terminal(terminal, text);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    check_progress(text);
    rewind(out);
    char *table = keep_text();
    CHECK(fread(table, 1, TEXT_BYTES - 1, out) > 0);
    check_rows(table);
    (void)fclose(out);
    remove_folder();
}

TEST(usage)
{
    tool_t tool;
    CHECK_EQ(RUN(&tool, "demo", "--help"), 0);
    CHECK_CONTAINS(out_of(&tool), "usage: tilewire demo [options]");
    CHECK_EQ(RUN(&tool, "demo", "please"), 2);
    CHECK_CONTAINS(err_of(&tool), "unexpected argument 'please'");
    CHECK_EQ(RUN(&tool, "demo", "-o", "/nonexistent/folder", "--iters", "x"), 2);
    CHECK_CONTAINS(err_of(&tool), "--iters x");
}
