/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of a bench: verifies a case, then times ours, a plain copy and the peer next to each other
 * in every iteration. Ranks meet at the board's barrier before each timed call; the barrier is not
 * timed. A session of the task interface holds SESSION_TASKS calls and is renewed between iterations.
 */
#define _GNU_SOURCE
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

enum { SESSION_TASKS = 60, BUFFER_ALIGN = 4096 };

typedef struct tiling {
    tw_hccl_init_tiling_t init;
    tw_hccl_cc_tiling_t cc;
} tiling_t;

typedef struct peer_counts {
    int send_counts[BENCH_RANKS_MAX], send_displs[BENCH_RANKS_MAX];
    int recv_counts[BENCH_RANKS_MAX], recv_displs[BENCH_RANKS_MAX];
} peer_counts_t;

typedef struct bench_state {
    bench_board_t *board;
    const bench_plan_t *plan;
    const bench_op_t *op;
    const bench_dtype_t *dtype;
    int rank;
    const bench_peer_t *peer; /* NULL: none, or it lacks the type */
    tw_comm_t *comm;
    tw_hccl_context_t *context;
    tw_hccl_t *hccl;
    int n_tasks; /* of the session */
    tiling_t tiling;
    void *send, *recv;           /* symmetric or plain */
    void *peer_send, *peer_recv; /* plain */
    void *copy;                  /* where the send buffer is copied to */
    bench_shape_t shape;
    peer_counts_t counts;
    bench_peer_call_t peer_call;
} bench_state_t;

/* Tells the user and the other ranks; always false. */
static bool give_up(bench_state_t *state, const char *what, const char *why)
{
    (void)fprintf(stderr, "tilewire bench: rank %d: %s: %s\n", state->rank, what, why);
    atomic_store(&state->board->meeting.failed, 1);
    return false;
}

/* ---- Set-up ------------------------------------------------------------------------------------ */

static size_t most_bytes(const bench_state_t *state, bool recv)
{
    static _Thread_local bench_shape_t shape;
    size_t most = 1;
    for (int i = 0; i < state->plan->bytes.n; i++) {
        (void)bench_shape_make(state->plan, state->rank, state->plan->bytes.value[i], &shape);
        const size_t bytes = (recv ? shape.n_recv : shape.n_send) * state->dtype->bytes;
        most = bytes > most ? bytes : most;
    }
    return most;
}

static bool make_comm(bench_state_t *state, tw_allgather_fn allgather, void *allgather_user)
{
    static const size_t library_share = (size_t)64 << 20;
    tw_comm_args_t args = TW_COMM_ARGS_INIT;
    args.rank = state->rank;
    args.size = state->plan->ranks;
    args.name = "bench";
    args.allgather = allgather;
    args.allgather_user = allgather_user;
    args.transport = state->plan->transport == BENCH_THREADS ? TW_TRANSPORT_THREADS : TW_TRANSPORT_SHM;
    if (state->plan->memory == BENCH_SYMMETRIC)
        args.window_bytes = most_bytes(state, false) + most_bytes(state, true) + library_share;
    if (tw_comm_create(&args, &state->comm) != TW_OK)
        return give_up(state, "tw_comm_create", tw_last_error());
    return true;
}

static bool alloc_plain(size_t bytes, void **buffer_out)
{
    const size_t rounded = (bytes + BUFFER_ALIGN - 1) / BUFFER_ALIGN * BUFFER_ALIGN;
    void *buffer = aligned_alloc(BUFFER_ALIGN, rounded);
    if (buffer != NULL)
        memset(buffer, 0, rounded);
    *buffer_out = buffer;
    return buffer != NULL;
}

static bool alloc_buffers(bench_state_t *state)
{
    const size_t send = most_bytes(state, false), recv = most_bytes(state, true);
    if (state->plan->memory == BENCH_SYMMETRIC) {
        if (tw_mem_alloc(state->comm, send, &state->send) != TW_OK ||
            tw_mem_alloc(state->comm, recv, &state->recv) != TW_OK)
            return give_up(state, "tw_mem_alloc", tw_last_error());
    } else if (!alloc_plain(send, &state->send) || !alloc_plain(recv, &state->recv)) {
        return give_up(state, "buffers", "out of memory");
    }
    if (!alloc_plain(send, &state->copy) ||
        (state->peer != NULL && (!alloc_plain(send, &state->peer_send) || !alloc_plain(recv, &state->peer_recv))))
        return give_up(state, "buffers", "out of memory");
    return true;
}

static void free_buffers(bench_state_t *state)
{
    if (state->plan->memory == BENCH_SYMMETRIC) {
        tw_mem_free(state->comm, state->send);
        tw_mem_free(state->comm, state->recv);
    } else {
        free(state->send);
        free(state->recv);
    }
    free(state->copy);
    free(state->peer_send);
    free(state->peer_recv);
}

/* ---- Sessions ---------------------------------------------------------------------------------- */

static bool make_tiling(bench_state_t *state)
{
    tw_hccl_tiling_args_t args = TW_HCCL_TILING_ARGS_INIT;
    args.group_name = tw_comm_name(state->comm);
    args.op_type = state->op->cmd;
    args.alg_config = state->op->alg_config;
    args.reduce_type = TW_HCCL_SUM;
    args.dst_type = args.src_type = (uint8_t)state->dtype->type;
    if (tw_hccl_tiling(&args, &state->tiling.init, &state->tiling.cc) != TW_OK)
        return give_up(state, "tw_hccl_tiling", tw_last_error());
    return true;
}

static void session_close(bench_state_t *state)
{
    if (state->hccl != NULL)
        (void)tw_hccl_finalize(state->hccl, 1);
    tw_hccl_destroy(state->hccl);
    if (state->context != NULL)
        tw_hccl_contexts_destroy(&state->context, 1);
    state->hccl = NULL;
    state->context = NULL;
}

static bool session_open(bench_state_t *state)
{
    const tw_hccl_core_t core = {.type = TW_HCCL_CORE_AIV};
    state->n_tasks = 0;
    if (tw_hccl_contexts_create(&state->comm, 1, &state->context) != TW_OK ||
        tw_hccl_create(&core, &state->hccl) != TW_OK)
        return give_up(state, "session", tw_last_error());
    if (tw_hccl_init_v2(state->hccl, state->context, &state->tiling) != 0 ||
        tw_hccl_set_cc_tiling_v2(state->hccl, offsetof(tiling_t, cc)) != 0)
        return give_up(state, "session", tw_last_error());
    return true;
}

static bool session_ready(bench_state_t *state)
{
    if (state->hccl != NULL && state->n_tasks < SESSION_TASKS)
        return true;
    session_close(state);
    return session_open(state);
}

/* ---- The timed calls --------------------------------------------------------------------------- */

static inline bool call_ours(bench_state_t *state)
{
    const tw_hccl_handle_t handle = state->op->start(state->hccl, state->send, state->recv, &state->shape);
    return handle >= 0 && tw_hccl_wait(state->hccl, handle) == 0;
}

static inline bool call_peer(const bench_state_t *state)
{
    return state->peer->run[state->op->peer](&state->peer_call) == 0;
}

/* One call of a variant after a barrier; its duration, or a negative number on failure. */
static double timed_call(bench_state_t *state, bench_variant_t variant)
{
    bool ok = true;
    if (!bench_barrier(&state->board->meeting))
        return -1;
    const int64_t start = bench_now_ns();
    if (variant == BENCH_OURS)
        ok = call_ours(state);
    else if (variant == BENCH_COPY)
        memcpy(state->copy, state->send, state->shape.n_send * state->dtype->bytes);
    else
        ok = call_peer(state);
    const int64_t end = bench_now_ns();
    state->n_tasks += variant == BENCH_OURS;
    if (!ok)
        (void)give_up(state, state->op->name, variant == BENCH_OURS ? tw_last_error() : "the peer failed");
    return ok ? (double)(end - start) * 1e-9 : -1;
}

/* Every variant once; the order changes with the iteration. Negative iterations are warm-up. */
static bool iterate(bench_state_t *state, int iteration)
{
    const int n = state->peer != NULL ? BENCH_VARIANTS : BENCH_PEER;
    if (!session_ready(state))
        return false;
    for (int k = 0; k < n; k++) {
        const bench_variant_t variant = (bench_variant_t)(iteration % 2 != 0 ? n - 1 - k : k);
        const double duration = timed_call(state, variant);
        if (duration < 0)
            return false;
        if (iteration >= 0)
            bench_board_times(state->board, variant, state->rank)[iteration] = duration;
    }
    return true;
}

/* ---- Verification ------------------------------------------------------------------------------ */

/* Compares n elements at `place` of recv with element `from` on of `source`, -1 for the sum. */
static bool check_block(const bench_state_t *state, const bench_values_t *values, const void *recv, size_t place,
                        size_t n, int source, size_t from)
{
    const size_t bytes = state->dtype->bytes;
    const unsigned char *at = (const unsigned char *)recv + place * bytes;
    for (size_t i = 0; i < n; i++, at += bytes) {
        const uint32_t expected =
            source < 0 ? bench_element_sum(values, from + i) : bench_element(values, source, from + i);
        uint32_t found = 0;
        memcpy(&found, at, bytes);
        if (found == expected)
            continue;
        (void)fprintf(stderr, "tilewire bench: rank %d: %s of %zu elements: element %zu is 0x%x, expected 0x%x\n",
                      state->rank, state->op->name, state->shape.n_total, place + i, found, expected);
        return false;
    }
    return true;
}

static void check(bench_state_t *state, const bench_values_t *values, const void *recv)
{
    const bench_shape_t *shape = &state->shape;
    bool ok = true;
    if (state->op->reduces)
        ok = check_block(state, values, recv, 0, shape->n_recv, -1, shape->reduce_offset);
    for (int q = 0; !state->op->reduces && ok && q < shape->size; q++)
        ok = check_block(state, values, recv, shape->recv_displs[q], shape->recv_counts[q], q, shape->from[q]);
    if (!ok)
        atomic_store(&state->board->wrong, 1);
}

static bench_values_t values_of(const bench_state_t *state, bench_fill_t fill)
{
    return (bench_values_t){.dtype = state->dtype, .fill = fill, .ranks = state->plan->ranks};
}

/* Runs the case once on generated data. False on failure; a wrong result goes to the board. */
static bool verify(bench_state_t *state, bench_fill_t fill)
{
    const bench_values_t values = values_of(state, fill);
    const size_t recv_bytes = state->shape.n_recv * state->dtype->bytes;
    bench_fill_buffer(&values, state->rank, state->send, state->shape.n_send);
    memset(state->recv, 0xa5, recv_bytes);
    if (!session_ready(state) || timed_call(state, BENCH_OURS) < 0)
        return false;
    check(state, &values, state->recv);
    if (state->peer != NULL) {
        bench_fill_buffer(&values, state->rank, state->peer_send, state->shape.n_send);
        memset(state->peer_recv, 0xa5, recv_bytes);
        if (timed_call(state, BENCH_PEER) < 0)
            return false;
        if (fill == BENCH_FILL_EXACT) /* its order of additions is its own */
            check(state, &values, state->peer_recv);
    }
    return bench_barrier(&state->board->meeting);
}

/* ---- Cases ------------------------------------------------------------------------------------- */

static void copy_counts(const uint64_t *from, int *to, int n)
{
    for (int i = 0; i < n; i++)
        to[i] = (int)from[i];
}

static bool set_shape(bench_state_t *state, size_t bytes)
{
    bench_shape_t *shape = &state->shape;
    peer_counts_t *counts = &state->counts;
    if (!bench_shape_make(state->plan, state->rank, bytes, shape))
        return give_up(state, "--bytes", "less than one element for each rank");
    if (state->peer != NULL && (shape->n_send > INT_MAX || shape->n_recv > INT_MAX))
        return give_up(state, "--peers", "too many elements for MPI's counts");
    copy_counts(shape->send_counts, counts->send_counts, shape->size);
    copy_counts(shape->send_displs, counts->send_displs, shape->size);
    copy_counts(shape->recv_counts, counts->recv_counts, shape->size);
    copy_counts(shape->recv_displs, counts->recv_displs, shape->size);
    state->peer_call = (bench_peer_call_t){
        .send = state->peer_send,
        .recv = state->peer_recv,
        .count = (int)shape->count,
        .type = (int)shape->type,
        .send_counts = counts->send_counts,
        .send_displs = counts->send_displs,
        .recv_counts = counts->recv_counts,
        .recv_displs = counts->recv_displs,
    };
    return true;
}

static void show_progress(const bench_state_t *state, bool on)
{
    if (state->rank != 0 || !isatty(STDERR_FILENO))
        return;
    if (on)
        (void)fprintf(stderr, "%s, %zu bytes ...\r", state->op->name, state->shape.n_total * state->dtype->bytes);
    else
        (void)fprintf(stderr, "\033[K");
}

static bool time_case(bench_state_t *state, const bench_case_t *result, int warmup)
{
    for (int i = -warmup; i < result->iters; i++) {
        if (!iterate(state, i))
            return false;
    }
    const bench_values_t values = values_of(state, BENCH_FILL_RANDOM);
    check(state, &values, state->recv); /* the last one is still right */
    return bench_barrier(&state->board->meeting);
}

static bool run_case(bench_state_t *state, size_t bytes)
{
    bench_board_t *board = state->board;
    if (!set_shape(state, bytes))
        return false;
    show_progress(state, true);
    if (!verify(state, BENCH_FILL_EXACT) || !verify(state, BENCH_FILL_RANDOM))
        return false;
    bench_case_t result = {.bytes = state->shape.n_total * state->dtype->bytes, .peer = state->peer != NULL};
    result.iters = bench_iters(state->plan, bytes);
    if (atomic_load(&board->wrong) == 0 && !time_case(state, &result, bench_warmup(state->plan, bytes)))
        return false;
    result.verified = atomic_load(&board->wrong) == 0;
    if (!result.verified)
        result.iters = 0;
    if (!bench_barrier(&board->meeting))
        return false;
    if (state->rank == 0) {
        show_progress(state, false);
        bench_report_case(board, &result);
        board->any_wrong |= !result.verified;
        atomic_store(&board->wrong, 0);
    }
    return bench_barrier(&board->meeting);
}

static bool run_cases(bench_state_t *state)
{
    const bool peer_without_type = state->plan->peers && state->peer == NULL;
    if (state->rank == 0)
        bench_report_header(state->board, state->peer);
    if (state->rank == 0 && peer_without_type)
        (void)fprintf(stderr, "tilewire bench: MPI has no type for %s: its columns stay empty\n", state->dtype->name);
    for (int i = 0; i < state->plan->bytes.n; i++) {
        if (!run_case(state, state->plan->bytes.value[i]))
            return false;
    }
    session_close(state);
    return bench_barrier(&state->board->meeting);
}

bool bench_run_rank(void *shared, int rank, const bench_peer_t *peer, tw_allgather_fn allgather, void *allgather_user)
{
    bench_board_t *board = shared;
    bench_state_t *state = calloc(1, sizeof *state);
    if (state == NULL)
        return false;
    state->board = board;
    state->plan = &board->plan;
    state->op = &bench_ops[board->plan.op];
    state->dtype = &bench_dtypes[board->plan.dtype];
    state->rank = rank;
    state->peer = peer != NULL && peer->has_type((int)state->dtype->type) ? peer : NULL;
    bench_pin((long)rank * state->plan->threads, state->plan->threads);
    const bool ok =
        make_comm(state, allgather, allgather_user) && alloc_buffers(state) && make_tiling(state) && run_cases(state);
    session_close(state);
    free_buffers(state);
    tw_comm_destroy(state->comm);
    free(state);
    return ok;
}
