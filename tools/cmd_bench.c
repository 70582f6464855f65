/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tilewire bench`: the grammar of the collectives' benches, and how their ranks are started: as
 * threads, as processes of our own, or by mpirun when MPI is timed beside us. bench_gemm.c has that of
 * matrix products.
 */
#define _GNU_SOURCE
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "bench.h"
#include "commands.h"
#include "spawn.h"

const char *const bench_transports[] = {"shm", "threads", NULL};
const char *const bench_memories[] = {"symmetric", "plain", NULL};
const char *const bench_isas[] = {"portable", "avx2", "avx512", "avx512bf16", "amx", NULL};

static const cli_option_t options[] = {
    {.name = "ranks",
     .letter = 'n',
     .type = CLI_INT,
     .offset = offsetof(bench_plan_t, ranks),
     .argument = "N",
     .help = "number of ranks (2)",
     .min = 1,
     .max = BENCH_RANKS_MAX},
    BENCH_OPTION_THREADS(bench_plan_t, "threads of a rank (1)"),
    BENCH_OPTION_WORD(bench_plan_t, dtype, "D", bench_dtype_names, "element type (fp32)"),
    BENCH_OPTION_WORD(bench_plan_t, transport, "X", bench_transports, "how ranks reach each other (shm)"),
    BENCH_OPTION_ISA(bench_plan_t),
    BENCH_OPTION_ITERS(bench_plan_t, "timed iterations (2000, from 64K on 200, from 8M on 51)"),
    BENCH_OPTION_WARMUP(bench_plan_t, "iterations before them (100, 20, 5)"),
    {.name = "bytes",
     .type = CLI_SIZES,
     .offset = offsetof(bench_plan_t, bytes),
     .argument = "B[,B...]",
     .help = "sizes, rounded down to whole elements per rank (8,64,512,4K,64K,1M,8M,64M)"},
    BENCH_OPTION_WORD(bench_plan_t, memory, "M", bench_memories, "kind of buffers (symmetric)"),
    BENCH_OPTION_FLAG(bench_plan_t, peers, "time Open MPI in the same iterations"),
    BENCH_OPTION_JSON(bench_plan_t),
    {.name = NULL},
};

static const cli_command_t command = {
    .name = "tilewire bench",
    .usage = "COLLECTIVE [options]\n       tilewire bench gemm [options]",
    .about = "Verifies a collective, then times it: all_reduce, all_gather, reduce_scatter, alltoall or\n"
             "alltoallv. Bandwidths are those of nccl-tests. Every iteration also times one copy of the\n"
             "send buffer by every rank, for comparison.\n"
             "gemm times matrix products; 'tilewire bench gemm --help' has its options.",
    .options = options,
};

/* ---- Plan -------------------------------------------------------------------------------------- */

enum { SMALL_BYTES = 64 << 10, LARGE_BYTES = 8 << 20 };

int bench_iters(const bench_plan_t *plan, size_t bytes)
{
    if (plan->iters >= 0)
        return plan->iters;
    return bytes < SMALL_BYTES ? 2000 : bytes < LARGE_BYTES ? 200 : 51;
}

int bench_warmup(const bench_plan_t *plan, size_t bytes)
{
    if (plan->warmup >= 0)
        return plan->warmup;
    return bytes < SMALL_BYTES ? 100 : bytes < LARGE_BYTES ? 20 : 5;
}

bool bench_init(const bench_plan_t *plan)
{
    char threads[32], isa[32];
    (void)snprintf(threads, sizeof threads, "THREADS=%d", plan->threads);
    (void)snprintf(isa, sizeof isa, "ISA=%s", plan->isa >= 0 ? bench_isas[plan->isa] : "");
    const char *const settings[] = {threads, plan->isa >= 0 ? isa : NULL, NULL};
    tw_init_args_t args = TW_INIT_ARGS_INIT;
    args.settings = settings;
    if (tw_init(&args) == TW_OK)
        return true;
    (void)fprintf(stderr, "tilewire bench: %s\n", tw_last_error());
    return false;
}

/* The default sizes that are large enough for so many ranks. */
static void default_sizes(bench_plan_t *plan, bench_shape_t *shape)
{
    static const size_t sizes[] = {8, 64, 512, 4 << 10, 64 << 10, 1 << 20, 8 << 20, 64 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (bench_shape_make(plan, 0, sizes[i], shape))
            plan->bytes.value[plan->bytes.n++] = sizes[i];
    }
}

/* -1 if the plan is complete and consistent, otherwise an exit status. */
static int check_plan(bench_plan_t *plan)
{
    static bench_shape_t shape;
    if (plan->peers && plan->transport == BENCH_THREADS)
        return cli_usage_error(&command, "--peers needs --transport shm: ranks of MPI are processes");
    if (plan->bytes.n == 0)
        default_sizes(plan, &shape);
    for (int i = 0; i < plan->bytes.n; i++) {
        if (!bench_shape_make(plan, 0, plan->bytes.value[i], &shape))
            return cli_usage_error(&command, "--bytes %zu is less than one %s element for each of %d ranks",
                                   plan->bytes.value[i], bench_dtypes[plan->dtype].name, plan->ranks);
    }
    return -1;
}

static int unknown_operation(const char *name)
{
    static const char *const gemm[] = {"gemm", NULL};
    const char *closest = cli_closest(name, bench_op_names);
    if (closest == NULL)
        closest = cli_closest(name, gemm);
    return closest != NULL ? cli_usage_error(&command, "unknown operation '%s', did you mean '%s'?", name, closest)
                           : cli_usage_error(&command, "unknown operation '%s'", name);
}

/* -1 if all is well, otherwise an exit status. */
static int parse_plan(int argc, char **argv, bench_plan_t *plan)
{
    int n_operands = 0;
    const cli_result_t result = cli_parse(&command, argc, argv, plan, &n_operands);
    if (result != CLI_OK)
        return cli_exit_status(result);
    if (n_operands == 0)
        return cli_usage_error(&command, "the operation is missing, e.g. %s", bench_op_names[0]);
    if (n_operands > 1)
        return cli_usage_error(&command, "unexpected argument '%s'", argv[1]);
    plan->op = cli_find(argv[0], bench_op_names);
    if (plan->op < 0)
        return unknown_operation(argv[0]);
    return check_plan(plan);
}

/* ---- Ranks as threads -------------------------------------------------------------------------- */

enum { GATHER_BYTES = 65536 }; /* the most that a rank contributes while a communicator is made */

typedef struct thread_rank {
    bench_board_t *board;
    unsigned char *gather; /* GATHER_BYTES a rank, shared */
    int rank;
    bool ok;
    pthread_t thread;
} thread_rank_t;

static int gather_between_threads(void *user, const void *in, void *out, size_t bytes)
{
    thread_rank_t *self = user;
    if (bytes > GATHER_BYTES)
        return -1;
    memcpy(self->gather + (size_t)self->rank * GATHER_BYTES, in, bytes);
    if (!bench_barrier(self->board))
        return -1;
    for (int q = 0; q < self->board->plan.ranks; q++)
        memcpy((unsigned char *)out + (size_t)q * bytes, self->gather + (size_t)q * GATHER_BYTES, bytes);
    return bench_barrier(self->board) ? 0 : -1;
}

static void *thread_main(void *argument)
{
    thread_rank_t *self = argument;
    self->ok = bench_run_rank(self->board, self->rank, NULL, gather_between_threads, self);
    return NULL;
}

static int run_threads(bench_board_t *board)
{
    const int n = board->plan.ranks;
    thread_rank_t *ranks = calloc((size_t)n, sizeof *ranks);
    unsigned char *gather = calloc((size_t)n, GATHER_BYTES);
    int started = 0;
    bool ok = ranks != NULL && gather != NULL && bench_init(&board->plan);
    for (; ok && started < n; started++) {
        ranks[started] = (thread_rank_t){.board = board, .gather = gather, .rank = started};
        if (pthread_create(&ranks[started].thread, NULL, thread_main, &ranks[started]) != 0)
            break;
    }
    if (ok && started < n) {
        (void)fprintf(stderr, "tilewire bench: cannot start a thread for rank %d\n", started);
        atomic_store(&board->failed, 1);
        ok = false;
    }
    for (int i = 0; i < started; i++) {
        (void)pthread_join(ranks[i].thread, NULL);
        ok = ok && ranks[i].ok;
    }
    free(ranks);
    free(gather);
    return ok ? 0 : 1;
}

/* ---- Ranks as processes ------------------------------------------------------------------------ */

static int run_processes(bench_board_t *board, char *program, char *board_path)
{
    char word[] = "bench-rank";
    char *argv[] = {program, word, board_path, NULL};
    const spawn_args_t args = {.who = command.name, .n = board->plan.ranks, .argv = argv, .environment = true};
    return spawn_ranks(&args);
}

static int run_mpirun(bench_board_t *board, char *program, char *board_path)
{
    char number[16], peer_path[PATH_MAX];
    if (!bench_peer_find(peer_path, sizeof peer_path))
        return 1;
    (void)snprintf(number, sizeof number, "%d", board->plan.ranks);
    const char *words[16] = {"mpirun", "-n", number, "--bind-to", "none"};
    int n = 5;
    if (geteuid() == 0)
        words[n++] = "--allow-run-as-root";
    if (board->plan.ranks > board->n_cpus)
        words[n++] = "--oversubscribe";
    words[n++] = program;
    words[n++] = "bench-rank";
    words[n++] = board_path;
    char *argv[16];
    memcpy(argv, words, sizeof argv); /* exec does not write to them */
    const spawn_args_t args = {.who = command.name, .n = 1, .argv = argv};
    const int status = spawn_ranks(&args);
    if (status == 127)
        (void)fprintf(stderr, "tilewire bench: --peers needs mpirun of Open MPI (openmpi-bin)\n");
    return status;
}

/* Matrix products have options of their own. */
static bool is_gemm(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "gemm") == 0)
            return true;
    }
    return false;
}

int cmd_bench(int argc, char **argv)
{
    if (is_gemm(argc, argv))
        return bench_gemm(argc, argv);
    bench_plan_t plan = {.ranks = 2, .threads = 1, .isa = -1, .iters = -1, .warmup = -1};
    const int refused = parse_plan(argc, argv, &plan);
    if (refused >= 0)
        return refused;
    char board_path[64], program[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    bench_board_t *board = bench_board_create(&plan, board_path, sizeof board_path);
    if (board == NULL || length <= 0) {
        (void)fprintf(stderr, "tilewire bench: cannot set up shared memory: %m\n");
        return 1;
    }
    program[length] = '\0';
    int status;
    if (plan.transport == BENCH_THREADS)
        status = run_threads(board);
    else
        status = plan.peers ? run_mpirun(board, program, board_path) : run_processes(board, program, board_path);
    if (status == 0 && board->any_wrong != 0)
        status = 1;
    bench_board_close(board);
    return status;
}

/* ---- A rank ------------------------------------------------------------------------------------ */

static int gather_by_peer(void *user, const void *in, void *out, size_t bytes)
{
    const bench_peer_t *peer = user;
    return peer->allgather(in, out, bytes);
}

static bool run_beside_peer(bench_board_t *board)
{
    const bench_peer_t *peer = bench_peer_load();
    int rank = 0, size = 0;
    if (peer == NULL || peer->init(&rank, &size) != 0)
        return false;
    if (size != board->plan.ranks) {
        (void)fprintf(stderr, "tilewire bench: mpirun started %d ranks instead of %d\n", size, board->plan.ranks);
        return false;
    }
    bench_peer_t copy = *peer;
    const bool ok = bench_run_rank(board, rank, peer, gather_by_peer, &copy);
    if (ok)
        peer->finalize();
    return ok;
}

int cmd_bench_rank(int argc, char **argv)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    const char *rank = getenv("RANK");
    bench_board_t *board = argc == 2 ? bench_board_open(argv[1]) : NULL;
    if (board == NULL) {
        (void)fprintf(stderr, "tilewire bench-rank: started by 'tilewire bench' only\n");
        return EXIT_USAGE;
    }
    bool ok = bench_init(&board->plan);
    if (ok && board->plan.peers)
        ok = run_beside_peer(board);
    else
        ok = ok && rank != NULL && bench_run_rank(board, atoi(rank), NULL, NULL, NULL);
    bench_board_close(board);
    return ok ? 0 : 1;
}
