/* SPDX-License-Identifier: Apache-2.0 */
/* What test_kernels does besides its cases: rates of kernels, and a map of the cells that are wrong. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "harness/test.h"

/* The output of a program beside this one, both streams, and its exit status. */
static int run(const char *command, char *text_out, size_t bytes)
{
    char line[4096];
    (void)snprintf(line, sizeof line, "exec %s/tests/%s 2>&1", TEST_BUILD_DIR, command);
    FILE *output = popen(line, "re");
    CHECK(output != NULL);
    const size_t used = fread(text_out, 1, bytes - 1, output);
    text_out[used] = '\0';
    CHECK(used > 0 && used < bytes - 1);
    const int status = pclose(output);
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status);
}

TEST(rates)
{
    char text[16384];
    double rate = 0, ratio = 0;
    CHECK_EQ(run("test_kernels --bench f32_f32_f32_4x16x1", text, sizeof text), 0);
    CHECK_CONTAINS(text, "twi_gemm_f32_f32_f32_4x16x1__portable ");
    CHECK(strchr(text, '\n') == text + strlen(text) - 1);
    CHECK_EQ(sscanf(strstr(text, " k "), " k %*d %lf GFLOP/s %*s %*f ratio %lf", &rate, &ratio), 2);
    CHECK(rate > 0 && ratio > 0);
}

TEST(map_of_wrong_cells)
{
    char text[16384];
    CHECK_EQ(run("kernels_fixture --seed=7 f32_f32_f32_4x16x1", text, sizeof text), 1);
    CHECK_CONTAINS(text, "not ok ");
    CHECK_CONTAINS(text, "twi_gemm_f32_f32_f32_4x16x1__portable, seed 0x7: ");
    CHECK_CONTAINS(text, "................\n# ................\n# .....n..........\n");
    CHECK_CONTAINS(text, "row 2 column 5 is nan, not ");
}
