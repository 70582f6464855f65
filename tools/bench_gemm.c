/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tilewire bench gemm`: verifies a matrix product, then times it. Every iteration runs, next to each
 * other and in an order that rotates, our product, the loop without memory, for small m the reading of
 * the weight, and torch.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench_gemm.h"
#include "bench_stats.h"

static const cli_option_t options[] = {
    {.name = "shape",
     .type = CLI_SHAPES,
     .offset = offsetof(gemm_plan_t, shapes),
     .argument = "M,K,N[;...]",
     .help = "(m,k) times (k,n), may be repeated (three large ones, and m = 1, 4, 16 with k = n = 4096)",
     .max = GEMM_SIZE_MAX},
    BENCH_OPTION_WORD(gemm_plan_t, dtype, "D", gemm_dtype_names, "element type, w8: with int8 weights (bf16)"),
    BENCH_OPTION_THREADS(gemm_plan_t, "threads (1)"),
    BENCH_OPTION_ISA(gemm_plan_t),
    BENCH_OPTION_ITERS(gemm_plan_t, "timed iterations (201, from 2^28 products on 51)"),
    BENCH_OPTION_WARMUP(gemm_plan_t, "iterations before them (20, 3)"),
    BENCH_OPTION_FLAG(gemm_plan_t, plain, "pass the weight as it is instead of packed"),
    BENCH_OPTION_FLAG(gemm_plan_t, peers, "time torch in the same iterations"),
    BENCH_OPTION_HOLD(gemm_plan_t),
    BENCH_OPTION_JSON(gemm_plan_t),
    {.name = NULL},
};

static const cli_command_t command = {
    .name = "tilewire bench gemm",
    .usage = "[options]",
    .about = "Verifies a matrix product against fp64, then times it next to a loop of its instruction that\n"
             "touches no memory. With m up to 16 it is also compared with reading the weight once, with\n"
             "weights from memory and from cache.",
    .options = options,
};

/* ---- Plan -------------------------------------------------------------------------------------- */

static const cli_shape_t default_shapes[] = {
    {1024, 2048, 4096}, {4096, 1024, 4096}, {1280, 2560, 640}, {1, 4096, 4096}, {4, 4096, 4096}, {16, 4096, 4096},
};

static bool is_large(const cli_shape_t *shape)
{
    return shape->m * shape->k * shape->n >= (size_t)1 << 28;
}

static int iters_of(const gemm_plan_t *plan, const cli_shape_t *shape)
{
    return plan->iters >= 0 ? plan->iters : is_large(shape) ? 51 : 201;
}

static int warmup_of(const gemm_plan_t *plan, const cli_shape_t *shape)
{
    return plan->warmup >= 0 ? plan->warmup : is_large(shape) ? 3 : 20;
}

/* -1 if all is well, otherwise an exit status. */
static int check_plan(gemm_plan_t *plan)
{
    static const size_t most_elements = (size_t)1 << 40, int8_most_k = 131071;
    for (size_t i = 0; plan->shapes.n == 0 && i < sizeof default_shapes / sizeof default_shapes[0]; i++)
        plan->shapes.value[i] = default_shapes[i];
    if (plan->shapes.n == 0)
        plan->shapes.n = sizeof default_shapes / sizeof default_shapes[0];
    for (int i = 0; i < plan->shapes.n; i++) {
        const cli_shape_t *shape = &plan->shapes.value[i];
        if (gemm_dtypes[plan->dtype].x1.code == TW_CODE_INT && shape->k > int8_most_k)
            return cli_usage_error(&command, "--shape %zu,%zu,%zu: k of int8 is at most %zu", shape->m, shape->k,
                                   shape->n, int8_most_k);
        if (shape->m * shape->k > most_elements || shape->k * shape->n > most_elements ||
            shape->m * shape->n > most_elements)
            return cli_usage_error(&command, "--shape %zu,%zu,%zu: a matrix has more than 2^40 elements", shape->m,
                                   shape->k, shape->n);
    }
    return -1;
}

/* -1 if all is well, otherwise an exit status. */
static int parse_plan(int argc, char **argv, gemm_plan_t *plan)
{
    int n_operands = 0;
    const cli_result_t result = cli_parse(&command, argc, argv, plan, &n_operands);
    if (result != CLI_OK)
        return cli_exit_status(result);
    for (int i = 0; i < n_operands; i++) {
        if (i > 0 || strcmp(argv[i], "gemm") != 0)
            return cli_usage_error(&command, "unexpected argument '%s'", argv[i]);
    }
    return check_plan(plan);
}

/* ---- The timed calls --------------------------------------------------------------------------- */

typedef struct state {
    const gemm_plan_t *plan;
    tw_comm_t *comm;
    bench_torch_t torch;
    bench_peak_t peak;
    uint64_t peak_turns;
    gemm_operands_t operands;
    gemm_weights_t weights;
    size_t turn;      /* copy that is used next */
    size_t used;      /* copies that were used in this line */
    bool from_memory; /* each use takes another copy */
} state_t;

static bool give_up(const char *what)
{
    (void)fprintf(stderr, "tilewire bench: gemm: %s\n", what);
    return false;
}

static bool call_ours(const state_t *state, size_t copy)
{
    const gemm_operands_t *operands = &state->operands;
    tw_matmul_args_t args = TW_MATMUL_ARGS_INIT;
    args.x1 = &operands->x1.tensor;
    args.y = &operands->y.tensor;
    if (state->plan->plain) {
        args.x2 = &state->weights.views[copy].tensor;
        args.antiquant_scale = operands->dtype->antiquant ? &operands->scale.tensor : NULL;
    } else {
        args.weight = state->weights.packed[copy];
    }
    return tw_matmul(state->comm, &args) == TW_OK || give_up(tw_last_error());
}

static const unsigned char *copy_at(const state_t *state, size_t copy)
{
    return state->weights.arena + copy * state->weights.stride;
}

static size_t next_copy(state_t *state)
{
    const size_t copy = state->turn;
    state->used = copy >= state->used ? copy + 1 : state->used;
    state->turn = state->from_memory ? (copy + 1) % state->weights.n : 0;
    return copy;
}

/* Seconds, negative on failure. */
static double time_ours(state_t *state)
{
    if (state->plan->threads > 1 && !call_ours(state, next_copy(state))) /* its workers are awake again */
        return -1;
    const size_t copy = next_copy(state);
    const int64_t start = bench_now_ns();
    const bool ok = call_ours(state, copy);
    return ok ? (double)(bench_now_ns() - start) * 1e-9 : -1;
}

static double time_variant(state_t *state, gemm_variant_t variant)
{
    const bool small = state->operands.shape.m <= GEMM_SMALL_M;
    if (small && !state->from_memory && (variant == GEMM_OURS || variant == GEMM_STREAM))
        (void)gemm_stream(copy_at(state, 0), state->weights.bytes); /* what is in cache depends on nobody else */
    switch (variant) {
    case GEMM_OURS:
        return time_ours(state);
    case GEMM_PEAK:
        return gemm_peak_rate(state->peak, state->peak_turns);
    case GEMM_STREAM:
        return gemm_stream(copy_at(state, next_copy(state)), state->weights.bytes);
    default:
        return bench_torch_time(&state->torch, "run");
    }
}

/* Every variant once, beginning with another one each time. Negative iterations are warm-up. */
static bool iterate(state_t *state, gemm_case_t *result, int iteration)
{
    int variants[GEMM_VARIANTS];
    const int n = bench_turn(result->has, GEMM_VARIANTS, iteration, variants);
    for (int i = 0; i < n; i++) {
        const gemm_variant_t variant = (gemm_variant_t)variants[i];
        const double value = time_variant(state, variant);
        if (value < 0)
            return false;
        if (iteration >= 0)
            result->values[variant][iteration] = value;
    }
    return true;
}

/* ---- Cases ------------------------------------------------------------------------------------- */

static bool prepare_torch(state_t *state, gemm_case_t *result, char *layout, size_t layout_bytes)
{
    if (!state->plan->peers)
        return true;
    const size_t copies = state->from_memory ? state->weights.n : 1;
    if (!gemm_torch_case(&state->torch, state->plan, &state->operands.shape, copies, layout, layout_bytes))
        return false;
    result->has[GEMM_TORCH] = layout[0] != '\0';
    result->peer = state->torch.version;
    result->peer_layout = result->has[GEMM_TORCH] ? layout : NULL;
    return true;
}

/* What the timed products left must be right, and another one must make the same of nothing. */
static bool check_again(state_t *state, gemm_case_t *result)
{
    bool same = gemm_operands_same(&state->operands);
    if (same) {
        gemm_operands_poison(&state->operands);
        if (!call_ours(state, next_copy(state)))
            return false;
        same = gemm_operands_same(&state->operands);
    }
    if (!same) {
        result->check.verified = false;
        result->iters = 0;
    }
    return true;
}

static bool time_case(state_t *state, gemm_case_t *result)
{
    char layout[32] = "";
    const cli_shape_t *shape = &state->operands.shape;
    const int iters = iters_of(state->plan, shape);
    double *values = calloc((size_t)iters * GEMM_VARIANTS, sizeof *values);
    if (values == NULL)
        return give_up("out of memory");
    bool ok = prepare_torch(state, result, layout, sizeof layout);
    for (int i = 0; i < GEMM_VARIANTS; i++)
        result->values[i] = values + (size_t)iters * (size_t)i;
    result->iters = iters;
    for (int i = -warmup_of(state->plan, shape); ok && i < iters; i++)
        ok = iterate(state, result, i);
    ok = ok && check_again(state, result);
    result->copies = state->used;
    if (ok)
        gemm_report_case(result);
    free(values);
    return ok;
}

static void show_progress(const state_t *state, bool on)
{
    const cli_shape_t *shape = &state->operands.shape;
    if (!isatty(STDERR_FILENO))
        return;
    if (on)
        (void)fprintf(stderr, "gemm %zu,%zu,%zu ...\r", shape->m, shape->k, shape->n);
    else
        (void)fprintf(stderr, "\033[K");
}

/* One line of the report. */
static bool run_case(state_t *state, gemm_check_t *check, bool from_memory)
{
    gemm_case_t result = {
        .plan = state->plan,
        .operands = &state->operands,
        .check = *check,
        .weights = from_memory ? "memory" : "cache",
        .has = {[GEMM_OURS] = true, [GEMM_PEAK] = true, [GEMM_STREAM] = state->operands.shape.m <= GEMM_SMALL_M},
    };
    state->from_memory = from_memory;
    state->turn = state->used = 0;
    if (!check->verified) {
        gemm_report_case(&result);
        return true;
    }
    show_progress(state, true);
    const bool ok = time_case(state, &result);
    check->verified = result.check.verified;
    return ok;
}

/* All lines of a shape. False on failure; a wrong result goes to *wrong. */
static bool run_shape(state_t *state, const cli_shape_t *shape, bool *wrong)
{
    const gemm_dtype_t *dtype = &gemm_dtypes[state->plan->dtype];
    bool ok = gemm_operands_make(dtype, shape, &state->operands) || give_up("out of memory");
    show_progress(state, true);
    ok = ok && gemm_weights_make(&state->operands, state->plan->plain, &state->weights) && call_ours(state, 0);
    if (ok) {
        gemm_crew_settle();
        gemm_check_t check = gemm_operands_verify(&state->operands);
        ok = shape->m > GEMM_SMALL_M || run_case(state, &check, true);
        ok = ok && run_case(state, &check, false);
        *wrong = *wrong || !check.verified;
    }
    gemm_weights_free(&state->weights);
    gemm_operands_free(&state->operands);
    return ok;
}

/* ---- Set-up ------------------------------------------------------------------------------------ */

static int gather_alone(void *user, const void *in, void *out, size_t bytes)
{
    (void)user;
    memcpy(out, in, bytes);
    return 0;
}

static bool make_comm(state_t *state)
{
    tw_comm_args_t args = TW_COMM_ARGS_INIT;
    args.size = 1;
    args.name = "bench";
    args.allgather = gather_alone;
    args.transport = TW_TRANSPORT_THREADS;
    return tw_comm_create(&args, &state->comm) == TW_OK || give_up(tw_last_error());
}

static bool run_plan(const gemm_plan_t *plan, bool *wrong)
{
    state_t state = {.plan = plan};
    const int n_cpus = bench_allowed();
    gemm_crew_init(plan->threads);
    bool ok = (!plan->peers || gemm_torch_start(plan, &state.torch)) && make_comm(&state);
    if (ok) {
        state.peak = gemm_peak_choose(&gemm_dtypes[plan->dtype]);
        state.peak_turns = gemm_peak_turns(state.peak);
        gemm_report_header(plan, state.peak, n_cpus, &state.torch);
    }
    for (int i = 0; ok && i < plan->shapes.n; i++)
        ok = run_shape(&state, &plan->shapes.value[i], wrong);
    tw_comm_destroy(state.comm);
    bench_torch_stop(&state.torch);
    return ok;
}

int bench_gemm(int argc, char **argv)
{
    gemm_plan_t plan = {.threads = 1, .isa = -1, .iters = -1, .warmup = -1};
    bool wrong = false;
    const int refused = parse_plan(argc, argv, &plan);
    if (refused >= 0)
        return refused;
    const int held = bench_hold_begin(plan.hold, plan.threads);
    const bool ok = bench_init(plan.threads, plan.isa) && run_plan(&plan, &wrong) && !wrong;
    bench_hold_end(held);
    return ok ? 0 : 1;
}
