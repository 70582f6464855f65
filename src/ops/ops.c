/* SPDX-License-Identifier: Apache-2.0 */
/* Operators from their making to their end, and what a communicator keeps for them. See ops.h. */
#include "ops/ops.h"

#include <stdlib.h>
#include <string.h>

#include "base/sizes.h"
#include "ops/products.h"

#define ALONE_OPERATIONS 2e6 /* of a product that is over before a team has woken up */

static const twi_op_class_t *const classes[] = {
#define TW_OP(NAME, name) &twi_op_##name,
#include "ops/ops.def"
#undef TW_OP
};

const char *twi_op_kind_name(uint32_t kind)
{
    static const char *const names[] = {
#define TW_OP(NAME, name) #name,
#include "ops/ops.def"
#undef TW_OP
    };
    return kind < TWI_OP_KINDS ? names[kind] : "unknown operator";
}

size_t twi_ops_board_bytes(void)
{
    return sizeof(twi_ops_board_t);
}

/* ---- What a communicator keeps ----------------------------------------------------------------- */

tw_status_t twi_ops_create(twi_engine_t *engine, twi_transport_t *transport, twi_team_t *team, twi_ops_t **ops_out)
{
    twi_ops_t *ops = calloc(1, sizeof *ops);
    if (!ops)
        return twi_fail(TW_ERR_NO_MEMORY, "no memory for the operators of a communicator");
    ops->engine = engine;
    ops->transport = transport;
    ops->team = team;
    ops->n_workers = twi_team_size(team);
    ops->slots_bytes = transport->layout.ops_bytes;
    ops->workers = calloc((size_t)ops->n_workers, sizeof *ops->workers);
    tw_status_t status = ops->workers ? TW_OK : twi_fail(TW_ERR_NO_MEMORY, "no memory for %d workers", ops->n_workers);
    for (int i = 0; status == TW_OK && i < ops->n_workers; i++)
        ops->workers[i].index = i;
    if (status != TW_OK) {
        twi_ops_destroy(ops);
        return status;
    }
    *ops_out = ops;
    return TW_OK;
}

void twi_ops_destroy(twi_ops_t *ops)
{
    if (!ops)
        return;
    for (int i = 0; ops->workers && i < ops->n_workers; i++)
        twi_buffer_drop(&ops->workers[i].memory);
    free(ops->workers);
    free(ops->events);
    free(ops);
}

/* ---- Memory ------------------------------------------------------------------------------------ */

tw_status_t twi_op_queues(twi_op_t *op, int n)
{
    op->queues = twi_op_alloc(op, (size_t)n, sizeof *op->queues);
    if (!op->queues)
        return TW_ERR_NO_MEMORY;
    op->n_queues = n;
    for (int i = 0; i < n; i++)
        op->queues[i].peer = -1;
    return TW_OK;
}

void twi_op_queue(twi_queue_t *queue, int peer, int64_t n, twi_lacks_fn *lacks, twi_run_fn *run)
{
    queue->peer = peer;
    queue->n = n;
    queue->lacks = lacks;
    queue->run = run;
}

static size_t lines(int64_t bytes)
{
    return (size_t)twi_round_up(bytes, TWI_OPS_LINE);
}

typedef struct layout {
    size_t gemm, panels, rows, tile, sources, others, also;
} layout_t;

static layout_t worker_layout(const twi_op_t *op)
{
    const twi_gemm_plan_t *plans[] = {&op->plan, op->problem.has_shared ? &op->shared_plan : &op->plan};
    layout_t layout = {
        .tile = (size_t)TWI_GEMM_MR_MAX * TWI_GEMM_NR_MAX * 4,
        .sources = lines(2 * (int64_t)op->size * (int64_t)sizeof(void *)),
        .others = lines((int64_t)op->size * (int64_t)sizeof(twi_gemm_rows_t)),
        .also = lines(2 * ((int64_t)op->size + 1) * (int64_t)sizeof(twi_gemm_rows_t)),
    };
    for (size_t i = 0; i < 2; i++) {
        const twi_gemm_plan_t *plan = plans[i];
        const int mr = plan->kernel->mr;
        const size_t panels = lines(twi_ceil_div(twi_products_rows(plan), mr) * plan->panel_bytes);
        const size_t rows = lines(mr * plan->problem->k * twi_gemm_kind_bytes(plan->problem->kind));
        layout.gemm = plan->worker_bytes > layout.gemm ? plan->worker_bytes : layout.gemm;
        layout.panels = panels > layout.panels ? panels : layout.panels;
        layout.rows = rows > layout.rows ? rows : layout.rows;
    }
    return layout;
}

static bool place_worker(twi_op_worker_t *worker, const layout_t *layout)
{
    const size_t n_tiles = sizeof worker->tiles / sizeof worker->tiles[0];
    const size_t bytes = lines((int64_t)layout->gemm) + layout->panels + layout->rows + n_tiles * layout->tile +
                         2 * layout->sources + layout->others + layout->also;
    if (!twi_buffer_grow_huge(&worker->memory, bytes))
        return false;
    char *at = worker->memory.data;
    worker->gemm = at;
    worker->panels = at += lines((int64_t)layout->gemm);
    worker->rows = at += layout->panels;
    at += layout->rows;
    for (size_t i = 0; i < n_tiles; i++, at += layout->tile)
        worker->tiles[i] = at;
    worker->all_sources = worker->sources = (const void **)(void *)at;
    worker->bases = (const char **)(void *)(at + layout->sources);
    worker->others = (twi_gemm_rows_t *)(void *)(at + 2 * layout->sources);
    worker->also = (twi_gemm_rows_t *)(void *)(at + 2 * layout->sources + layout->others);
    worker->packed = NULL;
    return true;
}

/* One operator runs at a time, so all share the memory; each places it anew when it starts, or before if none runs. */
tw_status_t twi_op_worker_memory(twi_op_t *op)
{
    const layout_t layout = worker_layout(op);
    if (op->ops->running)
        return TW_OK;
    for (int i = 0; i < op->ops->n_workers; i++)
        if (!place_worker(&op->ops->workers[i], &layout))
            return twi_fail(TW_ERR_NO_MEMORY, "no memory for worker %d of %s", i, twi_op_name(op));
    return TW_OK;
}

/* ---- Operators --------------------------------------------------------------------------------- */

static double operations_of(const twi_op_t *op)
{
    const twi_gemm_problem_t *problems[] = {&op->problem.product, op->problem.has_shared ? &op->problem.shared : NULL};
    double operations = 0;
    for (int i = 0; i < 2 && problems[i]; i++)
        operations += 2.0 * (double)problems[i]->m * (double)problems[i]->k * (double)problems[i]->n;
    return operations * (op->problem.kind == TWI_OP_ALL_GATHER_MM ? op->size : 1);
}

tw_status_t twi_op_create(twi_ops_t *ops, const twi_op_problem_t *problem, twi_op_memory_t *memory, twi_op_t **op_out)
{
    twi_op_t *op = twi_arena_zeroed(&memory->plan, 1, sizeof *op);
    if (!op)
        return twi_fail(TW_ERR_NO_MEMORY, "no memory for an operator");
    op->memory = memory;
    op->ops = ops;
    op->class = classes[problem->kind];
    op->problem = *problem;
    op->transport = ops->transport;
    op->rank = ops->transport->rank;
    op->size = ops->transport->size;
    op->agreed = twi_op_alloc(op, (size_t)op->size, sizeof *op->agreed);
    if (!op->agreed)
        return TW_ERR_NO_MEMORY;
    TW_TRY(op->class->create(op));
    op->alone = operations_of(op) < ALONE_OPERATIONS;
    *op_out = op;
    return TW_OK;
}

static void reset_units(twi_units_t *units)
{
    units->next = 0;
    if (units->done)
        memset(units->done, 0, (size_t)units->n);
}

static void reset(twi_op_t *op)
{
    for (int i = 0; i < op->n_queues; i++)
        atomic_store_explicit(&op->queues[i].next, 0, memory_order_relaxed);
    for (int r = 0; r < op->size; r++)
        atomic_store_explicit(&op->agreed[r], 0, memory_order_relaxed);
    reset_units(&op->sent);
    reset_units(&op->result);
    op->entered = false;
    op->patience = (twi_patience_t){0};
    atomic_store(&op->opened, 0);
}

void twi_ops_meet(twi_transport_t *transport)
{
    /* pairs with the load in is_elsewhere */
    (void)atomic_fetch_add_explicit(&twi_board(transport, transport->rank)->meetings, 1, memory_order_release);
}

tw_status_t twi_op_start(twi_op_t *op)
{
    twi_ops_t *ops = op->ops;
    const tw_status_t health = twi_engine_health(ops->engine);
    if (health != TW_OK)
        return health == TW_ERR_STATE ? health : twi_fail_prefix(TW_ERR_POISONED, "%s", twi_op_name(op));
    if (ops->running)
        return twi_fail(TW_ERR_STATE, "%s: %s runs on communicator '%s' and was not waited for", twi_op_name(op),
                        twi_op_name(ops->running), ops->transport->name);
    reset(op);
    TW_TRY(twi_op_worker_memory(op));
    op->call = ops->n_calls++;
    twi_arena_clear(&op->memory->run);
    if (op->class->start)
        op->class->start(op);
    ops->running = op;
    return TW_OK;
}

/* What a finished or failed step means for the communicator. */
static tw_status_t ended(twi_op_t *op, tw_status_t status)
{
    if (status == TW_IN_PROGRESS)
        return status;
    op->ops->running = NULL;
    if (status != TW_OK)
        twi_engine_lose(op->ops->engine, status);
    return status;
}

static tw_status_t check_running(const twi_op_t *op)
{
    return op->ops->running == op ? TW_OK : twi_fail(TW_ERR_STATE, "%s was not started", twi_op_name(op));
}

/* An abort shows in the own header first; what peers report is seen when we wait for them. */
static tw_status_t aborted(const twi_op_t *op)
{
    const twi_window_header_t *own = twi_transport_header(op->transport, op->rank);
    if (atomic_load_explicit(&own->health, memory_order_acquire) != TWI_HEALTH_ABORTED)
        return TW_OK;
    return twi_fail(TW_ERR_ABORTED, "%s: aborted: %.400s", twi_op_name(op), own->reason);
}

tw_status_t twi_op_test(twi_op_t *op)
{
    TW_TRY(check_running(op));
    const tw_status_t status = aborted(op);
    return ended(op, status == TW_OK ? twi_op_run_all(op, 0) : status);
}

tw_status_t twi_op_wait(twi_op_t *op, uint64_t until_ns)
{
    TW_TRY(check_running(op));
    const tw_status_t status = aborted(op);
    return ended(op, status == TW_OK ? twi_op_run_all(op, until_ns) : status);
}

bool twi_op_running(const twi_op_t *op)
{
    return op->ops->running == op;
}

void twi_op_explain(const twi_op_t *op, char *text, size_t bytes)
{
    op->class->explain(op, text, bytes);
}

void twi_op_destroy(twi_op_t *op)
{
    if (!op || !twi_op_running(op))
        return;
    (void)twi_fail(TW_ERR_STATE, "%s was released while it ran", twi_op_name(op));
    (void)ended(op, TW_ERR_STATE);
}
