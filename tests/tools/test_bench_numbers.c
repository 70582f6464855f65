/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of `tilewire bench OPERATOR` without running any: what is reported of known times, and what is asked of
 * operators. */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "harness/test.h"
#include "tests/tools/json_line.h"
#include "tools/bench_fused.h"
#include "tools/bench_gemm.h"
#include "tools/bench_stats.h"

/* ---- What is reported -------------------------------------------------------------------------- */

enum { RANKS = 3, ITERS = 5, ITERS_MOST = 201 };

/*
 * Seconds of the slowest rank: which one that is changes, the others take half and a quarter as long. Quotients come in
 * no order, and their median is not the quotient of the medians.
 */
static const double slowest[FUSED_VARIANTS][ITERS] = {
    [FUSED_T_GEMM] = {4, 2, 8, 4, 1},    [FUSED_T_COMM] = {1, 3, 2, 8, 5},     [FUSED_T_SEQ] = {5, 6, 10, 12, 6},
    [FUSED_T_FUSED] = {5, 5, 9, 9, 5.5}, [FUSED_T_GLOO] = {10, 20, 9, 27, 33}, [FUSED_T_MPI] = {5, 2.5, 18, 27, 22},
};

static fused_board_t *make_board(int op, int iters)
{
    const size_t bytes = sizeof(fused_board_t) + (size_t)FUSED_VARIANTS * RANKS * ITERS_MOST * sizeof(double);
    const size_t align = _Alignof(fused_board_t), whole = (bytes + align - 1) / align * align;
    fused_board_t *board = aligned_alloc(align, whole);
    CHECK(board != NULL);
    memset(board, 0, whole);
    fused_plan_init(&board->plan);
    board->plan.ranks = RANKS;
    board->plan.op = op;
    board->plan.peers = true;
    board->plan.n_cases = 1;
    board->plan.cases[0] = (fused_case_t){.op = op, .m = 6, .k = 7, .n = 8, .experts = 1};
    board->iters = iters;
    board->iters_max = ITERS_MOST;
    for (int rank = 0; rank < RANKS; rank++)
        board->checks[rank] = (fused_check_t){.verified = true, .max_err = rank == 1 ? 0.5 : 0.25};
    return board;
}

static void set_times(fused_board_t *board, const bool has[FUSED_VARIANTS])
{
    for (int v = 0; v < FUSED_VARIANTS; v++) {
        board->has[v] = has[v];
        for (int rank = 0; has[v] && rank < RANKS; rank++)
            for (int i = 0; i < ITERS; i++)
                fused_board_times(board, v, rank)[i] = slowest[v][i] / (1 << (rank + i + v) % RANKS);
    }
}

/* What rank 0 prints. The caller frees it. */
static char *report(fused_board_t *board, bool json)
{
    static char *text;
    static size_t bytes;
    FILE *before = stdout;
    board->plan.json = json;
    FILE *out = open_memstream(&text, &bytes);
    CHECK(out != NULL);
    stdout = out;
    fused_report_case(board, 0);
    stdout = before;
    CHECK_EQ(fclose(out), 0);
    return text;
}

static void check_number(const char *line, const char *name, double expected)
{
    const double found = number(line, name);
    if (!(fabs(found - expected) < 1e-6))
        printf("%s is %.9g, not %.9g\n", name, found, expected);
    CHECK(fabs(found - expected) < 1e-6);
}

static void check_spread(const char *line, const char *name, double median, double iqr)
{
    char text[64];
    (void)snprintf(text, sizeof text, "%s_iqr", name);
    check_number(line, name, median);
    check_number(line, text, iqr);
}

static const bool all[FUSED_VARIANTS] = {true, true, true, true, true, true};

TEST(times_are_medians_of_the_slowest_rank)
{
    fused_board_t *board = make_board(FUSED_MM_ALL_REDUCE, ITERS);
    set_times(board, all);
    char *line = report(board, true);
    check_number(line, "t_gemm", 4);
    check_number(line, "t_comm", 3);
    check_number(line, "t_seq", 6);
    check_number(line, "t_fused", 5.5);
    check_number(line, "t_torch_gloo", 20);
    check_number(line, "t_torch_mpi", 18);
    check_number(line, "max_err", 0.5);
    check_number(line, "iters", ITERS);
    free(line);
    free(board);
}

TEST(ratios_are_medians_of_ratios_by_iteration)
{
    fused_board_t *board = make_board(FUSED_MM_REDUCE_SCATTER, ITERS);
    set_times(board, all);
    char *line = report(board, true);
    check_spread(line, "fused_over_gemm", 2.25, 2.5 - 1.25);      /* 1.25 2.5 1.125 2.25 5.5 */
    check_spread(line, "fused_over_seq", 0.9, 5.5 / 6 - 5.0 / 6); /* 1 5/6 0.9 0.75 5.5/6 */
    check_spread(line, "fused_over_max", 1.125, 1.25 - 1.125);    /* 1.25 5/3 1.125 1.125 1.1 */
    check_spread(line, "overlap_eff", 0.1, 0.375 - 0);            /* 0 0 0.5 0.375 0.1 */
    check_spread(line, "torch_gloo_speedup", 3, 4 - 2);           /* 2 4 1 3 6 */
    check_spread(line, "torch_mpi_speedup", 2, 3 - 1);            /* 1 0.5 2 3 4 */
    free(line);
    free(board);
}

TEST(peers_without_times_and_wrong_results_have_no_numbers)
{
    static const bool ours[FUSED_VARIANTS] = {true, true, true, true};
    fused_board_t *board = make_board(FUSED_ALL_GATHER_MM, ITERS);
    set_times(board, ours);
    char *line = report(board, true);
    check_number(line, "t_fused", 5.5);
    CHECK(is_null(line, "t_torch_gloo") && is_null(line, "torch_gloo_speedup") && is_null(line, "t_torch_mpi"));
    free(line);
    board->iters = 0;
    board->checks[2].verified = false;
    line = report(board, true);
    CHECK(says(line, "verified", "false") && is_null(line, "t_gemm") && is_null(line, "overlap_eff_iqr"));
    free(line);
    free(board);
}

TEST(a_loss_is_marked)
{
    static double sequence[ITERS] = {4, 4, 4, 4, 4};
    fused_board_t *board = make_board(FUSED_MM_ALL_REDUCE, ITERS);
    set_times(board, all);
    char *row = report(board, false);
    CHECK(strstr(row, "LOSS") == NULL);
    free(row);
    for (int rank = 0; rank < RANKS; rank++)
        memcpy(fused_board_times(board, FUSED_T_SEQ, rank), sequence, sizeof sequence);
    row = report(board, false);
    CHECK_CONTAINS(row, "LOSS");
    free(row);
    free(board);
}

TEST(medians_of_few_ratios_are_marked)
{
    static const int few[] = {1, FUSED_RATIOS - 1}, enough[] = {FUSED_RATIOS, ITERS_MOST};
    for (int i = 0; i < 2; i++) {
        fused_board_t *board = make_board(FUSED_MM_ALL_REDUCE, few[i]);
        char *row = report(board, false);
        CHECK_CONTAINS(row, "  FEW\n");
        free(row);
        board->iters = enough[i];
        row = report(board, false);
        CHECK(strstr(row, "FEW") == NULL);
        free(row);
        free(board);
    }
}

/* As often at the first place, and after each other, as all others that are there; warm-up goes on into what counts. */
TEST(variants_take_turns)
{
    enum { N = 6, ROUNDS = 4 };
    static const bool has[N] = {true, false, true, true, false, true};
    static const int there[] = {0, 2, 3, 5};
    int order[N];
    for (int iteration = -3 * ROUNDS; iteration < 3 * ROUNDS; iteration++) {
        CHECK_EQ(bench_turn(has, N, iteration, order), ROUNDS);
        for (int i = 0; i < ROUNDS; i++)
            CHECK_EQ(order[i], there[(iteration + 3 * ROUNDS + i) % ROUNDS]);
    }
    static const bool none[N] = {false};
    CHECK_EQ(bench_turn(none, N, 1, order), 0);
}

TEST(quantiles_lie_between_values)
{
    const double a[] = {8, 2, 6, 4}, ones[] = {1, 1, 1, 1};
    double work[4];
    const bench_spread_t spread = bench_spread(a, ones, 4, work);
    CHECK(spread.median == 5 && spread.iqr == 3);
    CHECK(bench_percentile(work, 4, 0.99) == 8 && bench_percentile(work, 4, 0.25) == 2);
    CHECK(bench_quantile(work, 1, 0.75) == 2);
}

/* ---- Rows of experts --------------------------------------------------------------------------- */

/* Rows of the way out from a rank to an expert: the way back is the same, seen from the other side. */
static size_t rows_of(const fused_plan_t *plan, const fused_case_t *c, int source, int owner, int expert)
{
    return c->op == FUSED_ALLTOALLV_GMM ? fused_count(plan, c, source, owner, expert)
                                        : fused_count(plan, c, owner, source, expert);
}

/* Of each source m rows: `hot` for the first expert, unless negative, and the others have the same but for one. */
static void check_rows(const fused_plan_t *plan, const fused_case_t *c, long hot)
{
    for (int source = 0; source < plan->ranks; source++) {
        size_t sum = 0, least = SIZE_MAX, most = 0;
        for (int owner = 0; owner < plan->ranks; owner++) {
            for (int j = 0; j < c->experts; j++) {
                const size_t rows = rows_of(plan, c, source, owner, j);
                sum += rows;
                if (owner == 0 && j == 0 && hot >= 0) {
                    CHECK_EQ(rows, hot);
                    continue;
                }
                least = rows < least ? rows : least;
                most = rows > most ? rows : most;
            }
        }
        CHECK_EQ(sum, c->m);
        CHECK(least == SIZE_MAX || most - least <= 1);
    }
}

/* Of operators that go both ways. */
static void check_experts(int ranks, int experts, size_t m, double share, long hot)
{
    fused_plan_t *plan = calloc(1, sizeof *plan);
    CHECK(plan != NULL);
    fused_plan_init(plan);
    plan->ranks = ranks;
    plan->hot = share;
    for (int op = FUSED_GMM_ALLTOALLV; op <= FUSED_ALLTOALLV_GMM; op++) {
        const fused_case_t c = {.op = op, .m = m, .k = 1, .n = 1, .experts = experts};
        size_t rows = 0;
        check_rows(plan, &c, hot);
        for (int rank = 0; rank < ranks; rank++) {
            rows += fused_rows_x(plan, &c, rank);
            CHECK_EQ(op == FUSED_ALLTOALLV_GMM ? fused_rows_x(plan, &c, rank) : fused_rows_y(plan, &c, rank), m);
        }
        CHECK_EQ(rows, m * (size_t)ranks);
    }
    free(plan);
}

TEST(rows_are_spread_over_all_experts_alike)
{
    check_experts(2, 2, 64, -1, -1);
    check_experts(3, 2, 64, -1, -1);
    check_experts(4, 3, 5, -1, -1);
    check_experts(1, 1, 7, -1, -1);
}

TEST(a_hot_expert_has_its_share)
{
    check_experts(2, 2, 64, 0.5, 32);
    check_experts(3, 2, 37, 0.3, 11);
    check_experts(3, 3, 37, 0.1, 4);
    check_experts(2, 2, 10, 0, 0);
    check_experts(2, 2, 10, 1, 10);
    check_experts(1, 1, 10, 0.5, 10);
}

/* ---- Scales of weights ------------------------------------------------------------------------- */

TEST(weights_have_as_many_scales_as_the_kind_of_quantisation_says)
{
    static const struct {
        int quant;
        size_t k, rows, cols;
        int64_t group;
    } kinds[] = {
        {FUSED_A16W8_TENSOR, 300, 1, 1, 0},  {FUSED_A16W8_CHANNEL, 300, 1, 45, 0}, {FUSED_A16W8_GROUP, 300, 3, 45, 128},
        {FUSED_A16W8_GROUP, 100, 4, 45, 32}, {FUSED_A8W8_F32PT, 300, 1, 45, 0},
    };
    fused_plan_t *plan = calloc(1, sizeof *plan);
    CHECK(plan != NULL);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        plan->quant = kinds[i].quant;
        CHECK_EQ(fused_scale_rows(plan, kinds[i].k), kinds[i].rows);
        CHECK_EQ(fused_scale_cols(plan, 45), kinds[i].cols);
        CHECK_EQ(fused_group_size(plan, kinds[i].k), kinds[i].group);
    }
    free(plan);
}

/* ---- Copies of weights ------------------------------------------------------------------------- */

/* Bytes of all copies for a product with m rows. */
static size_t copied_bytes(size_t m, bool plain)
{
    gemm_operands_t operands;
    gemm_weights_t weights;
    CHECK(gemm_operands_make(&gemm_dtypes[0], &(cli_shape_t){m, 512, 1024}, &operands));
    CHECK(gemm_weights_make(&operands, plain, &weights));
    CHECK(weights.bytes >= (size_t)512 * 1024 * 2 && weights.stride >= weights.bytes);
    for (size_t i = 0; plain && i < weights.n; i++)
        CHECK(weights.views[i].data == weights.arena + i * weights.stride);
    const size_t bytes = weights.n * weights.bytes;
    CHECK(m <= GEMM_SMALL_M || weights.n == 1);
    gemm_weights_free(&weights);
    gemm_operands_free(&operands);
    return bytes;
}

TEST(weights_of_small_products_exceed_the_caches_twice)
{
    const size_t kib = (size_t)strtoull(bench_info("topology", "l3"), NULL, 10);
    const size_t cache = kib > 0 ? kib << 10 : (size_t)64 << 20;
    const size_t unused = (size_t)sysconf(_SC_AVPHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    if (unused / 4 < 3 * cache)
        SKIP("the machine has little memory");
    CHECK(copied_bytes(1, false) >= 2 * cache);
    CHECK(copied_bytes(GEMM_SMALL_M, true) >= 2 * cache);
    CHECK(copied_bytes(GEMM_SMALL_M + 1, false) < (size_t)4 << 20);
}
