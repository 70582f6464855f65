/* SPDX-License-Identifier: Apache-2.0 */
/* `tilewire bench` of the fused operators as a user runs it, on small shapes: what it says, not how fast they are. */
#define _GNU_SOURCE
#include "harness/test.h"
#include "tools/json_line.h"
#include "tools/tool.h"

static const char *const operators[] = {"mm_reduce_scatter", "mm_all_reduce", "all_gather_mm", "gmm_alltoallv",
                                        "alltoallv_gmm"};
enum { OPERATORS = sizeof operators / sizeof operators[0] };

/* ---- What is printed --------------------------------------------------------------------------- */

static void check_text(const char *line, const char *name, const char *value)
{
    char text[64];
    (void)snprintf(text, sizeof text, "\"%s\"", value);
    CHECK(says(line, name, text));
}

/* Every field that a line has, whatever was measured. */
static void check_line(const char *line, const char *op, const char *quant, const char *wire)
{
    static const char *const positive[] = {
        "m",     "k",       "n",     "ranks",           "threads",        "t_gemm",        "t_comm",
        "t_seq", "t_fused", "iters", "fused_over_gemm", "fused_over_seq", "fused_over_max"};
    static const char *const spreads[] = {"fused_over_gemm_iqr", "fused_over_seq_iqr", "fused_over_max_iqr",
                                          "overlap_eff_iqr"};
    CHECK_EQ(line[0], '{');
    CHECK_EQ(line[strlen(line) - 1], '}');
    check_text(line, "op", op);
    check_text(line, "quant", quant);
    check_text(line, "wire", wire);
    CHECK(says(line, "verified", "true"));
    CHECK(number(line, "max_err") >= 0 && number(line, "max_err") <= 1);
    for (size_t i = 0; i < sizeof positive / sizeof positive[0]; i++)
        CHECK(number(line, positive[i]) > 0);
    for (size_t i = 0; i < sizeof spreads / sizeof spreads[0]; i++)
        CHECK(number(line, spreads[i]) >= 0);
    (void)number(line, "overlap_eff");
    (void)member(line, "dtype");
    (void)member(line, "isa");
    (void)member(line, "rounds");
    (void)member(line, "transport");
}

/* Runs one shape with three iterations; the line that comes. */
static const char *run_line(tool_t *tool, const char *op, const char *shape, const char *quant, const char *wire,
                            const char *option, const char *value)
{
    const int status = RUN(tool, "bench", op, "--json", "--shape", shape, "--quant", quant, "--wire", wire, "--iters",
                           "3", "--warmup", "1", option, value);
    if (status != 0)
        printf("%s %s %s: %s\n", op, quant, wire, err_of(tool));
    CHECK_EQ(status, 0);
    CHECK_EQ(count_lines(out_of(tool)), 1);
    tool->out[0].text[strcspn(tool->out[0].text, "\n")] = '\0';
    check_line(out_of(tool), op, quant, wire);
    return out_of(tool);
}

TEST(every_operator_is_verified_and_timed)
{
    tool_t tool;
    for (int i = 0; i < OPERATORS; i++) {
        const char *line = run_line(&tool, operators[i], "36,67,45", "none", "out", "--dtype", i % 2 ? "fp16" : "bf16");
        check_text(line, "dtype", i % 2 ? "fp16" : "bf16");
        check_text(line, "transport", "shm");
        check_text(line, "rounds", "auto");
        CHECK_EQ((int)number(line, "m"), 36);
        CHECK_EQ((int)number(line, "k"), 67);
        CHECK_EQ((int)number(line, "n"), 45);
        CHECK_EQ((int)number(line, "ranks"), 2);
        CHECK_EQ((int)number(line, "iters"), 3);
    }
}

TEST(ranks_as_threads_three_of_them)
{
    tool_t tool;
    for (int i = 0; i < OPERATORS; i++) {
        CHECK_EQ(RUN(&tool, "bench", operators[i], "--json", "--shape", "33,40,24", "--ranks", "3", "--transport",
                     "threads", "--iters", "2", "--warmup", "0", "--rounds", i % 2 ? "none" : "2"),
                 0);
        CHECK(says(out_of(&tool), "verified", "true"));
        check_text(out_of(&tool), "transport", "threads");
        check_text(out_of(&tool), "rounds", i % 2 ? "none" : "2");
        CHECK_EQ((int)number(out_of(&tool), "ranks"), 3);
    }
}

/* ---- Quantisation ------------------------------------------------------------------------------ */

TEST(all_reduce_in_every_quantisation)
{
    static const char *const quants[] = {"a16w8-tensor", "a16w8-channel", "a16w8-group", "a8w8-u64",
                                         "a8w8-bf16",    "a8w8-f32pt",    "a8w8-bf16pt"};
    static const char *const dtypes[] = {"bf16", "bf16", "bf16", "fp16", "bf16", "fp16", "bf16"};
    tool_t tool;
    for (size_t i = 0; i < sizeof quants / sizeof quants[0]; i++) {
        const bool int8 = strncmp(quants[i], "a8w8", 4) == 0;
        const char *line = run_line(&tool, "mm_all_reduce", "9,100,45", quants[i], "out", "--dtype", dtypes[i]);
        CHECK(!int8 || number(line, "max_err") == 0);
        (void)run_line(&tool, "mm_all_reduce", "9,100,45", quants[i], int8 ? "int8" : "f32", NULL, NULL);
    }
}

TEST(the_other_operators_in_int8)
{
    static const char *const quants[] = {"a8w8-u64", "a8w8-f32pt"};
    tool_t tool;
    for (size_t i = 0; i < 2; i++) {
        CHECK(number(run_line(&tool, "mm_reduce_scatter", "12,100,45", quants[i], "f32", NULL, NULL), "max_err") == 0);
        CHECK(number(run_line(&tool, "all_gather_mm", "12,100,45", quants[i], "out", NULL, NULL), "max_err") == 0);
    }
    check_text(run_line(&tool, "mm_reduce_scatter", "12,64,8", "a8w8-f32pt", "out", "--dtype", "bf16"), "dtype",
               "bf16");
}

/* ---- Experts ----------------------------------------------------------------------------------- */

TEST(experts_hot_ones_and_a_shared_one)
{
    tool_t tool;
    for (int i = 3; i < OPERATORS; i++) {
        CHECK_EQ(RUN(&tool, "bench", operators[i], "--json", "--shape", "37,64,50;1,3,5", "--experts", "3", "--hot",
                     "0.5", "--shared", "20,30,40", "--ranks", "3", "--iters", "2", "--warmup", "0"),
                 0);
        CHECK_EQ(count_lines(out_of(&tool)), 2);
        CHECK(says(out_of(&tool), "verified", "true") && strstr(out_of(&tool), "\"verified\": false") == NULL);
        CHECK_EQ((int)number(out_of(&tool), "experts"), 3);
        CHECK(number(out_of(&tool), "hot") == 0.5);
        CHECK_EQ((int)number(out_of(&tool), "shared_n"), 40);
        CHECK_EQ(RUN(&tool, "bench", operators[i], "--json", "--shape", "8,16,16", "--hot", "1", "--iters", "2"), 0);
        CHECK(says(out_of(&tool), "verified", "true"));
        CHECK_EQ((int)number(out_of(&tool), "experts"), 2);
    }
}

/* ---- Rounds ------------------------------------------------------------------------------------ */

/* What the operator says of its schedule. */
static const char *explained(tool_t *tool, const char *op, const char *rounds)
{
    CHECK_EQ(RUN(tool, "bench", op, "--json", "--explain", "--shape", "96,64,256", "--rounds", rounds, "--iters", "1",
                 "--warmup", "0"),
             0);
    check_text(out_of(tool), "rounds", rounds);
    return member(out_of(tool), "explain");
}

TEST(operators_have_the_rounds_asked_for)
{
    tool_t tool;
    for (int i = 0; i < OPERATORS; i++) {
        const bool reduces = strncmp(operators[i], "mm_", 3) == 0;
        CHECK_CONTAINS(explained(&tool, operators[i], "2"), reduces ? "fused, 2 rounds (asked for)" : "in 2 rounds");
        CHECK_CONTAINS(explained(&tool, operators[i], "3"), reduces ? "fused, 3 rounds (asked for)" : "in 3 rounds");
        if (reduces)
            CHECK_CONTAINS(explained(&tool, operators[i], "none"), "not fused");
    }
}

/* ---- Files of shapes --------------------------------------------------------------------------- */

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

static int run_shapes(tool_t *tool, const char *op, const char *text)
{
    char path[] = "/tmp/tilewire-test-XXXXXX";
    const int fd = mkstemp(path);
    CHECK(fd >= 0 && close(fd) == 0);
    write_file(path, text);
    const int status = RUN(tool, "bench", op, "--json", "--shapes", path, "--iters", "2", "--warmup", "0");
    (void)unlink(path);
    return status;
}

TEST(shapes_come_from_a_file)
{
    tool_t tool;
    CHECK_EQ(run_shapes(&tool, "alltoallv_gmm",
                        "# a comment\n\nalltoallv_gmm 8 16 24 2 3  # its name\nmm_all_reduce 1 1 1\n"
                        "alltoallv_gmm 8 16 32 4\nalltoallv_gmm 9 8 7\n"),
             0);
    CHECK_EQ(count_lines(out_of(&tool)), 2);
    CHECK_CONTAINS(out_of(&tool), "\"m\": 8, \"k\": 16, \"n\": 24");
    CHECK_CONTAINS(out_of(&tool), "\"name\": \"its name\"");
    CHECK_CONTAINS(out_of(&tool), "\"experts\": 3");
    CHECK_CONTAINS(out_of(&tool), "\"m\": 9, \"k\": 8, \"n\": 7");
}

TEST(lines_that_are_no_shapes_are_named)
{
    static const char *const lines[] = {
        "mm_all_reduce 1 2",   "mm_all_reduce 1 2 x",       "mm_all_reduce 1 2 0",  "mm_all_reduce 1 2 3 2 33",
        "mm_everything 1 2 3", "mm_all_reduce 1 2 3 4 5 6", "mm_all_reduce 1 2 -3", "8 16 24"};
    tool_t tool;
    char text[128];
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        (void)snprintf(text, sizeof text, "# first\n%s\n", lines[i]);
        CHECK_EQ(run_shapes(&tool, "mm_all_reduce", text), 2);
        CHECK_CONTAINS(err_of(&tool), "line 2 is not 'op m k n [ranks] [experts]  # name'");
    }
    CHECK_EQ(run_shapes(&tool, "mm_all_reduce", "all_gather_mm 1 2 3\nmm_all_reduce 1 2 3 5\n"), 2);
    CHECK_CONTAINS(err_of(&tool), "no line is about mm_all_reduce with 2 ranks");
    CHECK_EQ(RUN(&tool, "bench", "mm_all_reduce", "--shapes", "/nonexistent/file"), 2);
    CHECK_CONTAINS(err_of(&tool), "--shapes /nonexistent/file: ");
    CHECK_EQ(RUN(&tool, "bench", "mm_all_reduce", "--shapes", "/"), 2);
    CHECK_CONTAINS(err_of(&tool), "--shapes /: Is a directory");
}

/* All lines are read before it is found that none is for so many ranks. */
TEST(our_own_files_can_be_read)
{
    static const char *const names[] = {"examples", "large", "llama3_8b", "llama3_70b", "qwen3_32b", "deepseek_v3"};
    tool_t tool;
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        (void)snprintf(path, sizeof path, "%s/bench/shapes/%s.txt", TEST_SOURCE_DIR, names[i]);
        CHECK_EQ(RUN(&tool, "bench", "gmm_alltoallv", "--ranks", "251", "--shapes", path), 2);
        CHECK_CONTAINS(err_of(&tool), "no line is about gmm_alltoallv with 251 ranks");
    }
}

/* ---- Table ------------------------------------------------------------------------------------- */

TEST(table_says_what_was_measured)
{
    tool_t tool;
    CHECK_EQ(RUN(&tool, "bench", "mm_reduce_scatter", "--shape", "16,16,16;8,8,8", "--iters", "2", "--isa", "portable",
                 "--explain"),
             0);
    CHECK_CONTAINS(out_of(&tool), "isa portable");
    CHECK_CONTAINS(out_of(&tool), "# mm_reduce_scatter, bf16, quant none, wire out, rounds auto, ranks 2, threads 1");
    CHECK_CONTAINS(out_of(&tool), "verified against fp64");
    CHECK_CONTAINS(out_of(&tool), "t_fused");
    CHECK_CONTAINS(out_of(&tool), "# FEW: of fewer than 51 ratios, --iters 51 takes them\n");
    CHECK_CONTAINS(out_of(&tool), "\n16,16,16           true ");
    CHECK_CONTAINS(out_of(&tool), "\n8,8,8              true ");
    CHECK_CONTAINS(out_of(&tool), "\n#   mm_reduce_scatter: ");
}

/* ---- Wrong results ----------------------------------------------------------------------------- */

/*
 * Stands between the command and the library. FAULT: "wrong" and "bit" spoil the first result of rank 1, much
 * and in its last bit; "late" a later one; "idle" computes the first one only; "shared" spoils that of the shared
 * expert; "product" and "collective" leave out these alone, the second of their kind.
 */
static const char faulty[] =
    "#define _GNU_SOURCE\n"
    "#include <dlfcn.h>\n"
    "#include <stdlib.h>\n"
    "#include <string.h>\n"
    "#include <tilewire/hccl.h>\n"
    "#include <tilewire/tilewire.h>\n"
    "#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))\n"
    "static unsigned char *last, *last_shared;\n"
    "static int rank, calls, products, collectives;\n"
    "static int is(const char *fault) { return strcmp(getenv(\"FAULT\"), fault) == 0; }\n"
    "static unsigned char *end_of(const tw_tensor_t *y)\n"
    "{\n"
    "    return y ? (unsigned char *)y->data + 2 * y->shape[0] * y->shape[1] - 2 : NULL;\n"
    "}\n"
    "#define PREPARE(name, y, shared)                                                               \\\n"
    "    TW_API tw_status_t name##_prepare(tw_comm_t *comm, const name##_args_t *args, tw_op_t **op) \\\n"
    "    {                                                                                          \\\n"
    "        last = end_of(args->y);                                                                \\\n"
    "        last_shared = shared;                                                                  \\\n"
    "        rank = tw_comm_rank(comm);                                                             \\\n"
    "        return NEXT(name##_prepare)(comm, args, op);                                           \\\n"
    "    }\n"
    "PREPARE(tw_mm_reduce_scatter, y, NULL)\n"
    "PREPARE(tw_mm_all_reduce, y, NULL)\n"
    "PREPARE(tw_all_gather_mm, y, NULL)\n"
    "PREPARE(tw_gmm_alltoallv, y, end_of(args->mm_y))\n"
    "PREPARE(tw_alltoallv_gmm, gmm_y, end_of(args->mm_y))\n"
    "TW_API tw_status_t tw_op_start(tw_op_t *op)\n"
    "{\n"
    "    return calls++ > 0 && is(\"idle\") ? TW_OK : NEXT(tw_op_start)(op);\n"
    "}\n"
    "TW_API tw_status_t tw_op_wait(tw_op_t *op, uint64_t timeout)\n"
    "{\n"
    "    if (calls > 1 && is(\"idle\"))\n"
    "        return TW_OK;\n"
    "    const tw_status_t status = NEXT(tw_op_wait)(op, timeout);\n"
    "    if (rank == 1 && calls == 1 && is(\"wrong\"))\n"
    "        last[1] ^= 0x20;\n"
    "    if (rank == 1 && calls == 1 && is(\"shared\"))\n"
    "        last_shared[1] ^= 0x20;\n"
    "    if (rank == 1 && ((calls == 1 && is(\"bit\")) || (calls > 1 && is(\"late\"))))\n"
    "        last[0] ^= 1;\n"
    "    return status;\n"
    "}\n"
    "TW_API tw_status_t tw_matmul(tw_comm_t *comm, const tw_matmul_args_t *args)\n"
    "{\n"
    "    return ++products == 2 && is(\"product\") ? TW_OK : NEXT(tw_matmul)(comm, args);\n"
    "}\n"
    "TW_API tw_hccl_handle_t tw_hccl_all_reduce(tw_hccl_t *hccl, const void *send, void *recv, uint64_t count,\n"
    "                                           uint32_t type, uint32_t op, uint32_t repeat, uint32_t flags)\n"
    "{\n"
    "    const int less = ++collectives == 2 && is(\"collective\");\n"
    "    return NEXT(tw_hccl_all_reduce)(hccl, send, recv, count - less, type, op, repeat, flags);\n"
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
static void check_fault(const char *fault, const char *op, const char *option, const char *value, const char *sentence)
{
    tool_t tool;
    (void)setenv("FAULT", fault, 1);
    CHECK_EQ(RUN(&tool, "bench", op, "--json", "--shape", "38,67,45", "--iters", "2", "--warmup", "1", option, value),
             1);
    CHECK_EQ(count_lines(out_of(&tool)), 1);
    CHECK(says(out_of(&tool), "verified", "false"));
    CHECK_EQ((int)number(out_of(&tool), "iters"), 0);
    CHECK(is_null(out_of(&tool), "t_fused") && is_null(out_of(&tool), "fused_over_seq"));
    CHECK_CONTAINS(err_of(&tool), sentence);
}

/* The results of rank 1 have so many rows. Where nothing is added one bit is beyond the bound. */
static void check_faults_of(const char *op, int rows)
{
    static const char later[] = "a later result differs from the verified one";
    const bool adds = strstr(op, "reduce") != NULL;
    char element[128], text[128];
    (void)snprintf(element, sizeof element, "rank 1: %s 38,67,45: element (%d,44) of y is ", op, rows - 1);
    check_fault("wrong", op, NULL, NULL, element);
    (void)snprintf(text, sizeof text, "in sequence in 1 of %d elements, first in (%d,44)", rows * 45, rows - 1);
    check_fault("bit", op, NULL, NULL, adds ? text : element);
    (void)snprintf(text, sizeof text, "%s in 1 of %d elements", later, rows * 45);
    check_fault("late", op, NULL, NULL, text);
    (void)snprintf(text, sizeof text, "%s in %d of %d elements", later, rows * 45, rows * 45);
    check_fault("idle", op, NULL, NULL, text);
}

static void check_all_faults(void)
{
    static const int rows[OPERATORS] = {19, 38, 76, 38, 38};
    for (int i = 0; i < OPERATORS; i++)
        check_faults_of(operators[i], rows[i]);
    for (int i = 3; i < OPERATORS; i++)
        check_fault("shared", operators[i], "--shared", "5,6,7", "element (4,6) of mm_y is ");
    check_fault("wrong", "mm_all_reduce", "--quant", "a8w8-bf16", "element (37,44) of y is ");
    check_fault("bit", "mm_all_reduce", "--quant", "a8w8-bf16", "element (37,44) of y is ");
    check_fault("product", "all_gather_mm", NULL, NULL, "what the product alone leaves differs");
    check_fault("collective", "mm_all_reduce", NULL, NULL, "what the collective alone leaves differs");
}

TEST_SLOW(wrong_results_are_not_timed, 180)
{
    char folder[] = "/tmp/tilewire-test-XXXXXX", library[64];
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    SKIP("the sanitizer must be the first library");
#endif
    (void)tool_path();
    if (system("cc --version >/dev/null 2>&1") != 0)
        SKIP("there is no cc");
    CHECK(mkdtemp(folder) != NULL);
    const bool compiled = compile(folder);
    (void)snprintf(library, sizeof library, "%s/faulty.so", folder);
    (void)setenv("LD_PRELOAD", library, 1);
    if (compiled)
        check_all_faults();
    (void)unlink(library);
    (void)rmdir(folder);
    CHECK(compiled);
}

/* ---- Usage ------------------------------------------------------------------------------------- */

TEST(help_lists_the_options)
{
    static const char *const words[] = {"--shape", "--quant",   "--wire",   "--rounds",    "--explain",     "--shapes",
                                        "--peers", "--experts", "--hot",    "--shared",    "--ranks",       "--threads",
                                        "--isa",   "--iters",   "--warmup", "--transport", "a16w8-channel", "--json"};
    tool_t tool;
    CHECK_EQ(RUN(&tool, "bench", "all_gather_mm", "--help"), 0);
    CHECK_CONTAINS(out_of(&tool), "usage: tilewire bench all_gather_mm [options]");
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        CHECK_CONTAINS(out_of(&tool), words[i]);
    CHECK_EQ(RUN(&tool, "bench", "--help"), 0);
    CHECK_CONTAINS(out_of(&tool), "gmm_alltoallv");
}

/* Refused with status 2 and the sentence given, before anything is printed. */
static void check_refused(const char *op, const char *option, const char *value, const char *sentence)
{
    tool_t tool;
    CHECK_EQ(RUN(&tool, "bench", op, option, value), 2);
    CHECK_CONTAINS(err_of(&tool), sentence);
    CHECK_STR(out_of(&tool), "");
}

TEST(wrong_options_are_named)
{
    check_refused("mm_reduce_scatter", "--shape", "63,1,1", "m must be a multiple of the number of ranks");
    check_refused("mm_reduce_scatter", "--shape", "0,1,1", "--shape 0,1,1");
    check_refused("mm_reduce_scatter", "--quant", "a16w8-tensor", "mm_all_reduce has all");
    check_refused("mm_reduce_scatter", "--quant", "w4", "a16w8-tensor, a16w8-channel");
    check_refused("mm_reduce_scatter", "--wire", "int8", "--wire int8 needs mm_all_reduce");
    check_refused("mm_all_reduce", "--wire", "int8", "--quant a8w8-");
    check_refused("all_gather_mm", "--wire", "f32", "--wire out only");
    check_refused("gmm_alltoallv", "--quant", "a8w8-u64", "--quant none only");
    check_refused("mm_all_reduce", "--rounds", "0", "a number from 1 to 4096, or one of auto, none");
    check_refused("mm_all_reduce", "--rounds", "many", "auto, none");
    check_refused("mm_all_reduce", "--hot", "0.5", "mm_all_reduce has no experts");
    check_refused("mm_all_reduce", "--experts", "2", "mm_all_reduce has no experts");
    check_refused("gmm_alltoallv", "--hot", "1.5", "a number from 0 to 1");
    check_refused("gmm_alltoallv", "--experts", "0", "--experts 0");
    check_refused("gmm_alltoallv", "--shared", "1,2", "--shared 1,2");
    check_refused("gmm_alltoallv", "--dtype", "fp32", "bf16, fp16");
    check_refused("mm_all_reduce", "--ranks", "0", "--ranks 0");
    check_refused("mm_all_reduce", "--bytes", "8", "unknown option --bytes");
    check_refused("mm_all_reduce", "mm_all_reduce", "--json", "unexpected argument");
    check_refused("mm_all_redce", "--json", "--json", "did you mean 'mm_all_reduce'?");
}

TEST(options_that_do_not_go_together)
{
    tool_t tool;
    CHECK_EQ(RUN(&tool, "bench", "mm_all_reduce", "--quant", "a8w8-u64", "--dtype", "bf16"), 2);
    CHECK_CONTAINS(err_of(&tool), "this --quant gives fp16, not bf16");
    CHECK_EQ(RUN(&tool, "bench", "mm_all_reduce", "--quant", "a8w8-u64", "--shape", "1,131072,1"), 2);
    CHECK_CONTAINS(err_of(&tool), "k of int8 is at most 131071");
    CHECK_EQ(RUN(&tool, "bench", "mm_all_reduce", "--quant", "a16w8-group", "--shape", "1,32,1"), 2);
    CHECK_CONTAINS(err_of(&tool), "k of at least 33");
    CHECK_EQ(RUN(&tool, "bench", "mm_all_reduce", "--peers", "--transport", "threads"), 2);
    CHECK_CONTAINS(err_of(&tool), "--peers needs --transport shm");
}

/* ---- Peers ------------------------------------------------------------------------------------- */

/* A shell script instead of torch, and no MPI. */
static int run_peer(tool_t *tool, const char *version, const char *answer, const char *time)
{
    char path[] = "/tmp/tilewire-test-XXXXXX", text[256];
    const int fd = mkstemp(path);
    CHECK(fd >= 0 && close(fd) == 0);
    (void)snprintf(text, sizeof text,
                   "echo '%s'\nwhile read -r what rest; do\n"
                   "if [ \"$what\" = case ]; then echo '%s'; else echo '%s'; fi\ndone\n",
                   version, answer, time);
    write_file(path, text);
    (void)setenv("PEER_PYTHON", "/bin/sh", 1);
    (void)setenv("PEER_TORCH_DIST", path, 1);
    (void)setenv("PEER_MPI_LIB", "/nonexistent/library", 1);
    const int status = RUN(tool, "bench", "mm_all_reduce", "--json", "--peers", "--shape", "16,16,16", "--iters", "3",
                           "--warmup", "1");
    (void)unlink(path);
    return status;
}

TEST(peers_are_reported)
{
    tool_t tool;
    CHECK_EQ(run_peer(&tool, "torch 9.8.7", "ok", "16384"), 0);
    CHECK(number(out_of(&tool), "t_torch_gloo") == 1.6384e-5);
    CHECK(number(out_of(&tool), "torch_gloo_speedup") > 0 && number(out_of(&tool), "torch_gloo_speedup_iqr") >= 0);
    CHECK(is_null(out_of(&tool), "t_torch_mpi") && is_null(out_of(&tool), "torch_mpi_speedup"));
    CHECK_CONTAINS(err_of(&tool), "PEER_MPI_LIB is /nonexistent/library");
    CHECK_EQ(run_peer(&tool, "torch 9.8.7", "none of that type", "16384"), 0);
    CHECK(is_null(out_of(&tool), "t_torch_gloo"));
    CHECK_CONTAINS(err_of(&tool), "torch 9.8.7: none of that type");
}

TEST(answers_that_are_none_are_named)
{
    tool_t tool;
    CHECK_EQ(run_peer(&tool, "torch 9.8.7", "ok", "junk"), 1);
    CHECK_CONTAINS(err_of(&tool), "'junk' is no answer of torch to 'gloo'");
    CHECK_EQ(run_peer(&tool, "torch 9.8.7", "yes", "1"), 1);
    CHECK_CONTAINS(err_of(&tool), "'yes' is no answer of torch to 'case'");
}

/* The rest is measured all the same. */
TEST(without_torch_a_line_says_so)
{
    tool_t tool;
    (void)setenv("PEER_PYTHON", "/bin/false", 1);
    (void)setenv("PEER_TORCH_DIST", "/dev/null", 1);
    CHECK_EQ(RUN(&tool, "bench", "mm_all_reduce", "--json", "--peers", "--shape", "16,16,16", "--iters", "2"), 0);
    CHECK_CONTAINS(err_of(&tool), "scripts/peers.sh");
    CHECK_CONTAINS(err_of(&tool), "without torch torch_gloo and torch_mpi stay empty");
    CHECK(says(out_of(&tool), "verified", "true"));
    CHECK(is_null(out_of(&tool), "t_torch_gloo") && is_null(out_of(&tool), "t_torch_mpi"));
}
