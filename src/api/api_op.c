/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a fused operator: made from checked arguments, started, driven to its end, released; and traces. */
#include "api/api_op.h"

#include <stdlib.h>
#include <string.h>

#include "api/profile.h"
#include "base/clock.h"

enum { PACK_ROWS = 256 }; /* a product of more rows takes a plain x2 more than once */

/* ---- Limits ------------------------------------------------------------------------------------ */

static twi_profile_mode_t mode_of(const twi_api_product_t *p)
{
    if (p->problem.kind == TWI_GEMM_S8)
        return TWI_PROFILE_A8W8;
    const bool quantised = p->problem.weight ? p->problem.weight->group > 0 : p->right.scale.tensor != NULL;
    return quantised ? TWI_PROFILE_A16W8 : TWI_PROFILE_FLOAT;
}

static tw_status_t check_limits(const tw_op_t *op)
{
    const twi_api_product_t *p = &op->product, *shared = &op->shared;
    const twi_op_problem_t *problem = &op->problem;
    const int64_t experts = p->problem.n_groups;
    const tw_weight_t *weight = p->problem.weight;
    const bool transposed = weight ? weight->transposed : twi_gemm_matrix_transposed(&p->right.first);
    const twi_profile_call_t call = {
        .kind = problem->kind,
        .mode = mode_of(p),
        .world = tw_comm_size(op->comm),
        .m = p->problem.m,
        .k = p->problem.k,
        .n = p->problem.n,
        .stored = transposed ? p->problem.k : p->problem.n,
        .nz = weight ? weight->nz : p->args.format == TW_FORMAT_NZ,
        .bsk = problem->kind == TWI_OP_ALLTOALLV_GMM ? twi_tensor_count(p->args.x1, 0, 1) : p->y_rows,
        .experts = experts,
        .n_counts = experts * tw_comm_size(op->comm),
        .send_counts = problem->send_counts,
        .recv_counts = problem->recv_counts,
        .shared = shared->args.x1 != NULL,
        .bs = shared->problem.m,
        .h2 = shared->problem.k,
        .n2 = shared->problem.n,
    };
    return twi_profile_check(op->comm->profile, &call);
}

static tw_status_t check_profile(const tw_op_t *op)
{
    tw_comm_t *comm = op->comm;
    char other[TW_NAME_MAX + 1];
    if (comm->profile == TW_PROFILE_NONE)
        return TW_OK;
    TW_TRY(check_limits(op));
    if (comm->profile != TW_PROFILE_A2 || twi_comm_table_fuse(comm, other))
        return TW_OK;
    return twi_fail(TW_ERR_ARGUMENT,
                    "profile a2: comm is '%s', but operators of this process use '%s', and one communicator is allowed",
                    tw_comm_name(comm), other);
}

/* ---- Prepared operators of a communicator -------------------------------------------------------- */

/* Of all lists, and of op->comm of what is in one: an operator may be released while its communicator is destroyed. */
static pthread_mutex_t g_prepared_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t g_released = PTHREAD_COND_INITIALIZER; /* some `releasing` is less */

static void link_op(tw_op_t *op)
{
    tw_comm_t *comm = op->comm;
    (void)pthread_mutex_lock(&g_prepared_lock);
    op->next = comm->prepared;
    if (op->next)
        op->next->before = op;
    comm->prepared = op;
    (void)pthread_mutex_unlock(&g_prepared_lock);
}

/* With the lock. Fine for one that is not linked: its preparation failed. */
static void unlink_op(tw_op_t *op)
{
    if (op->next)
        op->next->before = op->before;
    if (op->before)
        op->before->next = op->next;
    else if (op->comm->prepared == op)
        op->comm->prepared = op->next;
}

static tw_status_t check_op(const tw_op_t *op)
{
    TW_REQUIRE(op, "op is NULL");
    return op->comm ? TW_OK : twi_fail(TW_ERR_STATE, "the communicator of op has been destroyed");
}

/* ---- Making ------------------------------------------------------------------------------------ */

/* The structs of the call go away: what they say is copied. */
static tw_status_t detach(tw_op_t *op)
{
    twi_op_problem_t *problem = &op->problem;
    const size_t n = (size_t)op->product.problem.n_groups * (size_t)tw_comm_size(op->comm);
    twi_api_product_keep(&op->product, op->kept);
    for (int i = 0; i < 2; i++)
        twi_api_table_keep(&op->comm_scale[i], &op->kept[TWI_API_PRODUCT_VIEWS + i]);
    if (!problem->send_counts)
        return TW_OK;
    int64_t *counts = twi_arena_take(&op->memory->plan, 2 * n, sizeof *counts);
    if (!counts)
        return twi_fail(TW_ERR_NO_MEMORY, "no memory for %zu counts", 2 * n);
    memcpy(counts, problem->send_counts, n * sizeof *counts);
    memcpy(counts + n, problem->recv_counts, n * sizeof *counts);
    problem->send_counts = counts;
    problem->recv_counts = counts + n;
    return TW_OK;
}

/* A product of many rows takes x2 again and again: packed once a run. */
static tw_status_t pack_right(tw_op_t *op, twi_api_product_t *p, int64_t rows, int which)
{
    twi_buffer_t *packed = &op->memory->packed[which];
    size_t bytes = 0;
    if (rows > PACK_ROWS)
        TW_TRY(twi_api_product_own_bytes(p, &bytes));
    if (bytes == 0)
        return TW_OK;
    if (!twi_buffer_grow(packed, bytes))
        return twi_fail(TW_ERR_NO_MEMORY, "no memory to pack %s, %zu bytes", p->args.form->x2, bytes);
    return twi_api_product_own(p, packed->data);
}

/* The problem, and the memory that it refers to. */
static tw_status_t bind(tw_op_t *op)
{
    twi_op_problem_t *problem = &op->problem;
    twi_api_product_place(&op->product, &op->scratch);
    if (problem->has_shared)
        twi_api_product_place(&op->shared, &op->scratch);
    for (int i = 0; i < 2; i++)
        twi_api_table_place(&op->comm_scale[i], &op->scratch);
    TW_TRY(twi_api_scratch_take(&op->scratch, &op->memory->plan));
    twi_api_product_bind(&op->product, &op->scratch);
    TW_TRY(pack_right(op, &op->product, op->product_rows, 0));
    problem->product = op->product.problem;
    if (problem->has_shared) {
        twi_api_product_bind(&op->shared, &op->scratch);
        TW_TRY(pack_right(op, &op->shared, op->shared.problem.m, 1));
        problem->shared = op->shared.problem;
    }
    problem->comm_scale_1 = twi_api_table_at(&op->comm_scale[0], &op->scratch);
    problem->comm_scale_2 = twi_api_table_at(&op->comm_scale[1], &op->scratch);
    return TW_OK;
}

static tw_status_t find_ops(tw_comm_t *comm)
{
    twi_gemm_space_t *space;
    if (comm->ops)
        return TW_OK;
    TW_TRY(twi_comm_space(comm, &space));
    return twi_ops_create(comm->engine, comm->transport, comm->team, &comm->ops);
}

/* op->comm and memory are set. */
static tw_status_t build(tw_op_t *op, twi_api_op_check_fn *check, const void *args)
{
    TW_TRY(check(op, args));
    TW_TRY(check_profile(op));
    if (op->memory == &op->own)
        TW_TRY(detach(op));
    TW_TRY(bind(op));
    TW_TRY(find_ops(op->comm));
    return twi_op_create(op->comm->ops, &op->problem, op->memory, &op->op);
}

static tw_status_t prepare(tw_comm_t *comm, twi_api_op_check_fn *check, const void *args, tw_op_t **op_out)
{
    tw_op_t *op = calloc(1, sizeof *op);
    if (!op)
        return twi_fail(TW_ERR_NO_MEMORY, "no memory for an operator");
    op->comm = comm;
    op->memory = &op->own;
    const tw_status_t status = build(op, check, args);
    if (status != TW_OK) {
        tw_op_release(op);
        return status;
    }
    link_op(op);
    *op_out = op;
    return TW_OK;
}

/* ---- Running ----------------------------------------------------------------------------------- */

static tw_status_t start(tw_op_t *op)
{
    TW_TRY(twi_comm_no_session(op->comm, "comm"));
    if (op->started)
        return twi_fail(TW_ERR_STATE, "op has been started and not been waited for");
    twi_api_product_fill(&op->product, &op->scratch);
    if (op->problem.has_shared)
        twi_api_product_fill(&op->shared, &op->scratch);
    for (int i = 0; i < 2; i++)
        (void)twi_api_table_fill(&op->comm_scale[i], &op->scratch);
    const twi_gemm_problem_t *product = &op->problem.product;
    TW_TRY(twi_profile_check_bias(op->comm->profile, op->problem.kind, product->epilogue.fbias, product->n));
    TW_TRY(twi_op_start(op->op));
    op->started = true;
    op->ran = false;
    return TW_OK;
}

/* Notes a result when there is one. */
static tw_status_t settle(tw_op_t *op, tw_status_t status)
{
    if (status != TW_IN_PROGRESS) {
        op->started = false;
        op->ran = true;
        op->result = status;
    }
    return status;
}

/* What test and wait say of an operator that does not run. */
static tw_status_t at_rest(const tw_op_t *op)
{
    if (!op->ran)
        return twi_fail(TW_ERR_STATE, "op has not been started");
    if (op->result != TW_OK)
        return twi_fail(op->result, "op has failed, and communicator '%s' is lost", tw_comm_name(op->comm));
    return TW_OK;
}

tw_status_t twi_api_op_run(tw_comm_t *comm, twi_api_op_check_fn *check, const void *args)
{
    TW_REQUIRE(comm, "comm is NULL");
    TW_TRY(twi_comm_no_session(comm, "comm"));
    TW_TRY(twi_comm_enter(comm));
    tw_op_t op = {.comm = comm, .memory = &comm->memory};
    tw_status_t status = build(&op, check, args);
    if (status == TW_OK)
        status = start(&op);
    if (status == TW_OK)
        status = twi_op_wait(op.op, UINT64_MAX);
    twi_op_destroy(op.op);
    twi_op_memory_clear(&comm->memory);
    twi_comm_leave(comm);
    return status;
}

tw_status_t twi_api_op_prepare(tw_comm_t *comm, twi_api_op_check_fn *check, const void *args, tw_op_t **op_out)
{
    TW_REQUIRE(comm, "comm is NULL");
    TW_REQUIRE(op_out, "op_out is NULL");
    TW_TRY(twi_comm_enter(comm));
    const tw_status_t status = prepare(comm, check, args, op_out);
    twi_comm_leave(comm);
    return status;
}

tw_status_t tw_op_start(tw_op_t *op)
{
    TW_TRY(check_op(op));
    TW_TRY(twi_comm_enter(op->comm));
    const tw_status_t status = start(op);
    twi_comm_leave(op->comm);
    return status;
}

static uint64_t deadline(uint64_t timeout_ns)
{
    uint64_t until;
    return timeout_ns == 0 || __builtin_add_overflow(twi_now_ns(), timeout_ns, &until) ? UINT64_MAX : until;
}

static tw_status_t drive(tw_op_t *op, bool wait, uint64_t timeout_ns)
{
    TW_TRY(check_op(op));
    if (!op->started)
        return at_rest(op);
    TW_TRY(twi_transport_check_own(op->comm->transport));
    TW_TRY(twi_comm_enter(op->comm));
    const tw_status_t status = settle(op, wait ? twi_op_wait(op->op, deadline(timeout_ns)) : twi_op_test(op->op));
    twi_comm_leave(op->comm);
    return status;
}

tw_status_t tw_op_test(tw_op_t *op)
{
    return drive(op, false, 0);
}

tw_status_t tw_op_wait(tw_op_t *op, uint64_t timeout_ns)
{
    return drive(op, true, timeout_ns);
}

tw_status_t tw_op_explain(const tw_op_t *op, char *text, size_t bytes)
{
    TW_TRY(check_op(op));
    TW_REQUIRE(text, "text is NULL");
    TW_REQUIRE(bytes > 0, "bytes is 0, must be at least 1");
    twi_op_explain(op->op, text, bytes);
    return TW_OK;
}

void tw_op_release(tw_op_t *op)
{
    if (!op)
        return;
    (void)pthread_mutex_lock(&g_prepared_lock);
    tw_comm_t *comm = op->comm;
    const bool runs = comm && op->started;
    if (comm)
        unlink_op(op);
    if (runs)
        comm->releasing++; /* it stays until we are done, but without the lock: that an operator is ended is logged */
    (void)pthread_mutex_unlock(&g_prepared_lock);
    if (runs) {
        twi_op_destroy(op->op);
        (void)pthread_mutex_lock(&g_prepared_lock);
        comm->releasing--;
        (void)pthread_cond_broadcast(&g_released);
        (void)pthread_mutex_unlock(&g_prepared_lock);
    }
    twi_op_memory_drop(&op->own);
    free(op);
}

void twi_comm_ops_end(tw_comm_t *comm)
{
    (void)pthread_mutex_lock(&g_prepared_lock);
    while (comm->releasing > 0 && !twi_transport_inherited(comm->transport)) /* the threads of a parent are not here */
        (void)pthread_cond_wait(&g_released, &g_prepared_lock);
    for (tw_op_t *op = comm->prepared; op; op = op->next) {
        op->op = NULL; /* one that runs is left to its peers, who see us leave */
        op->comm = NULL;
    }
    (void)pthread_mutex_unlock(&g_prepared_lock);
    twi_ops_destroy(comm->ops);
    comm->ops = NULL;
    twi_op_memory_drop(&comm->memory);
}

/* ---- Traces ------------------------------------------------------------------------------------ */

tw_status_t tw_trace_start(tw_comm_t *comm, size_t n_events)
{
    TW_REQUIRE(comm, "comm is NULL");
    TW_TRY(twi_comm_enter(comm));
    tw_status_t status = find_ops(comm);
    if (status == TW_OK)
        status = twi_ops_trace_start(comm->ops, n_events);
    twi_comm_leave(comm);
    return status;
}

tw_status_t tw_trace_event(tw_comm_t *comm, size_t index, tw_trace_event_t *event_out)
{
    TW_REQUIRE(comm, "comm is NULL");
    TW_REQUIRE(event_out, "event_out is NULL");
    if (!comm->ops)
        return twi_fail(TW_ERR_NOT_FOUND, "no event %zu: no trace was started", index);
    return twi_ops_trace_event(comm->ops, index, event_out);
}
