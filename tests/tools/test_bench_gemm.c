/* SPDX-License-Identifier: Apache-2.0 */
/* `tilewire bench gemm` as a user runs it, on small products: what it says, not how fast they are. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>

#include "cpu/cpu.h"
#include "harness/test.h"
#include "tools/json_line.h"
#include "tools/tool.h"

/* ---- Cases ------------------------------------------------------------------------------------- */

static void check_line(const char *line, const char *dtype, const char *isa, bool small, const char *weights)
{
    static const char *const positive[] = {"m", "k", "n", "threads", "t_median", "gflops", "peak_gflops", "peak_ratio"};
    char text[64];
    (void)snprintf(text, sizeof text, "{\"op\": \"gemm\", \"dtype\": \"%s\", ", dtype);
    CHECK(strncmp(line, text, strlen(text)) == 0);
    CHECK_EQ(line[strlen(line) - 1], '}');
    CHECK(says(line, "verified", "true"));
    CHECK_EQ((int)number(line, "verified_rows"), (int)number(line, "m"));
    (void)snprintf(text, sizeof text, "\"%s\"", isa);
    CHECK(says(line, "isa", text));
    (void)snprintf(text, sizeof text, "\"%s\"", weights);
    CHECK(says(line, "weights", text));
    for (size_t i = 0; i < sizeof positive / sizeof positive[0]; i++)
        CHECK(number(line, positive[i]) > 0);
    CHECK_EQ((int)number(line, "iters"), 3);
    CHECK(number(line, "gflops_iqr") >= 0 && number(line, "peak_ratio_iqr") >= 0);
    CHECK(number(line, "max_err") <= number(line, "bound"));
    if (strcmp(dtype, "int8") == 0)
        CHECK(number(line, "bound") == 0);
    CHECK(is_null(line, "stream_ratio") == !small && is_null(line, "stream_ratio_iqr") == !small);
    CHECK(small || strcmp(weights, "cache") == 0);
    if (strcmp(weights, "memory") == 0)
        CHECK((int)number(line, "copies") >= 2 * 3); /* another one for each product, and each reading */
    else
        CHECK_EQ((int)number(line, "copies"), 1);
    CHECK(strstr(line, "\"peer") == NULL);
}

/* A product with tails everywhere, and one with so few rows that its weight is timed twice. */
static void check_dtype(const char *dtype, const char *isa, const char *extra)
{
    static const char *const weights[] = {"cache", "memory", "cache"};
    tool_t tool;
    const int status = RUN(&tool, "bench", "gemm", "--json", "--dtype", dtype, "--isa", isa, "--iters", "3", "--warmup",
                           "1", "--shape", "37,67,45;5,257,300", extra);
    if (status != 0)
        printf("%s", err_of(&tool));
    CHECK_EQ(status, 0);
    CHECK_EQ(count_lines(out_of(&tool)), 3);
    char *state;
    int i = 0;
    for (char *line = strtok_r(tool.out[0].text, "\n", &state); line != NULL; line = strtok_r(NULL, "\n", &state)) {
        check_line(line, dtype, isa, i > 0, weights[i]);
        CHECK(says(line, "packed", extra == NULL ? "true" : "false"));
        i++;
    }
}

static void check_level(twi_isa_t level)
{
    static const char *const dtypes[] = {"bf16", "fp16", "int8", "bf16w8", "fp16w8"};
    if (twi_cpu_isa() < level)
        SKIP("the machine, or TILEWIRE_ISA, has no such level");
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        check_dtype(dtypes[i], twi_isa_name(level), NULL);
}

TEST(json_portable)
{
    check_level(TWI_ISA_PORTABLE);
}

TEST(json_avx2)
{
    check_level(TWI_ISA_AVX2);
}

TEST(json_avx512)
{
    check_level(TWI_ISA_AVX512);
}

TEST(json_avx512bf16)
{
    check_level(TWI_ISA_AVX512BF16);
}

TEST(json_amx)
{
    check_level(TWI_ISA_AMX);
}

TEST(json_plain)
{
    check_dtype("bf16", "portable", "--plain");
    check_dtype("int8", "portable", "--plain");
    check_dtype("fp16w8", "portable", "--plain");
}

TEST(threads_and_repeated_shapes)
{
    tool_t tool;
    CHECK_EQ(RUN(&tool, "bench", "gemm", "--json", "--threads", "2", "--shape", "40,64,48", "--iters", "2", "--warmup",
                 "0", "--shape", "64,40,48"),
             0);
    CHECK_EQ(count_lines(out_of(&tool)), 2);
    CHECK_CONTAINS(out_of(&tool), "\"m\": 40, \"k\": 64, \"n\": 48");
    CHECK_CONTAINS(out_of(&tool), "\"m\": 64, \"k\": 40, \"n\": 48");
    CHECK_CONTAINS(out_of(&tool), "\"threads\": 2");
}

TEST(table_says_what_was_measured)
{
    tool_t tool;
    CHECK_EQ(RUN(&tool, "bench", "gemm", "--shape", "32,32,32", "--iters", "2", "--isa", "portable", "--dtype", "int8"),
             0);
    CHECK_CONTAINS(out_of(&tool), "isa portable");
    CHECK_CONTAINS(out_of(&tool), "gemm, int8, threads 1, weights packed");
    CHECK_CONTAINS(out_of(&tool), "peak_ratio");
    CHECK_CONTAINS(out_of(&tool), "32,32,32");
    CHECK_CONTAINS(out_of(&tool), "pinned: 1 of ");
    CHECK_CONTAINS(out_of(&tool), "at least one row in 16");
}

/* Tasks on all CPUs end with the bench, also if it is killed: one that stays holds the pipe, and the case never ends. */
TEST(hold)
{
    tool_t tool;
    CHECK_EQ(RUN(&tool, "bench", "gemm", "--json", "--hold", "--iters", "3", "--shape", "37,67,45"), 0);
    CHECK(says(out_of(&tool), "verified", "true"));
    CHECK_EQ(RUN(&tool, "bench", "all_reduce", "--json", "--hold", "--iters", "3", "--bytes", "64"), 0);
    CHECK(says(out_of(&tool), "verified", "true"));
    START(&tool, "bench", "gemm", "--hold", "--shape", "37,67,45", "--iters", "100000");
    while (tool.out[0].used == 0 && read_more(&tool))
        continue;
    CHECK_EQ(kill(tool.pid, SIGKILL), 0);
    CHECK_EQ(finish(&tool), 128 + SIGKILL);
}

TEST(hold_takes_cpus_with_a_core_each)
{
    tool_t tool;
    cpu_set_t allowed;
    CHECK_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    if (CPU_COUNT(&allowed) < 2)
        SKIP("there is one CPU");
    CHECK_EQ(RUN(&tool, "bench", "gemm", "--hold", "--iters", "3", "--shape", "37,67,45"), 0);
    CHECK_CONTAINS(out_of(&tool), "pinned: 1 of 1 ");
    CHECK_CONTAINS(err_of(&tool), "--hold: on CPU ");
    char threads[16];
    (void)snprintf(threads, sizeof threads, "%d", CPU_COUNT(&allowed));
    CHECK_EQ(RUN(&tool, "bench", "gemm", "--hold", "--threads", threads, "--iters", "3", "--shape", "37,67,45"), 0);
    CHECK(strstr(err_of(&tool), "--hold: on CPU") == NULL); /* there is nothing to choose from */
}

/* ---- Verification ------------------------------------------------------------------------------ */

TEST(large_products_are_verified_in_part)
{
    tool_t tool;
    CHECK_EQ(RUN(&tool, "bench", "gemm", "--json", "--shape", "131077,64,64", "--iters", "1", "--warmup", "0"), 0);
    const double rows = number(out_of(&tool), "verified_rows");
    CHECK(rows >= 131077 / 16 + 2 && rows <= 131077 / 2);
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

/* Stands between the command and the library. FAULT: "idle", "late" or "wrong". */
static const char faulty[] = "#define _GNU_SOURCE\n"
                             "#include <dlfcn.h>\n"
                             "#include <stdlib.h>\n"
                             "#include <string.h>\n"
                             "#include <tilewire/tilewire.h>\n"
                             "typedef tw_status_t (*matmul_t)(tw_comm_t *, const tw_matmul_args_t *);\n"
                             "TW_API tw_status_t tw_matmul(tw_comm_t *comm, const tw_matmul_args_t *args)\n"
                             "{\n"
                             "    static int calls;\n"
                             "    const int late = calls++ > 0;\n"
                             "    const char *fault = getenv(\"FAULT\");\n"
                             "    if (late && strcmp(fault, \"idle\") == 0)\n"
                             "        return TW_OK;\n"
                             "    const tw_status_t status = ((matmul_t)dlsym(RTLD_NEXT, \"tw_matmul\"))(comm, args);\n"
                             "    unsigned char *y = args->y->data;\n"
                             "    if (late ? strcmp(fault, \"late\") == 0 : strcmp(fault, \"wrong\") == 0)\n"
                             "        y[2 * args->y->shape[0] * args->y->shape[1] - 1] ^= 0x20;\n"
                             "    return status;\n"
                             "}\n";

static bool compile(const char *folder)
{
    char source[PATH_MAX], line[2 * PATH_MAX];
    (void)snprintf(source, sizeof source, "%s/faulty.c", folder);
    write_file(source, faulty);
    (void)snprintf(line, sizeof line, "cc -shared -fPIC -I '%s/include' -o %s/faulty.so %s -ldl", TEST_SOURCE_DIR,
                   folder, source);
    const int status = system(line);
    (void)unlink(source);
    return status == 0;
}

/* Runs the command with a fault; not timed, and the sentence is said. */
static void check_fault(const char *fault, const char *shape, int lines, const char *sentence)
{
    tool_t tool;
    (void)setenv("FAULT", fault, 1);
    CHECK_EQ(RUN(&tool, "bench", "gemm", "--json", "--shape", shape, "--iters", "2", "--warmup", "1"), 1);
    CHECK_EQ(count_lines(out_of(&tool)), lines);
    CHECK(says(out_of(&tool), "verified", "false"));
    CHECK_EQ((int)number(out_of(&tool), "iters"), 0);
    CHECK(is_null(out_of(&tool), "t_median") && is_null(out_of(&tool), "gflops"));
    CHECK_CONTAINS(err_of(&tool), sentence);
    CHECK_EQ(count_lines(err_of(&tool)), 1);
}

TEST(wrong_products_are_not_timed)
{
    char folder[] = "/tmp/tilewire-test-XXXXXX", library[64];
#if defined(__SANITIZE_ADDRESS__)
    SKIP("the sanitizer must be the first library");
#endif
    (void)tool_path();
    if (system("cc --version >/dev/null 2>&1") != 0)
        SKIP("there is no cc");
    CHECK(mkdtemp(folder) != NULL);
    const bool compiled = compile(folder);
    (void)snprintf(library, sizeof library, "%s/faulty.so", folder);
    (void)setenv("LD_PRELOAD", library, 1);
    if (compiled) {
        check_fault("wrong", "37,67,45", 1, "element (36,44) is ");
        check_fault("idle", "37,67,45", 1, "a later result differs from the verified one in 1665 of 1665 elements");
        check_fault("idle", "5,67,45", 2, "a later result differs from the verified one in 225 of 225 elements");
        check_fault("late", "37,67,45", 1, "verified one in 1 of 1665 elements, first in (36,44)");
    }
    (void)unlink(library);
    (void)rmdir(folder);
    CHECK(compiled);
}

/* ---- Usage ------------------------------------------------------------------------------------- */

TEST(help_lists_the_options)
{
    static const char *const words[] = {"--shape", "--dtype", "--threads", "--isa",  "--iters", "--warmup",
                                        "--plain", "--peers", "--json",    "bf16w8", "fp16w8"};
    tool_t tool;
    CHECK_EQ(RUN(&tool, "bench", "gemm", "--help"), 0);
    CHECK_CONTAINS(out_of(&tool), "usage: tilewire bench gemm [options]");
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        CHECK_CONTAINS(out_of(&tool), words[i]);
    CHECK_EQ(RUN(&tool, "bench", "--help"), 0);
    CHECK_CONTAINS(out_of(&tool), "tilewire bench gemm");
}

/* Refused with status 2 and the sentence given, before anything is printed. */
static void check_refused(const char *option, const char *value, const char *sentence)
{
    tool_t tool;
    CHECK_EQ(RUN(&tool, "bench", "gemm", option, value), 2);
    CHECK_CONTAINS(err_of(&tool), sentence);
    CHECK_STR(out_of(&tool), "");
}

TEST(wrong_options_are_named)
{
    static const char *const shapes[] = {
        "",          "16",        "16,16",    "16,16,16,16", "16,16,x", "0,16,16",        "16,16,-16",
        "16,16,16;", ";16,16,16", "16;16;16", "16 16 16",    "16,,16",  "16,16,20000000", "99999999999999999999,1,1"};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        check_refused("--shape", shapes[i], "--shape ");
    check_refused("--dtype", "fp32", "bf16w8");
    check_refused("--isa", "sse", "portable, avx2");
    check_refused("--threads", "0", "--threads 0");
    check_refused("--iters", "0", "--iters 0");
    check_refused("--warmup", "-1", "--warmup -1");
    check_refused("--ranks", "2", "unknown option --ranks");
    check_refused("--shapes", "1,1,1", "did you mean --shape?");
    check_refused("all_reduce", "--json", "unexpected argument 'all_reduce'");
}

TEST(more_usage)
{
    tool_t tool;
    CHECK_EQ(RUN(&tool, "bench", "gemm", "--dtype", "int8", "--shape", "1,131072,1"), 2);
    CHECK_CONTAINS(err_of(&tool), "k of int8 is at most 131071");
    CHECK_EQ(RUN(&tool, "bench", "gem"), 2);
    CHECK_CONTAINS(err_of(&tool), "did you mean 'gemm'?");
    CHECK_EQ(RUN(&tool, "bench", "gemm", "--shape"), 2);
    CHECK_CONTAINS(err_of(&tool), "--shape needs an argument");
}

/* ---- Peers ------------------------------------------------------------------------------------- */

/* A python without torch, however it says so. */
TEST(peers_without_torch_say_how_to_get_it)
{
    tool_t tool;
    (void)setenv("PEER_PYTHON", "/bin/false", 1);
    (void)setenv("PEER_TORCH", "/dev/null", 1);
    CHECK_EQ(RUN(&tool, "bench", "gemm", "--peers", "--shape", "1,1,1"), 1);
    CHECK_CONTAINS(err_of(&tool), "scripts/peers.sh");
    (void)setenv("PEER_PYTHON", "/nonexistent/python", 1);
    CHECK_EQ(RUN(&tool, "bench", "gemm", "--peers", "--shape", "1,1,1"), 1);
    CHECK_CONTAINS(err_of(&tool), "/nonexistent/python");
    CHECK_STR(out_of(&tool), "");
    (void)setenv("PEER_TORCH", "/nonexistent/script", 1);
    CHECK_EQ(RUN(&tool, "bench", "gemm", "--peers", "--shape", "1,1,1"), 1);
    CHECK_STR(err_of(&tool), "tilewire bench: --peers: PEER_TORCH is /nonexistent/script, which cannot be read\n");
}

/* A shell script instead of torch: the line it begins with, its answer to "case", and that to "run". */
static int run_peer(tool_t *tool, const char *version, const char *layout, const char *time)
{
    char path[] = "/tmp/tilewire-test-XXXXXX", text[256];
    const int fd = mkstemp(path);
    CHECK(fd >= 0 && close(fd) == 0);
    (void)snprintf(text, sizeof text,
                   "echo '%s'\nwhile read -r what rest; do\n"
                   "if [ \"$what\" = case ]; then echo '%s'; else echo '%s'; fi\ndone\n",
                   version, layout, time);
    write_file(path, text);
    (void)setenv("PEER_PYTHON", "/bin/sh", 1);
    (void)setenv("PEER_TORCH", path, 1);
    const int status =
        RUN(tool, "bench", "gemm", "--json", "--peers", "--shape", "20,16,16", "--iters", "2", "--warmup", "1");
    (void)unlink(path);
    return status;
}

TEST(peers_are_reported)
{
    tool_t tool;
    CHECK_EQ(run_peer(&tool, "torch 9.8.7", "ok plain", "16384"), 0);
    CHECK(says(out_of(&tool), "peer", "\"torch 9.8.7\"") && says(out_of(&tool), "peer_layout", "\"plain\""));
    CHECK(number(out_of(&tool), "peer_gflops") == 0.625);
    CHECK(number(out_of(&tool), "peer_ratio") > 0);
    CHECK_EQ(run_peer(&tool, "torch 9.8.7", "none of that type", "16384"), 0);
    CHECK(is_null(out_of(&tool), "peer_layout") && is_null(out_of(&tool), "peer_gflops"));
    CHECK_STR(err_of(&tool), "tilewire bench: --peers: torch 9.8.7: none of that type\n");
}

TEST(answers_that_are_none_are_named)
{
    static const char *const times[] = {"0", "-1", "junk", "12 ns", "", "nan", "inf"};
    tool_t tool;
    char text[128];
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        CHECK_EQ(run_peer(&tool, "torch 9.8.7", "ok plain", times[i]), 1);
        (void)snprintf(text, sizeof text, "tilewire bench: --peers: '%s' is no answer of torch to 'run'\n", times[i]);
        CHECK_STR(err_of(&tool), text);
        CHECK_STR(out_of(&tool), "");
    }
    CHECK_EQ(run_peer(&tool, "torch 9.8.7", "yes", "1"), 1);
    CHECK_CONTAINS(err_of(&tool), "'yes' is no answer of torch to 'case'");
    CHECK_EQ(run_peer(&tool, "hello", "ok plain", "1"), 1);
    CHECK_CONTAINS(err_of(&tool), "does not name its torch");
    CHECK_EQ(run_peer(&tool, "none No module", "ok plain", "1"), 1);
    CHECK_CONTAINS(err_of(&tool), "/bin/sh has none (No module): scripts/peers.sh");
}
