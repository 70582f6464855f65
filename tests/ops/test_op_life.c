/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a prepared operator: what it keeps of its arguments and what it reads anew, in which order it
 * may be called, and what else may use the communicator meanwhile. Results are exact small integers.
 */
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>

#include "api/comm.h"
#include "base/dtype.h"
#include "ops/op_args.h"

/* ---- Values ------------------------------------------------------------------------------------ */

enum { TALL = 520 }; /* more rows than a plain x2 is used for as it is */

static void put(const box_t *box, int64_t n, float value)
{
    for (int64_t i = 0; i < n; i++)
        ((uint16_t *)box->t.data)[i] = twi_bf16_from_f32(value);
}

static void check_all(const box_t *box, int64_t n, float value)
{
    for (int64_t i = 0; i < n; i++)
        CHECK_EQ(twi_f32_from_bf16(((const uint16_t *)box->t.data)[i]), value);
}

/* Every element of x1 and x2 is 1, so y is K for each rank, plus the bias. */
static void make_ones(op_call_t *call, float bias)
{
    make_reduce(call, type_bf16, type_bf16, type_bf16);
    set_box(&call->bias, type_bf16, 1, N, 1, 1);
    call->reduce.bias = &call->bias.t;
    put(&call->x1, M * K, 1);
    put(&call->x2, K * N, 1);
    put(&call->bias, N, bias);
}

static void run_prepared(tw_op_t *op)
{
    CHECK_OK(tw_op_start(op));
    CHECK_OK(tw_op_wait(op, 0));
}

/* ---- What is kept and what is read again --------------------------------------------------------- */

TEST_RANKS(bias_changes_between_runs, "1,2")(tw_comm_t *comm)
{
    const int size = tw_comm_size(comm);
    tw_op_t *op = NULL;
    op_call_t call;
    op_open(&call);
    make_ones(&call, 1);
    CHECK_OK(tw_mm_all_reduce_prepare(comm, &call.reduce, &op));
    for (int bias = 0; bias < 4; bias++) {
        put(&call.bias, N, (float)(bias * 32));
        run_prepared(op);
        check_all(&call.y, M * N, (float)(size * (K + bias * 32)));
    }
    tw_op_release(op);
    op_close(&call);
}

/* Structs, shapes and strides are gone after prepare; the memory of the tensors is not. */
TEST_RANKS(structs_go_away, "1,2")(tw_comm_t *comm)
{
    const int size = tw_comm_size(comm);
    tw_op_t *op = NULL;
    op_call_t call;
    op_open(&call);
    make_ones(&call, 32);
    set_strides(&call.bias, 2, 1, 1);
    put(&call.bias, 2 * N, 32);
    CHECK_OK(tw_mm_all_reduce_prepare(comm, &call.reduce, &op));
    const box_t y = call.y;
    memset(call.boxes, 0xee, sizeof call.boxes);
    memset(&call.reduce, 0xee, sizeof call.reduce);
    run_prepared(op);
    check_all(&y, M * N, (float)(size * (K + 32)));
    tw_op_release(op);
    op_close(&call);
}

TEST_RANKS(counts_go_away, "1,2")(tw_comm_t *comm)
{
    const int rows = OP_ROWS * E * tw_comm_size(comm);
    tw_op_t *op = NULL;
    op_call_t call;
    op_open(&call);
    make_combine(&call, comm, type_bf16);
    put(&call.x1, rows * K, 1);
    put(&call.x2, E * K * N, 1);
    put(&call.mm_x, BS * H2, 1);
    put(&call.mm_weight, H2 * N2, 1);
    CHECK_OK(tw_gmm_alltoallv_prepare(comm, &call.combine, &op));
    memset(call.send, 0xee, sizeof call.send);
    memset(call.recv, 0xee, sizeof call.recv);
    run_prepared(op);
    check_all(&call.y, rows * N, K);
    check_all(&call.mm_y, BS * N2, H2);
    tw_op_release(op);
    op_close(&call);
}

/* A plain x2 of a tall product is packed, anew for every run, in both forms of the call. */
TEST_RANKS(x2_changes_between_runs, "1,2")(tw_comm_t *comm)
{
    const int size = tw_comm_size(comm);
    tw_op_t *op = NULL;
    op_call_t call;
    op_open(&call);
    make_ones(&call, 0);
    uint16_t *y = malloc((size_t)TALL * N * sizeof *y);
    CHECK(y != NULL);
    set_shape(&call.x1, 2, TALL, K, 1);
    set_strides(&call.x1, 0, 1, 1);
    set_shape(&call.y, 2, TALL, N, 1);
    call.y.t.data = y;
    CHECK_OK(tw_mm_all_reduce_prepare(comm, &call.reduce, &op));
    for (int value = 1; value < 4; value++) {
        put(&call.x2, K * N, (float)value);
        memset(y, 0xff, (size_t)TALL * N * sizeof *y);
        run_prepared(op);
        check_all(&call.y, TALL * N, (float)(size * K * value));
        put(&call.x2, K * N, (float)-value);
        CHECK_OK(tw_mm_all_reduce(comm, &call.reduce));
        check_all(&call.y, TALL * N, (float)(-size * K * value));
    }
    tw_op_release(op);
    free(y);
    op_close(&call);
}

/* ---- The order of calls -------------------------------------------------------------------------- */

TEST_RANKS(order_of_calls, "1,2")(tw_comm_t *comm)
{
    tw_op_t *op = NULL, *other = NULL;
    op_call_t call;
    op_open(&call);
    make_ones(&call, 0);
    CHECK_OK(tw_mm_all_reduce_prepare(comm, &call.reduce, &op));
    CHECK_OK(tw_mm_all_reduce_prepare(comm, &call.reduce, &other));
    REFUSED(tw_op_test(op), TW_ERR_STATE, "op has not been started");
    REFUSED(tw_op_wait(op, 0), TW_ERR_STATE, "op has not been started");
    CHECK_OK(tw_op_start(op));
    REFUSED(tw_op_start(op), TW_ERR_STATE, "op has been started");
    CHECK_STATUS(tw_op_start(other), TW_ERR_STATE);
    CHECK_STATUS(tw_mm_all_reduce(comm, &call.reduce), TW_ERR_STATE);
    CHECK_OK(tw_op_wait(op, 0));
    CHECK_OK(tw_op_wait(op, 0)); /* it is still finished */
    CHECK_OK(tw_op_test(op));
    run_prepared(other);
    CHECK_OK(tw_comm_barrier(comm));
    tw_op_release(op);
    tw_op_release(other);
    op_close(&call);
}

TEST_RANKS(test_until_done, "1,2,3")(tw_comm_t *comm)
{
    tw_op_t *op = NULL;
    op_call_t call;
    op_open(&call);
    make_ones(&call, 0);
    CHECK_OK(tw_mm_all_reduce_prepare(comm, &call.reduce, &op));
    for (int i = 0; i < 3; i++) {
        memset(call.y.t.data, 0xff, BOX_BYTES);
        CHECK_OK(tw_op_start(op));
        tw_status_t status;
        while ((status = i < 2 ? tw_op_test(op) : tw_op_wait(op, 1000)) == TW_IN_PROGRESS)
            continue;
        CHECK_OK(status);
        check_all(&call.y, M * N, (float)(tw_comm_size(comm) * K));
    }
    tw_op_release(op);
    op_close(&call);
}

/* A rank whose peer has not started yet gets its time back. */
TEST_RANKS(wait_for_a_while, "2")(tw_comm_t *comm)
{
    tw_op_t *op = NULL;
    op_call_t call;
    op_open(&call);
    make_ones(&call, 0);
    CHECK_OK(tw_mm_all_reduce_prepare(comm, &call.reduce, &op));
    if (tw_comm_rank(comm) == 0) {
        CHECK_OK(tw_op_start(op));
        CHECK_STATUS(tw_op_wait(op, 1000000), TW_IN_PROGRESS);
        CHECK_STATUS(tw_op_test(op), TW_IN_PROGRESS);
    }
    ranks_barrier();
    if (tw_comm_rank(comm) == 1)
        CHECK_OK(tw_op_start(op));
    CHECK_OK(tw_op_wait(op, UINT64_MAX));
    check_all(&call.y, M * N, 2 * K);
    tw_op_release(op);
    op_close(&call);
}

TEST_RANKS(null_operators, "1")(tw_comm_t *comm)
{
    char text[8];
    tw_op_t *op = NULL;
    op_call_t call;
    REFUSED(tw_op_start(NULL), TW_ERR_ARGUMENT, "op is NULL");
    REFUSED(tw_op_test(NULL), TW_ERR_ARGUMENT, "op is NULL");
    REFUSED(tw_op_wait(NULL, 0), TW_ERR_ARGUMENT, "op is NULL");
    REFUSED(tw_op_explain(NULL, text, sizeof text), TW_ERR_ARGUMENT, "op is NULL");
    tw_op_release(NULL);
    op_open(&call);
    make_ones(&call, 0);
    CHECK_OK(tw_mm_all_reduce_prepare(comm, &call.reduce, &op));
    REFUSED(tw_op_explain(op, NULL, 8), TW_ERR_ARGUMENT, "text is NULL");
    REFUSED(tw_op_explain(op, text, 0), TW_ERR_ARGUMENT, "bytes is 0");
    memset(text, 'x', sizeof text);
    CHECK_OK(tw_op_explain(op, text, 4)); /* cut off, and ended */
    CHECK_EQ(text[3], '\0');
    CHECK_EQ(text[4], 'x');
    CHECK(text[0] != '\0');
    tw_op_release(op);
    op_close(&call);
}

/* ---- Others on the communicator ------------------------------------------------------------------ */

/* Nothing of an operator runs without its communicator, but releasing it is still fine. */
TEST_RANKS(communicator_goes_first, "1,2")(tw_comm_t *parent)
{
    char text[64];
    tw_comm_t *comm = NULL;
    tw_op_t *ops[3] = {NULL};
    op_call_t call;
    CHECK_OK(tw_comm_split(parent, 0, 0, NULL, &comm));
    op_open(&call);
    make_ones(&call, 0);
    for (int i = 0; i < 3; i++)
        CHECK_OK(tw_mm_all_reduce_prepare(comm, &call.reduce, &ops[i]));
    run_prepared(ops[0]);
    CHECK_OK(tw_comm_barrier(comm));
    tw_op_release(ops[1]);
    tw_comm_destroy(comm);
    for (int i = 0; i < 3; i += 2) {
        REFUSED(tw_op_start(ops[i]), TW_ERR_STATE, "the communicator of op has been destroyed");
        REFUSED(tw_op_test(ops[i]), TW_ERR_STATE, "the communicator of op has been destroyed");
        REFUSED(tw_op_wait(ops[i], 0), TW_ERR_STATE, "the communicator of op has been destroyed");
        REFUSED(tw_op_explain(ops[i], text, sizeof text), TW_ERR_STATE, "the communicator of op has been destroyed");
        tw_op_release(ops[i]);
    }
    op_close(&call);
}

/* Two threads that begin together: one releases operators, the other destroys what they are on. */
typedef struct finaliser {
    tw_op_t *ops[3];
    bool started; /* the first one was: it alone is released, by the thread, while it runs */
    _Atomic int here;
} finaliser_t;

static void meet(finaliser_t *f)
{
    atomic_fetch_add(&f->here, 1);
    while (atomic_load(&f->here) < 2)
        (void)sched_yield();
}

static void *release_main(void *arg)
{
    finaliser_t *f = arg;
    meet(f);
    for (int i = 0; i < (f->started ? 1 : 3); i++)
        tw_op_release(f->ops[i]);
    return NULL;
}

TEST(communicator_goes_while_operators_are_released)
{
    op_call_t call;
    op_open(&call);
    make_ones(&call, 0);
    for (int round = 0; round < 60; round++) {
        finaliser_t f = {.started = round % 2};
        pthread_t thread;
        tw_comm_t *comm = alone(NULL);
        for (int i = 0; i < 3; i++)
            CHECK_OK(tw_mm_all_reduce_prepare(comm, &call.reduce, &f.ops[i]));
        if (f.started)
            CHECK_OK(tw_op_start(f.ops[0]));
        CHECK_EQ(pthread_create(&thread, NULL, release_main, &f), 0);
        meet(&f);
        tw_comm_destroy(comm);
        CHECK_EQ(pthread_join(thread, NULL), 0);
        for (int i = 1; f.started && i < 3; i++)
            tw_op_release(f.ops[i]);
    }
    op_close(&call);
}

/* What is logged of an operator that is released while it runs reaches a sink that releases another one. */
static tw_op_t *kept_by_sink;

static void releasing_sink(void *user, tw_log_level_t level, const char *line)
{
    (void)user;
    (void)level;
    if (strstr(line, "is lost") == NULL)
        return;
    tw_op_release(kept_by_sink);
    kept_by_sink = NULL;
}

TEST(sink_releases_an_operator)
{
    tw_op_t *op = NULL;
    op_call_t call;
    tw_init_args_t args = TW_INIT_ARGS_INIT;
    args.log = releasing_sink;
    CHECK_OK(tw_init(&args));
    op_open(&call);
    make_ones(&call, 0);
    tw_comm_t *comm = alone(NULL), *other = alone(NULL);
    CHECK_OK(tw_mm_all_reduce_prepare(comm, &call.reduce, &op));
    CHECK_OK(tw_mm_all_reduce_prepare(other, &call.reduce, &kept_by_sink));
    CHECK_OK(tw_op_start(op));
    tw_op_release(op);
    CHECK(kept_by_sink == NULL);
    tw_comm_destroy(comm);
    tw_comm_destroy(other);
    op_close(&call);
}

/* A forked child does nothing for the rank: peers would take it for its parent, which has not come by yet. */
static void fork_body(tw_comm_t *comm, void *arg)
{
    tw_op_t *op = NULL;
    op_call_t call;
    (void)arg;
    op_open(&call);
    make_ones(&call, 0);
    CHECK_OK(tw_mm_all_reduce_prepare(comm, &call.reduce, &op));
    CHECK_OK(tw_op_start(op));
    const pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        REFUSED(tw_op_test(op), TW_ERR_STATE, "forked");
        REFUSED(tw_op_wait(op, 0), TW_ERR_STATE, "forked");
        REFUSED(tw_op_start(op), TW_ERR_STATE, "op has been started");
        _exit(0);
    }
    int status = 0;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
    CHECK_OK(tw_op_wait(op, 0));
    check_all(&call.y, M * N, (float)(tw_comm_size(comm) * K));
    tw_op_release(op);
    op_close(&call);
}

TEST(child_of_a_rank)
{
    const ranks_args_t args = RANKS_ARGS_INIT;
    ranks_run(&args, fork_body, NULL);
}

TEST_RANKS(open_session, "1,2")(tw_comm_t *comm)
{
    session_t session;
    tw_op_t *op = NULL;
    op_call_t call;
    op_open(&call);
    make_ones(&call, 0);
    CHECK_OK(tw_mm_all_reduce_prepare(comm, &call.reduce, &op));
    session_open(&session, comm);
    REFUSED(tw_mm_all_reduce(comm, &call.reduce), TW_ERR_STATE, "session");
    REFUSED(tw_op_start(op), TW_ERR_STATE, "session");
    session_close(&session);
    run_prepared(op);
    tw_op_release(op);
    op_close(&call);
}

TEST_RANKS(another_thread_computes, "1")(tw_comm_t *comm)
{
    tw_op_t *op = NULL, *no = NULL;
    op_call_t call;
    op_open(&call);
    make_ones(&call, 0);
    CHECK_OK(tw_mm_all_reduce_prepare(comm, &call.reduce, &op));
    CHECK_OK(tw_op_start(op));
    atomic_store(&comm->computing, true);
    REFUSED(tw_mm_all_reduce(comm, &call.reduce), TW_ERR_STATE, "another thread is inside");
    REFUSED(tw_mm_all_reduce_prepare(comm, &call.reduce, &no), TW_ERR_STATE, "another thread is inside");
    REFUSED(tw_op_start(op), TW_ERR_STATE, "another thread is inside");
    REFUSED(tw_op_test(op), TW_ERR_STATE, "another thread is inside");
    REFUSED(tw_op_wait(op, 0), TW_ERR_STATE, "another thread is inside");
    REFUSED(tw_trace_start(comm, 1), TW_ERR_STATE, "another thread is inside");
    atomic_store(&comm->computing, false);
    CHECK_OK(tw_op_wait(op, 0));
    check_all(&call.y, M * N, K);
    tw_op_release(op);
    op_close(&call);
}

/* A wrong call on one rank leaves nothing behind: the right one that follows works. */
TEST_RANKS(wrong_call_first, "2")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_ones(&call, 0);
    if (tw_comm_rank(comm) == 1) {
        call.reduce.rounds = -7;
        REDUCE_REFUSED(comm, call, "rounds is -7");
        call.reduce.rounds = 0;
    }
    CHECK_OK(tw_mm_all_reduce(comm, &call.reduce));
    check_all(&call.y, M * N, 2 * K);
    op_close(&call);
}

/* ---- Traces -------------------------------------------------------------------------------------- */

TEST_RANKS(traces, "1,2")(tw_comm_t *comm)
{
    tw_trace_event_t event;
    op_call_t call;
    REFUSED(tw_trace_start(NULL, 1), TW_ERR_ARGUMENT, "comm is NULL");
    REFUSED(tw_trace_event(NULL, 0, &event), TW_ERR_ARGUMENT, "comm is NULL");
    REFUSED(tw_trace_event(comm, 0, NULL), TW_ERR_ARGUMENT, "event_out is NULL");
    REFUSED(tw_trace_event(comm, 0, &event), TW_ERR_NOT_FOUND, "no trace was started");
    op_open(&call);
    make_ones(&call, 0);
    CHECK_OK(tw_trace_start(comm, 1000));
    REFUSED(tw_trace_event(comm, 0, &event), TW_ERR_NOT_FOUND, "index is 0, there are 0 events");
    CHECK_OK(tw_mm_all_reduce(comm, &call.reduce));
    CHECK_OK(tw_trace_event(comm, 0, &event));
    CHECK(event.what[0] != '\0');
    CHECK(event.begin_ns <= event.end_ns);
    CHECK_STATUS(tw_trace_event(comm, 1000, &event), TW_ERR_NOT_FOUND);
    CHECK_OK(tw_trace_start(comm, 0));
    CHECK_STATUS(tw_trace_event(comm, 0, &event), TW_ERR_NOT_FOUND);
    op_close(&call);
}
