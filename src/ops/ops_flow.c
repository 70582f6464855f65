/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Driving an operator: the team takes items until none is ready, then the caller waits for peers, until
 * all queues are empty. Waiting has the deadlines and the watch over peers of transport/wait.c.
 *
 * When nothing is left but what it does for others it helps them for a while, and then leaves.
 *
 * Before anything of a peer is read its entry of the call is compared with ours. A call ends only when
 * all entries have been compared, so ranks that call different things all find out.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/clock.h"
#include "ops/agree.h"
#include "ops/op.h"
#include "transport/bell.h"

/* ---- Peers ------------------------------------------------------------------------------------- */

static bool has_entered(const twi_op_t *op, int rank)
{
    return twi_board_load(&twi_board(op->transport, rank)->entered) >= TWI_CALL_EPOCH(op->call, 1);
}

/* Whether a rank has read what we lend it. */
static bool has_taken(const twi_op_t *op, int rank)
{
    return !op->lends_rows || rank == op->rank ||
           twi_board_load(&twi_board(op->transport, rank)->taken) >= TWI_CALL_EPOCH(op->call, 1);
}

/*
 * Whether a rank is in a barrier or a split that we have not begun, and has not entered this call: it will not while we
 * wait for it. `entered` is looked at last: who entered before its barrier had stored it when that was counted.
 */
static bool is_elsewhere(const twi_op_t *op, int rank)
{
    const twi_ops_board_t *own = twi_board(op->transport, op->rank);
    const uint64_t meetings = twi_board_load(&twi_board(op->transport, rank)->meetings);
    return meetings > atomic_load_explicit(&own->meetings, memory_order_relaxed) && !has_entered(op, rank);
}

/* Such a rank if we do nothing but wait: who only looks, or waits for a while, may come to it later. -1: none. */
static int elsewhere(const twi_op_t *op)
{
    for (int r = 0; op->waits_to_end && r < op->size; r++)
        if (!atomic_load_explicit(&op->agreed[r], memory_order_relaxed) && is_elsewhere(op, r))
            return r;
    return -1;
}

/* Any worker may be the first to look; all come to the same result. */
bool twi_op_agrees(twi_op_t *op, int rank)
{
    if (atomic_load_explicit(&op->agreed[rank], memory_order_acquire))
        return true;
    if (!has_entered(op, rank))
        return false;
    if (!twi_entry_agrees(op, rank)) {
        atomic_store_explicit(&op->diverged, rank + 1, memory_order_relaxed);
        return false;
    }
    atomic_store_explicit(&op->agreed[rank], 1, memory_order_release);
    return true;
}

bool twi_op_has_sent(twi_op_t *op, int rank, int64_t units)
{
    return twi_op_agrees(op, rank) &&
           twi_board_load(&twi_board(op->transport, rank)->sent) >= TWI_CALL_EPOCH(op->call, units);
}

bool twi_op_has_result(twi_op_t *op, int rank, int64_t units)
{
    return twi_op_agrees(op, rank) &&
           twi_board_load(&twi_board(op->transport, rank)->result) >= TWI_CALL_EPOCH(op->call, units);
}

void twi_op_trouble(twi_op_t *op, tw_status_t status)
{
    int none = TW_OK;
    if (atomic_compare_exchange_strong(&op->trouble, &none, (int)status)) /* read when all workers are back */
        (void)snprintf(op->trouble_text, sizeof op->trouble_text, "%s", tw_last_error());
}

/* ---- Taking items ------------------------------------------------------------------------------ */

/* Who lacked the last time is asked first, and then all in turn. */
static bool is_ready(twi_op_t *op, twi_queue_t *queue, twi_item_t item)
{
    if (!queue->lacks)
        return true;
    if (queue->lacks(op, item, atomic_load_explicit(&queue->lacked, memory_order_relaxed)))
        return false;
    for (int r = 0; r < op->size; r++)
        if (queue->lacks(op, item, r)) {
            atomic_store_explicit(&queue->lacked, r, memory_order_relaxed);
            return false;
        }
    return true;
}

static bool stopped(twi_op_t *op)
{
    return atomic_load_explicit(&op->diverged, memory_order_relaxed) != 0 ||
           atomic_load_explicit(&op->trouble, memory_order_relaxed) != TW_OK;
}

/* The item that would be taken next; false: there is none. */
static bool head_of(const twi_queue_t *queue, twi_item_t *item_out)
{
    *item_out = (twi_item_t){atomic_load_explicit(&queue->next, memory_order_relaxed), queue->peer};
    return item_out->number < atomic_load_explicit(&queue->n, memory_order_acquire);
}

/* Takes it if it is ready. */
static bool take(twi_op_t *op, twi_queue_t *queue, twi_item_t *item_out)
{
    while (head_of(queue, item_out) && is_ready(op, queue, *item_out)) {
        int64_t next = item_out->number;
        if (atomic_compare_exchange_strong_explicit(&queue->next, &next, next + 1, memory_order_relaxed,
                                                    memory_order_relaxed))
            return true;
    }
    return false;
}

/* Of the queues that are optional, or of the others. */
static bool all_taken_of(const twi_op_t *op, bool optional)
{
    twi_item_t item;
    for (int i = 0; i < op->n_queues; i++)
        if (op->queues[i].optional == optional && head_of(&op->queues[i], &item))
            return false;
    return true;
}

static bool all_taken(const twi_op_t *op)
{
    return all_taken_of(op, false);
}

/* What is done for others when there is nothing else left is up to help_others. */
static twi_queue_t *take_any(twi_op_t *op, twi_item_t *item_out)
{
    for (int i = 0; i < op->n_queues; i++) {
        if (op->queues[i].optional && op->help_until_ns == 0 && all_taken(op))
            return NULL;
        if (take(op, &op->queues[i], item_out))
            return &op->queues[i];
    }
    return NULL;
}

static void work(void *arg, int index, int n_workers)
{
    twi_op_t *op = arg;
    (void)n_workers;
    twi_op_worker_t *worker = &op->ops->workers[index];
    twi_gemm_mode_t mode;
    twi_gemm_mode_begin(&op->plan, &mode);
    twi_queue_t *queue;
    for (twi_item_t item; !stopped(op) && (queue = take_any(op, &item)) != NULL;) {
        queue->run(op, item, worker);
        if (atomic_fetch_sub_explicit(&op->budget, 1, memory_order_relaxed) <= 1)
            break;
    }
    twi_gemm_mode_end(&mode);
}

static bool any_ready(twi_op_t *op)
{
    twi_item_t item;
    for (int i = 0; i < op->n_queues; i++)
        if (head_of(&op->queues[i], &item) && is_ready(op, &op->queues[i], item))
            return true;
    return stopped(op);
}

/* ---- Waiting ----------------------------------------------------------------------------------- */

/* Whether the operator can go on: an item is ready, its first slot is free, or nothing keeps it from ending. */
static bool can_go_on(void *arg)
{
    twi_op_t *op = arg;
    if (!op->entered)
        return twi_slot_open(op, 0) || stopped(op);
    if (!all_taken(op))
        return any_ready(op);
    for (int r = 0; r < op->size; r++)
        if (!twi_op_agrees(op, r) || !has_taken(op, r))
            return stopped(op);
    return true;
}

/* Or whether it never will. */
static bool is_settled(void *arg)
{
    return can_go_on(arg) || elsewhere(arg) >= 0;
}

static bool waits_for(void *arg, int rank)
{
    twi_op_t *op = arg;
    if (!op->entered)
        return twi_slot_lacks(op, 0, rank);
    if (all_taken(op))
        return !has_entered(op, rank) || !has_taken(op, rank);
    for (int i = 0; i < op->n_queues; i++) {
        const twi_queue_t *queue = &op->queues[i];
        twi_item_t item;
        if (!queue->optional && head_of(queue, &item) && queue->lacks && queue->lacks(op, item, rank))
            return true;
    }
    return false;
}

/* Words only grow; 2^32 calls x 2^24 units is 2^56, so the sum of four of them does not overflow. */
static uint64_t position(void *arg, int rank)
{
    const twi_op_t *op = arg;
    const twi_ops_board_t *board = twi_board(op->transport, rank);
    return twi_board_load(&board->entered) + twi_board_load(&board->sent) + twi_board_load(&board->result) +
           twi_board_load(&board->taken);
}

static uint64_t progress(void *arg)
{
    const twi_op_t *op = arg;
    uint64_t sum = 0;
    for (int r = 0; r < op->size; r++)
        sum += position(arg, r);
    return sum;
}

static void describe(void *arg, char *text, size_t room)
{
    const twi_op_t *op = arg;
    (void)snprintf(text, room, "%s call %" PRIu64, twi_op_name(op), op->call);
}

/* Those that have not entered the call have the longer deadline. */
static bool some_enter_later(twi_op_t *op)
{
    for (int r = 0; r < op->size; r++)
        if (waits_for(op, r) && r != op->rank && !has_entered(op, r))
            return true;
    return false;
}

static bool enters_or_goes_on(void *arg)
{
    return is_settled(arg) || !some_enter_later(arg);
}

/* TW_IN_PROGRESS when the clock passes until_ns; 0: only looks. */
static tw_status_t wait_for_peers(twi_op_t *op, uint64_t until_ns)
{
    const uint64_t begin = twi_trace_begin(op);
    const bool later = some_enter_later(op);
    const twi_wait_t wait = {
        .ready = later ? enters_or_goes_on : is_settled,
        .waits_for = waits_for,
        .progress = later ? NULL : progress,
        .position = position,
        .describe = describe,
        .arg = op,
    };
    const tw_status_t status = twi_transport_wait_until(op->transport, &wait, &op->patience, until_ns);
    twi_trace_end(op, begin, "wait", NULL, -1, NULL);
    return status;
}

/* ---- The run ----------------------------------------------------------------------------------- */

#define NO_BUDGET (INT64_MAX / 2) /* more items than there are; those that find nothing to do add to it */

static tw_status_t enter(twi_op_t *op)
{
    if (!twi_slot_open(op, 0))
        return TW_IN_PROGRESS;
    twi_entry_publish(op);
    op->entered = true;
    op->work_ns = op->help_until_ns = 0;
    return TW_OK;
}

/* `budget`: of items, after which workers stop. */
static void run_team(twi_op_t *op, int64_t budget)
{
    const uint64_t begin = op->has_optional ? twi_now_ns() : 0;
    atomic_store_explicit(&op->budget, budget, memory_order_relaxed);
    twi_team_run(op->alone ? NULL : op->ops->team, work, op);
    if (op->has_optional)
        op->work_ns += twi_now_ns() - begin;
}

static bool all_healthy(const twi_op_t *op)
{
    for (int r = 0; r < op->size; r++)
        if (twi_transport_health(op->transport, r) != TWI_HEALTH_OK)
            return false;
    return true;
}

/*
 * There is nothing more to do or to wait for on our own account. Who is behind gets our help for as long as we have
 * worked so far: so it may be half as fast. After that it can do without.
 */
static void help_others(twi_op_t *op)
{
    if (all_taken_of(op, true))
        return;
    if (op->help_until_ns == 0)
        op->help_until_ns = twi_now_ns() + op->work_ns;
    while (!all_taken_of(op, true) && !stopped(op) && all_healthy(op) && twi_now_ns() < op->help_until_ns)
        if (any_ready(op))
            run_team(op, op->ops->n_workers);
        else
            twi_pause();
}

/* TW_IN_PROGRESS: peers are missing. */
static tw_status_t end_call(twi_op_t *op)
{
    for (int r = 0; r < op->size; r++)
        if (!twi_op_agrees(op, r) || !has_taken(op, r))
            return TW_IN_PROGRESS;
    twi_board_store(&twi_board(op->transport, op->rank)->taken, TWI_CALL_EPOCH(op->call + 1, 0));
    twi_transport_wake(op->transport);
    return TW_OK;
}

/* What can be done without waiting: all of it for a caller that waits to the end, or a piece. */
static tw_status_t step(twi_op_t *op)
{
    if (!op->entered)
        TW_TRY(enter(op));
    if (!all_taken(op))
        run_team(op, op->waits_to_end ? NO_BUDGET : op->ops->n_workers);
    if (op->has_optional && all_taken(op) && op->waits_to_end)
        help_others(op);
    if (atomic_load(&op->diverged)) {
        const int rank = atomic_load(&op->diverged) - 1;
        return twi_entry_differs(op, twi_entry_of(op, rank), rank);
    }
    if (atomic_load(&op->trouble) != TW_OK)
        return twi_fail((tw_status_t)atomic_load(&op->trouble), "%s: %s", twi_op_name(op), op->trouble_text);
    return all_taken(op) ? end_call(op) : TW_IN_PROGRESS;
}

tw_status_t twi_op_run_all(twi_op_t *op, uint64_t until_ns)
{
    op->waits_to_end = until_ns == UINT64_MAX;
    for (;;) {
        const tw_status_t status = step(op);
        if (status != TW_IN_PROGRESS)
            return status;
        const int absent = elsewhere(op);
        if (absent >= 0)
            return twi_entry_differs(op, NULL, absent);
        if (!can_go_on(op))
            TW_TRY(wait_for_peers(op, until_ns));
        if (!op->waits_to_end && twi_now_ns() >= until_ns)
            return TW_IN_PROGRESS;
    }
}
