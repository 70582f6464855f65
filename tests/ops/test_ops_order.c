/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In what order a rank works, from its trace: rows of the next rank first and own rows last, so that ranks bring
 * theirs to different ones; the largest expert first; and what needs no peer without waiting for one. One worker
 * a rank, so that there is an order.
 */
#define _GNU_SOURCE
#include "ops/op.h"
#include "ops/ops_call.h"

enum { RANKS = 3, EVENTS = 1000 };

static const op_types_t types = {"bf16", MM_BF16, TWI_BFP16, TWI_BFP16, 0, false};

typedef struct trace {
    tw_trace_event_t events[EVENTS];
    int n;
} trace_t;

static void read_trace(tw_comm_t *comm, trace_t *trace)
{
    trace->n = 0;
    while (trace->n < EVENTS && tw_trace_event(comm, (size_t)trace->n, &trace->events[trace->n]) == TW_OK)
        trace->n++;
    CHECK(trace->n > 0 && trace->n < EVENTS);
}

static void run_traced(tw_comm_t *comm, const op_case_t *c, op_call_t *call, trace_t *trace)
{
    op_call_open(call, c, tw_comm_rank(comm));
    CHECK_OK(tw_trace_start(comm, EVENTS));
    CHECK_OK(op_call_run(call, comm));
    read_trace(comm, trace);
}

static bool is(const tw_trace_event_t *event, const char *what)
{
    return strcmp(event->what, what) == 0;
}

static void run_ranks(tw_transport_t transport, void (*body)(tw_comm_t *, void *))
{
    ranks_args_t args = RANKS_ARGS_INIT;
    args.transport = transport;
    args.n = RANKS;
    CHECK_EQ(setenv("TILEWIRE_THREADS", "1", 1), 0);
    ranks_run(&args, body, NULL);
}

#define TEST_ORDER(name)                       \
    TEST(name##_threads)                       \
    {                                          \
        run_ranks(TW_TRANSPORT_THREADS, name); \
    }                                          \
    TEST(name##_shm)                           \
    {                                          \
        run_ranks(TW_TRANSPORT_SHM, name);     \
    }

/* ---- Sums ------------------------------------------------------------------------------------- */

/* The first product is of the next rank's first row, and without own rows; the last one has some. */
static void check_owners(int rank, int64_t share, const trace_t *trace)
{
    const tw_trace_event_t *first = NULL, *last = NULL;
    for (int i = 0; i < trace->n; i++)
        if (is(&trace->events[i], "product") || is(&trace->events[i], "product, sum")) {
            first = first ? first : &trace->events[i];
            last = &trace->events[i];
        }
    CHECK(first != NULL);
    CHECK_STR(first->what, "product");
    CHECK_EQ(first->row, (rank + 1) % RANKS * share);
    CHECK_STR(last->what, "product, sum");
}

static void next_rank_first(tw_comm_t *comm, void *arg)
{
    static trace_t traces[RANKS];
    static const int64_t shares[] = {200, 1000};
    const int rank = tw_comm_rank(comm);
    (void)arg;
    for (int i = 0; i < 2; i++) {
        op_case_t c = {.kind = OP_MM_REDUCE_SCATTER, .types = &types, .size = RANKS, .seed = 1, .k = 8, .n = 40};
        op_call_t call;
        c.m = RANKS * shares[i];
        c.rounds = 1;
        run_traced(comm, &c, &call, &traces[rank]);
        check_owners(rank, shares[i], &traces[rank]);
        op_call_close(&call);
    }
}
TEST_ORDER(next_rank_first)

/* ---- Experts ---------------------------------------------------------------------------------- */

static op_case_t grouped_case(op_kind_t kind)
{
    return (op_case_t){.kind = kind,
                       .types = &types,
                       .size = RANKS,
                       .seed = 1,
                       .m = 300,
                       .k = 8,
                       .n = 16,
                       .rounds = 1,
                       .experts = 4,
                       .spread = OP_UNEVEN,
                       .shared_m = 10,
                       .shared_k = 10,
                       .shared_n = 10};
}

/* The expert of a row of gmm_x; its first row, its rows, and the first row for the next rank. */
typedef struct expert {
    int64_t begin, rows, next;
} expert_t;

static expert_t expert_of(const op_call_t *call, int64_t row)
{
    const op_case_t *c = &call->what;
    const int next = (call->rank + 1) % RANKS;
    expert_t it = {.begin = 0};
    for (int64_t j = 0; j < c->experts; j++) {
        it = (expert_t){.begin = it.begin + it.rows, .next = it.begin + it.rows};
        for (int d = 0; d < RANKS; d++) {
            it.rows += call->in.send[d * c->experts + j];
            it.next += d < next ? call->in.send[d * c->experts + j] : 0;
        }
        if (row < it.begin + it.rows)
            break;
    }
    return it;
}

/* Experts come one after the other, never a larger one; of more than a strip, rows for the next rank come first. */
static int check_experts(const op_call_t *call, const trace_t *trace)
{
    expert_t before = {.begin = -1, .rows = INT64_MAX};
    int n = 0;
    for (int i = 0; i < trace->n; i++) {
        const tw_trace_event_t *event = &trace->events[i];
        if (!is(event, "product"))
            continue;
        const expert_t at = expert_of(call, event->row);
        if (at.begin == before.begin)
            continue;
        CHECK(at.rows <= before.rows);
        CHECK_EQ(event->row, at.rows > TWI_STRIP_ROWS ? at.next : at.begin);
        n += at.rows > TWI_STRIP_ROWS && at.next != at.begin;
        before = at;
    }
    return n;
}

static void largest_expert_first(tw_comm_t *comm, void *arg)
{
    static trace_t traces[RANKS];
    trace_t *trace = &traces[tw_comm_rank(comm)];
    const op_case_t c = grouped_case(OP_GMM_ALLTOALLV);
    op_call_t call;
    (void)arg;
    run_traced(comm, &c, &call, trace);
    const int n = check_experts(&call, trace);
    CHECK(n > 1 || call.rank == RANKS - 1);
    op_call_close(&call);
}
TEST_ORDER(largest_expert_first)

/* ---- The shared expert ------------------------------------------------------------------------- */

static bool has_shared(const op_call_t *call)
{
    static const char none[] = {'\xff', '\xff'};
    const mm_rows_t *y = &call->out[OP_SHARED_Y];
    const size_t last = (size_t)((y->rows - 1) * y->ld + y->columns - 1) * y->item;
    return memcmp(y->room.data + last, none, sizeof none) != 0;
}

/* Rank 0 has its product before anybody else calls. */
static void try_shared(tw_comm_t *comm, op_kind_t kind)
{
    const op_case_t c = grouped_case(kind);
    op_call_t call;
    tw_op_t *op = NULL;
    op_call_open(&call, &c, tw_comm_rank(comm));
    CHECK_OK(op_call_prepare(&call, comm, &op));
    if (call.rank == 0) {
        CHECK_OK(tw_op_start(op));
        for (int i = 0; i < 10000 && !has_shared(&call); i++)
            CHECK_STATUS(tw_op_test(op), TW_IN_PROGRESS);
        CHECK(has_shared(&call));
    }
    ranks_barrier();
    if (call.rank > 0)
        CHECK_OK(tw_op_start(op));
    CHECK_OK(tw_op_wait(op, 0));
    tw_op_release(op);
    op_call_close(&call);
}

static void shared_expert_waits_for_nobody(tw_comm_t *comm, void *arg)
{
    (void)arg;
    try_shared(comm, OP_GMM_ALLTOALLV);
    try_shared(comm, OP_ALLTOALLV_GMM);
}
TEST_ORDER(shared_expert_waits_for_nobody)
