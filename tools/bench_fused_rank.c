/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of a bench of a fused operator. Every case is verified, then every iteration runs the product,
 * the collective, the two in sequence, the operator and the peers, next to each other and in an order
 * that rotates. Ranks meet before each, untimed. The task interface and the operators exclude each
 * other on a communicator, so its sessions are opened and closed in between, untimed as well.
 */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench_fused.h"
#include "bench_stats.h"

#define ARENA_MOST ((size_t)512 << 20) /* beyond it what is sent lies in plain memory */

enum { WARMUP = 3, SESSION_TASKS = 60 };

typedef struct state {
    fused_board_t *board;
    const fused_plan_t *plan;
    int rank;
    tw_comm_t *comm;
    tw_hccl_context_t *context;
    tw_hccl_t *hccl; /* NULL: no session */
    int n_tasks;     /* of the session */
    void *arena;
    size_t arena_bytes;
    fused_operands_t operands;
    tw_op_t *op;
    fused_peers_t *peers;
    bool has[FUSED_VARIANTS];
} state_t;

/* Tells the user and the other ranks; always false. */
static bool give_up(state_t *state, const char *what, const char *why)
{
    (void)fprintf(stderr, "tilewire bench: rank %d: %s: %s\n", state->rank, what, why);
    atomic_store(&state->board->meeting.failed, 1);
    return false;
}

static bool meet(state_t *state)
{
    return bench_barrier(&state->board->meeting);
}

/* ---- Set-up ------------------------------------------------------------------------------------ */

static size_t most_window_bytes(const fused_plan_t *plan)
{
    size_t most = 0;
    for (int i = 0; i < plan->n_cases; i++) {
        for (int rank = 0; rank < plan->ranks; rank++) {
            const size_t bytes = fused_window_bytes(plan, &plan->cases[i], rank);
            most = bytes > most ? bytes : most;
        }
    }
    return most;
}

static bool make_comm(state_t *state, tw_allgather_fn allgather, void *allgather_user)
{
    static const size_t library_share = (size_t)64 << 20;
    const size_t wanted = most_window_bytes(state->plan);
    tw_comm_args_t args = TW_COMM_ARGS_INIT;
    args.rank = state->rank;
    args.size = state->plan->ranks;
    args.name = "bench";
    args.allgather = allgather;
    args.allgather_user = allgather_user;
    args.transport = state->plan->transport == BENCH_THREADS ? TW_TRANSPORT_THREADS : TW_TRANSPORT_SHM;
    if (wanted <= ARENA_MOST) {
        state->arena_bytes = wanted;
        args.window_bytes = wanted + library_share;
    }
    if (tw_comm_create(&args, &state->comm) != TW_OK)
        return give_up(state, "tw_comm_create", tw_last_error());
    if (state->arena_bytes > 0 && tw_mem_alloc(state->comm, state->arena_bytes, &state->arena) != TW_OK)
        return give_up(state, "tw_mem_alloc", tw_last_error());
    return true;
}

static bool make_peers(state_t *state, const bench_peer_t *mpi)
{
    if (!state->plan->torch)
        return true;
    state->peers = fused_peers_open(state->plan, state->rank, mpi);
    if (state->peers == NULL)
        atomic_store(&state->board->meeting.failed, 1);
    return state->peers != NULL;
}

/* ---- Sessions ---------------------------------------------------------------------------------- */

static void session_close(state_t *state)
{
    if (state->hccl != NULL)
        (void)tw_hccl_finalize(state->hccl, 1);
    tw_hccl_destroy(state->hccl);
    if (state->context != NULL)
        tw_hccl_contexts_destroy(&state->context, 1);
    state->hccl = NULL;
    state->context = NULL;
}

static bool session_open(state_t *state)
{
    const tw_hccl_core_t core = {.type = TW_HCCL_CORE_AIV};
    if (state->hccl != NULL && state->n_tasks + fused_call_tasks(&state->operands) <= SESSION_TASKS)
        return true;
    session_close(state);
    state->n_tasks = 0;
    if (tw_hccl_contexts_create(&state->comm, 1, &state->context) != TW_OK ||
        tw_hccl_create(&core, &state->hccl) != TW_OK || tw_hccl_init(state->hccl, state->context, NULL) != 0)
        return give_up(state, "session", tw_last_error());
    return true;
}

/* ---- The timed calls --------------------------------------------------------------------------- */

static bool call_fused(state_t *state)
{
    return tw_op_start(state->op) == TW_OK && tw_op_wait(state->op, 0) == TW_OK;
}

static bool call_variant(state_t *state, int variant)
{
    const fused_operands_t *operands = &state->operands;
    switch (variant) {
    case FUSED_T_GEMM:
        return fused_call_product(state->comm, operands);
    case FUSED_T_COMM:
        return fused_call_collective(state->hccl, operands, &state->n_tasks);
    case FUSED_T_SEQ:
        return fused_call_sequence(state->comm, state->hccl, operands, &state->n_tasks);
    default:
        return call_fused(state);
    }
}

/* Peers measure for themselves. */
static double time_peer(state_t *state, int variant)
{
    const double seconds = variant == FUSED_T_GLOO ? fused_peers_gloo(state->peers) : fused_peers_mpi(state->peers);
    if (seconds < 0)
        atomic_store(&state->board->meeting.failed, 1);
    return seconds;
}

/* One call of a variant after a barrier; its duration, or a negative number on failure. */
static double timed_call(state_t *state, int variant)
{
    static const char *const names[] = {"product", "collective", "sequence", "operator"};
    const bool session = variant == FUSED_T_COMM || variant == FUSED_T_SEQ;
    if (session && !session_open(state))
        return -1;
    if (!session)
        session_close(state);
    if (!meet(state))
        return -1;
    if (variant > FUSED_T_FUSED)
        return time_peer(state, variant);
    const int64_t start = bench_now_ns();
    const bool ok = call_variant(state, variant);
    const int64_t end = bench_now_ns();
    if (!ok)
        (void)give_up(state, names[variant], tw_last_error());
    return ok ? (double)(end - start) * 1e-9 : -1;
}

/* Every variant once, beginning with another one each time. Negative iterations are warm-up. */
static bool iterate(state_t *state, int iteration)
{
    int variants[FUSED_VARIANTS];
    const int n = bench_turn(state->has, FUSED_VARIANTS, iteration, variants);
    for (int i = 0; i < n; i++) {
        const int variant = variants[i];
        const double duration = timed_call(state, variant);
        if (duration < 0)
            return false;
        fused_board_times(state->board, variant, state->rank)[iteration > 0 ? iteration : 0] = duration;
    }
    return true;
}

/* ---- Verification ------------------------------------------------------------------------------ */

static void set_wrong(state_t *state)
{
    state->board->checks[state->rank].verified = false;
    atomic_store(&state->board->wrong, 1);
}

/* What collective and product alone make of nothing. False on failure. */
static bool check_parts(state_t *state)
{
    fused_parts_poison(&state->operands);
    if (timed_call(state, FUSED_T_COMM) < 0 || timed_call(state, FUSED_T_GEMM) < 0)
        return false;
    if (!fused_parts_same(&state->operands))
        set_wrong(state);
    return true;
}

/* False on failure; a wrong result goes to the board. */
static bool verify(state_t *state)
{
    fused_operands_t *operands = &state->operands;
    fused_operands_poison(operands);
    if (timed_call(state, FUSED_T_SEQ) < 0 || timed_call(state, FUSED_T_FUSED) < 0)
        return false;
    state->board->checks[state->rank] = fused_verify(operands);
    if (!state->board->checks[state->rank].verified || !fused_operands_as_sequence(operands))
        set_wrong(state);
    fused_operands_keep(operands);
    if (state->plan->wire == TW_WIRE_INT8 && timed_call(state, FUSED_T_COMM) < 0)
        return false;
    fused_parts_keep(operands);
    return check_parts(state) && meet(state);
}

/* What the timed calls left must be what was verified, and another call must make the same of nothing. */
static bool check_again(state_t *state)
{
    bool same = fused_operands_same(&state->operands);
    fused_operands_poison(&state->operands);
    if (timed_call(state, FUSED_T_FUSED) < 0)
        return false;
    same = same && fused_operands_same(&state->operands);
    if (!same)
        set_wrong(state);
    return check_parts(state) && meet(state);
}

/* ---- Timing ------------------------------------------------------------------------------------ */

static double slowest_first(const state_t *state, int variant)
{
    double slowest = 0;
    for (int rank = 0; rank < state->plan->ranks; rank++)
        slowest = fmax(slowest, fused_board_times(state->board, variant, rank)[0]);
    return slowest;
}

/* By the time of the last warm-up. */
static int choose_iters(const state_t *state)
{
    static const double short_call = 2e-3, long_call = 50e-3, budget = 15;
    if (state->plan->iters >= 0)
        return state->plan->iters;
    const double fused = slowest_first(state, FUSED_T_FUSED);
    double all = 0;
    for (int i = 0; i < FUSED_VARIANTS; i++)
        all += state->has[i] ? slowest_first(state, i) : 0;
    if (fused < long_call)
        return fused < short_call && all < 10 * short_call ? 201 : FUSED_RATIOS;
    const double most = budget / all;
    return most < 5 ? 5 : most > FUSED_RATIOS ? FUSED_RATIOS : (int)most;
}

static void show_progress(const state_t *state, const char *what, int done, int all)
{
    const fused_case_t *c = state->operands.c;
    if (state->rank != 0 || !isatty(STDERR_FILENO))
        return;
    if (what == NULL)
        (void)fprintf(stderr, "\r\033[K");
    else if (all == 0)
        (void)fprintf(stderr, "\r\033[K%s %zu,%zu,%zu: %s ...", fused_op_names[c->op], c->m, c->k, c->n, what);
    else if (done % 8 == 0)
        (void)fprintf(stderr, "\r\033[K%s %zu,%zu,%zu: %s %d of %d", fused_op_names[c->op], c->m, c->k, c->n, what,
                      done, all);
}

static bool time_case(state_t *state)
{
    const int warmup = state->plan->warmup >= 0 ? state->plan->warmup : WARMUP;
    const bool measure = state->plan->iters < 0;
    for (int i = -(warmup > 0 || !measure ? warmup : 1); i < 0; i++) {
        if (!iterate(state, i))
            return false;
    }
    if (!meet(state))
        return false;
    if (state->rank == 0)
        state->board->iters = choose_iters(state);
    if (!meet(state))
        return false;
    for (int i = 0; i < state->board->iters; i++) {
        show_progress(state, "timing", i, state->board->iters);
        if (!iterate(state, i))
            return false;
    }
    return meet(state) && check_again(state);
}

/* ---- Traces ------------------------------------------------------------------------------------ */

static void keep_events(state_t *state)
{
    fused_event_t *events = fused_board_events(state->board, state->rank);
    tw_trace_event_t event;
    uint32_t n = 0;
    for (; n < FUSED_EVENTS_MAX && tw_trace_event(state->comm, n, &event) == TW_OK; n++) {
        fused_event_t *to = &events[n];
        *to = (fused_event_t){.worker = event.worker,
                              .peer = event.peer,
                              .row = event.row,
                              .rows = event.rows,
                              .col = event.col,
                              .cols = event.cols,
                              .begin_ns = event.begin_ns,
                              .end_ns = event.end_ns};
        (void)snprintf(to->what, sizeof to->what, "%s", event.what);
    }
    state->board->n_events[state->rank] = n;
}

static bool trace_case(state_t *state)
{
    const int warmup = state->plan->warmup >= 0 ? state->plan->warmup : WARMUP;
    for (int i = 0; i < warmup; i++) {
        if (timed_call(state, FUSED_T_FUSED) < 0)
            return false;
    }
    if (tw_trace_start(state->comm, FUSED_EVENTS_MAX) != TW_OK)
        return give_up(state, "tw_trace_start", tw_last_error());
    if (timed_call(state, FUSED_T_FUSED) < 0)
        return false;
    keep_events(state);
    return tw_trace_start(state->comm, 0) == TW_OK && meet(state);
}

/* ---- Cases ------------------------------------------------------------------------------------- */

static bool set_case(state_t *state, const fused_case_t *c)
{
    fused_operands_t *operands = &state->operands;
    if (!fused_operands_make(state->plan, c, state->rank, state->arena, state->arena_bytes, operands)) {
        atomic_store(&state->board->meeting.failed, 1);
        return false;
    }
    if (!fused_prepare(state->comm, operands, &state->op))
        return give_up(state, fused_op_names[c->op], tw_last_error());
    for (int i = 0; i < FUSED_VARIANTS; i++)
        state->has[i] = i <= FUSED_T_FUSED;
    if (state->peers != NULL &&
        !fused_peers_case(state->peers, operands, &state->has[FUSED_T_GLOO], &state->has[FUSED_T_MPI])) {
        atomic_store(&state->board->meeting.failed, 1);
        return false;
    }
    if (state->rank == 0) {
        memcpy(state->board->has, state->has, sizeof state->has);
        if (tw_op_explain(state->op, state->board->explain, sizeof state->board->explain) != TW_OK)
            state->board->explain[0] = '\0';
    }
    return meet(state);
}

static bool run_case(state_t *state, int index)
{
    fused_board_t *board = state->board;
    show_progress(state, "verifying", 0, 0);
    if (!verify(state))
        return false;
    const bool right = atomic_load(&board->wrong) == 0;
    if (right && !(state->plan->mode == FUSED_TRACE ? trace_case(state) : time_case(state)))
        return false;
    session_close(state);
    if (!meet(state))
        return false;
    if (state->rank == 0) {
        const bool wrong = atomic_load(&board->wrong) != 0;
        board->iters = wrong ? 0 : board->iters;
        board->any_wrong |= wrong;
        show_progress(state, NULL, 0, 0);
        fused_report_case(board, index);
        atomic_store(&board->wrong, 0);
    }
    return meet(state);
}

static bool run_cases(state_t *state)
{
    bool ok = true;
    if (state->rank == 0) {
        (void)snprintf(state->board->isa, sizeof state->board->isa, "%s", bench_info("cpu", "isa"));
        fused_report_header(state->board);
    }
    for (int i = 0; ok && i < state->plan->n_cases; i++) {
        ok = set_case(state, &state->plan->cases[i]) && run_case(state, i);
        session_close(state);
        tw_op_release(state->op);
        state->op = NULL;
        fused_operands_free(&state->operands);
    }
    return ok && meet(state);
}

bool fused_run_rank(void *shared, int rank, const bench_peer_t *mpi, tw_allgather_fn allgather, void *allgather_user)
{
    fused_board_t *board = shared;
    state_t *state = calloc(1, sizeof *state);
    if (state == NULL)
        return false;
    state->board = board;
    state->plan = &board->plan;
    state->rank = rank;
    bench_pin((long)rank * state->plan->threads, state->plan->threads);
    const bool ok = make_peers(state, mpi) && make_comm(state, allgather, allgather_user) && run_cases(state);
    fused_peers_close(state->peers);
    tw_mem_free(state->comm, state->arena);
    tw_comm_destroy(state->comm);
    free(state);
    return ok;
}
