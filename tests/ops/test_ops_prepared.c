/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prepared operators: started many times with other contents in the same memory, driven by test, by wait,
 * and by waits that end early; what fits no state is refused and changes nothing.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>

#include "base/hash.h"
#include "ops/ops_sample.h"

static const uint64_t default_seed = 0x6f70737072657031u;

/* A case of every operator; way 0 is small, others have several strips and rounds. */
static op_case_t case_of(op_kind_t kind, int size, int way, panels_random_t *random)
{
    op_case_t c = op_sample_any(size, (int)kind, random);
    c.tight = false;
    if (way > 0) {
        c.m = op_grouped(kind) ? 40 / size + 1 : 100 / size * (int64_t)size;
        c.n = 150;
        c.shared_n = c.shared_k ? 150 : 0;
    }
    return c;
}

/* Puts the inputs of another seed where those of a call are; bias and scales too, weights unless packed. */
static void renew_vector(void *to, const void *from, size_t bytes)
{
    if (to)
        memcpy(to, from, bytes);
}

static void renew_rows(mm_rows_t *it, const void *values)
{
    const size_t bytes = (size_t)it->columns * it->item;
    for (int64_t i = 0; i < it->rows && bytes > 0; i++)
        memcpy(it->room.data + (size_t)(i * it->ld) * it->item, (const char *)values + (size_t)i * bytes, bytes);
}

static void renew_right(op_side_t *side, const mm_product_t *p, mm_layout_t layout)
{
    const int item = panels_item_bytes(mm_right_kind(p->type));
    const int64_t matrices = p->experts ? p->experts : 1, one = mm_matrix_elements(layout, item, p->k, p->n);
    for (int64_t at = 0; at < matrices * p->k * p->n; at++) {
        const int64_t e = at / (p->k * p->n), i = at / p->n % p->k, j = at % p->n;
        memcpy(side->weights.right.room.data + (e * one + mm_place(layout, item, p->k, p->n, i, j)) * item,
               (const char *)p->b + at * item, (size_t)item);
    }
}

/* Everything changes but what is packed, the counts and the scales of weights. */
static op_case_t renew(op_call_t *call, op_case_t c)
{
    op_inputs_t in;
    const size_t n = (size_t)c.n;
    c.renewed++;
    op_inputs_open(&in, &c, call->rank);
    renew_rows(&call->x1, in.product.a);
    renew_right(&call->right, &in.product, c.layout);
    if (c.shared_k) {
        renew_rows(&call->shared_x, in.shared.a);
        renew_right(&call->shared, &in.shared, c.layout);
    }
    renew_vector(call->in.bias, in.bias, n * twi_dtype_bytes(c.types->bias));
    renew_vector(call->in.tokens, in.tokens, (size_t)c.m * 4);
    renew_vector(call->in.pattern, in.pattern, n * 8);
    renew_vector(call->in.comm_scale[0], in.comm_scale[0], n * 2);
    renew_vector(call->in.comm_scale[1], in.comm_scale[1], n * 2);
    if (in.x3)
        renew_rows(&call->x3, in.x3);
    op_inputs_close(&in);
    return c;
}

/* ---- Ways to the end ---------------------------------------------------------------------------- */

static void finish_by_wait(tw_op_t *op)
{
    CHECK_OK(tw_op_wait(op, 0));
}

static void finish_by_test(tw_op_t *op)
{
    tw_status_t status;
    while ((status = tw_op_test(op)) == TW_IN_PROGRESS)
        (void)sched_yield();
    CHECK_OK(status);
}

/* Waits of a nanosecond and tests in turn. */
static void finish_by_both(tw_op_t *op)
{
    tw_status_t status = TW_IN_PROGRESS;
    for (int i = 0; status == TW_IN_PROGRESS; i++)
        status = i % 2 ? tw_op_test(op) : tw_op_wait(op, 1);
    CHECK_OK(status);
}

static void (*const finish[])(tw_op_t *) = {finish_by_wait, finish_by_test, finish_by_both};

/* What is finished stays so. */
static void check_finished(tw_op_t *op)
{
    CHECK_OK(tw_op_wait(op, 0));
    CHECK_OK(tw_op_test(op));
}

static void check_not_started(tw_op_t *op)
{
    REFUSED(tw_op_wait(op, 0), TW_ERR_STATE, "op has not been started");
    REFUSED(tw_op_test(op), TW_ERR_STATE, "op has not been started");
}

/* ---- Repeated starts ---------------------------------------------------------------------------- */

/* Contents can change where they are read at each start: not in packed weights, scales of weights and counts. */
static bool renewable(const op_case_t *c)
{
    return !c->packed && !mm_quantised(c->types->type);
}

static void start_often(tw_comm_t *comm, op_case_t c)
{
    const int rank = tw_comm_rank(comm);
    op_call_t call;
    tw_op_t *op = NULL;
    op_call_open(&call, &c, rank);
    CHECK_OK(op_call_prepare(&call, comm, &op));
    CHECK(op != NULL);
    for (int i = 0; i < 6; i++) {
        op_wanted_t wanted;
        if (i > 0 && renewable(&c))
            c = renew(&call, c);
        op_wanted_open(&wanted, &c, rank);
        op_call_clear(&call);
        CHECK_OK(tw_op_start(op));
        finish[(i + rank) % MM_LENGTH(finish)](op);
        op_check(&call, &wanted);
        check_finished(op);
        op_wanted_close(&wanted);
    }
    tw_op_release(op);
    op_call_close(&call);
}

static void start_all(tw_comm_t *comm, void *arg)
{
    (void)arg;
    const int times = tw_comm_size(comm) > 4 ? 2 : 4;
    panels_random_t random = panels_random(default_seed);
    for (int i = 0; i < times * OP_KINDS; i++) {
        op_case_t c = case_of((op_kind_t)(i % OP_KINDS), tw_comm_size(comm), i / OP_KINDS % 2, &random);
        c.packed = i / OP_KINDS == times - 1;
        start_often(comm, c);
    }
}

TEST_RANKS(starts, "1,2,3,8")(tw_comm_t *comm)
{
    start_all(comm, NULL);
}

/* Workers share strips, whose panels are packed anew at each start. */
TEST(starts_of_teams)
{
    const ranks_args_t args = RANKS_ARGS_INIT;
    CHECK_EQ(setenv("TILEWIRE_THREADS", "3", 1), 0);
    ranks_run(&args, start_all, NULL);
}

/* Operators that were prepared together, started in an order of their own, some of them blocking. */
TEST_RANKS(several, "2,3")(tw_comm_t *comm)
{
    enum { OPS = 10 };
    const int rank = tw_comm_rank(comm);
    panels_random_t random = panels_random(default_seed);
    op_call_t calls[OPS];
    op_wanted_t wanted[OPS];
    tw_op_t *ops[OPS] = {0};
    for (int i = 0; i < OPS; i++) {
        const op_case_t c = case_of((op_kind_t)(i % OP_KINDS), tw_comm_size(comm), i % 2, &random);
        op_call_open(&calls[i], &c, rank);
        op_wanted_open(&wanted[i], &c, rank);
        CHECK_OK(op_call_prepare(&calls[i], comm, &ops[i]));
    }
    for (int i = 0; i < 60; i++) {
        const int which = (int)panels_below(&random, OPS);
        op_call_clear(&calls[which]);
        if (i % 5 == 0) {
            CHECK_OK(op_call_run(&calls[which], comm));
        } else {
            CHECK_OK(tw_op_start(ops[which]));
            finish[(i + rank) % MM_LENGTH(finish)](ops[which]);
        }
        op_check(&calls[which], &wanted[which]);
    }
    for (int i = 0; i < OPS; i++) {
        tw_op_release(ops[i]);
        op_call_close(&calls[i]);
        op_wanted_close(&wanted[i]);
    }
}

/* The counts and the structs are not needed after prepare. */
TEST_RANKS(structs_forgotten, "2")(tw_comm_t *comm)
{
    panels_random_t random = panels_random(default_seed);
    for (int i = 0; i < 2 * OP_KINDS; i++) {
        const op_case_t c = case_of((op_kind_t)(i % OP_KINDS), tw_comm_size(comm), i % 2, &random);
        op_call_t call;
        op_wanted_t wanted;
        tw_op_t *op = NULL;
        op_call_open(&call, &c, tw_comm_rank(comm));
        op_wanted_open(&wanted, &c, tw_comm_rank(comm));
        CHECK_OK(op_call_prepare(&call, comm, &op));
        memset(&call.args, 0xee, sizeof call.args);
        memset(call.x1.view.shape, 0xee, sizeof call.x1.view.shape);
        memset(call.out[OP_Y].view.strides, 0xee, sizeof call.out[OP_Y].view.strides);
        if (call.in.send) {
            memset(call.in.send, 0xee, (size_t)(c.size * c.experts) * 8);
            memset(call.in.recv, 0xee, (size_t)(c.size * c.experts) * 8);
        }
        CHECK_OK(tw_op_start(op));
        CHECK_OK(tw_op_wait(op, 0));
        op_check(&call, &wanted);
        tw_op_release(op);
        op_call_close(&call);
        op_wanted_close(&wanted);
    }
}

/* ---- States ------------------------------------------------------------------------------------- */

TEST_RANKS(states, "1,2")(tw_comm_t *comm)
{
    panels_random_t random = panels_random(default_seed);
    tw_op_release(NULL);
    for (int kind = 0; kind < OP_KINDS; kind++) {
        const op_case_t c = case_of((op_kind_t)kind, tw_comm_size(comm), 1, &random);
        op_call_t call, other_call;
        op_wanted_t wanted;
        tw_op_t *op = NULL, *other = NULL;
        op_call_open(&call, &c, tw_comm_rank(comm));
        op_call_open(&other_call, &c, tw_comm_rank(comm));
        op_wanted_open(&wanted, &c, tw_comm_rank(comm));
        CHECK_OK(op_call_prepare(&call, comm, &op));
        CHECK_OK(op_call_prepare(&other_call, comm, &other));
        check_not_started(op);
        CHECK_OK(tw_op_start(op));
        CHECK_STATUS(tw_op_start(op), TW_ERR_STATE);
        CHECK_STATUS(tw_op_start(other), TW_ERR_STATE);
        CHECK_STATUS(op_call_run(&other_call, comm), TW_ERR_STATE);
        check_not_started(other);
        CHECK_OK(tw_op_wait(op, 0));
        op_check(&call, &wanted);
        CHECK_OK(tw_op_start(other));
        CHECK_OK(tw_op_wait(other, 0));
        op_check(&other_call, &wanted);
        tw_op_release(other);
        tw_op_release(op);
        op_call_close(&call);
        op_call_close(&other_call);
        op_wanted_close(&wanted);
    }
}

typedef struct late {
    atomic_int seen; /* ranks that saw that it is not finished */
} late_t;

/* The last rank starts when all others have seen that nothing can be finished without it. */
static void late_body(tw_comm_t *comm, void *arg)
{
    late_t *late = arg;
    const int size = tw_comm_size(comm), rank = tw_comm_rank(comm);
    panels_random_t random = panels_random(default_seed);
    for (int kind = 0; kind < OP_KINDS; kind++) {
        op_case_t c = case_of((op_kind_t)kind, size, 1, &random);
        c.spread = OP_EVEN; /* everybody needs everybody */
        op_call_t call;
        op_wanted_t wanted;
        tw_op_t *op = NULL;
        op_call_open(&call, &c, rank);
        op_wanted_open(&wanted, &c, rank);
        CHECK_OK(op_call_prepare(&call, comm, &op));
        if (rank == size - 1)
            while (atomic_load(&late->seen) < (kind + 1) * (size - 1))
                (void)sched_yield();
        CHECK_OK(tw_op_start(op));
        if (rank < size - 1) {
            CHECK_STATUS(tw_op_wait(op, 1000000), TW_IN_PROGRESS);
            CHECK_STATUS(tw_op_test(op), TW_IN_PROGRESS);
            CHECK_STATUS(tw_op_start(op), TW_ERR_STATE);
            (void)atomic_fetch_add(&late->seen, 1);
        }
        CHECK_OK(tw_op_wait(op, 0));
        op_check(&call, &wanted);
        tw_op_release(op);
        op_call_close(&call);
        op_wanted_close(&wanted);
    }
}

static void late_ranks(tw_transport_t transport)
{
    ranks_args_t args = RANKS_ARGS_INIT;
    args.transport = transport;
    args.n = 3;
    ranks_run(&args, late_body, test_shared_alloc(sizeof(late_t)));
}

TEST(late_threads)
{
    late_ranks(TW_TRANSPORT_THREADS);
}
TEST(late_shm)
{
    late_ranks(TW_TRANSPORT_SHM);
}

/* All ranks say the same, but for their workers. */
static void check_same_text(const tw_comm_t *comm, const char *text)
{
    enum { MAX_RANKS = 3 };
    const char *end = strstr(text, " ranks, ");
    uint64_t hash = 0, every[MAX_RANKS];
    CHECK(end != NULL);
    for (const char *at = text; at < end; at++)
        hash = twi_hash_mix(hash, (uint8_t)*at);
    CHECK_EQ(ranks_allgather(NULL, &hash, every, sizeof hash), 0);
    for (int rank = 0; rank < tw_comm_size(comm); rank++)
        CHECK(every[rank] == hash);
}

/* The text says something, is cut off at its room, and is the same on all ranks unless these have rows of their own. */
TEST_RANKS(explain, "1,3")(tw_comm_t *comm)
{
    panels_random_t random = panels_random(default_seed);
    for (int i = 0; i < 2 * OP_KINDS; i++) {
        const op_case_t c = case_of((op_kind_t)(i % OP_KINDS), tw_comm_size(comm), i % 2, &random);
        op_call_t call;
        tw_op_t *op = NULL;
        char text[2048], cut[17];
        memset(text, 'x', sizeof text);
        memset(cut, 'x', sizeof cut);
        op_call_open(&call, &c, tw_comm_rank(comm));
        CHECK_OK(op_call_prepare(&call, comm, &op));
        CHECK_OK(tw_op_explain(op, text, sizeof text));
        CHECK(memchr(text, '\0', sizeof text) != NULL && strlen(text) > 10);
        CHECK_OK(tw_op_explain(op, cut, 16));
        CHECK_EQ(cut[15], '\0');
        CHECK_EQ(cut[16], 'x');
        CHECK(strncmp(cut, text, 15) == 0);
        if (!op_grouped(c.kind))
            check_same_text(comm, text);
        tw_op_release(op);
        op_call_close(&call);
    }
}

/* Released while it runs: the communicator is lost and says so, nothing else happens. */
TEST_RANKS(released_running, "2")(tw_comm_t *comm)
{
    panels_random_t random = panels_random(default_seed);
    const op_case_t c = case_of(OP_MM_ALL_REDUCE, 2, 1, &random);
    op_call_t call;
    tw_op_t *op = NULL;
    op_call_open(&call, &c, tw_comm_rank(comm));
    CHECK_OK(op_call_prepare(&call, comm, &op));
    CHECK_OK(tw_op_start(op));
    if (tw_comm_rank(comm) == 0) {
        tw_op_release(op);
        CHECK(tw_comm_status(comm) != TW_OK);
    } else {
        CHECK(tw_op_wait(op, 0) < 0);
        CHECK_CONTAINS(tw_last_error(), "rank 0");
        tw_op_release(op);
    }
    CHECK(op_call_run(&call, comm) < 0);
    ranks_barrier();
    tw_comm_abort(comm, NULL);
    op_call_close(&call);
}
