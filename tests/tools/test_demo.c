/* SPDX-License-Identifier: Apache-2.0 */
/* `tilewire demo` as a user runs it. */
#define _GNU_SOURCE
#include "harness/test.h"
#include "tools/tool.h"

TEST(all_operators_are_shown_and_verified)
{
    static const char *const operators[] = {"mm_reduce_scatter", "mm_all_reduce", "all_gather_mm", "gmm_alltoallv",
                                            "alltoallv_gmm"};
    char folder[] = "/tmp/tilewire-test-XXXXXX", text[128];
    tool_t tool;
    CHECK(mkdtemp(folder) != NULL);
    const int status = RUN(&tool, "demo", "--iters", "1", "-o", folder);
    if (status != 0)
        printf("%s", err_of(&tool));
    CHECK_EQ(status, 0);
    for (size_t i = 0; i < sizeof operators / sizeof operators[0]; i++) {
        (void)snprintf(text, sizeof text, "\n  %-18s ", operators[i]);
        const char *row = strstr(out_of(&tool), text);
        CHECK(row != NULL);
        const char *verified = strstr(row + 1, " yes "), *end = strchr(row + 1, '\n');
        CHECK(verified != NULL && end != NULL && verified < end);
    }
    (void)snprintf(text, sizeof text, "%s/trace.svg", folder);
    CHECK_CONTAINS(out_of(&tool), text);
    CHECK_EQ(access(text, R_OK), 0);
    CHECK_EQ(unlink(text), 0);
    (void)snprintf(text, sizeof text, "%s/trace.json", folder);
    CHECK_EQ(unlink(text), 0);
    CHECK_EQ(rmdir(folder), 0);
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
