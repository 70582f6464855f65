/* SPDX-License-Identifier: Apache-2.0 */
/* The task engine's interface: posting, committing, waiting, and how it ends. See task.h. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "cpu/cpu.h"
#include "task/engine.h"

#define STREAM_MIN ((size_t)2 << 20) /* results below this stay in the cache whatever its size */

size_t twi_engine_board_bytes(int size)
{
    return sizeof(twi_board_t) + (size_t)TWI_TASK_RING * TWI_N_ARRAYS * (size_t)size * sizeof(uint64_t);
}

tw_status_t twi_engine_create(twi_transport_t *transport, twi_engine_t **engine_out)
{
    twi_engine_t *e = calloc(1, sizeof *e);
    if (!e)
        return twi_fail(TW_ERR_NO_MEMORY, "no memory for a task engine");
    const size_t size = (size_t)transport->size;
    e->transport = transport;
    e->rank = transport->rank;
    e->size = transport->size;
    (void)pthread_mutex_init(&e->lock, NULL);
    pthread_condattr_t attributes;
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&e->committed, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    e->peer_staged = calloc(size, sizeof *e->peer_staged);
    e->sources = calloc(size, sizeof *e->sources);
    e->chunk_end = calloc(size, sizeof *e->chunk_end);
    e->scratch = aligned_alloc(TWI_LINE, TWI_SCRATCH_BYTES);
    const size_t l2 = twi_cpu_topology()->l2_bytes;
    e->stream_bytes = l2 > STREAM_MIN ? l2 : STREAM_MIN;
    tw_status_t status = TW_OK;
    if (!e->peer_staged || !e->sources || !e->chunk_end || !e->scratch)
        status = twi_fail(TW_ERR_NO_MEMORY, "no memory for a task engine of %zu ranks", size);
    if (status == TW_OK)
        status = twi_stage_init(e);
    if (status != TW_OK) {
        twi_engine_destroy(e);
        return status;
    }
    *engine_out = e;
    return TW_OK;
}

void twi_engine_destroy(twi_engine_t *e)
{
    if (!e)
        return;
    twi_transport_leave(e->transport);
    twi_engine_drain(e); /* what we committed and did not wait for */
    free(e->peer_staged);
    free(e->sources);
    free(e->chunk_end);
    free(e->scratch);
    (void)pthread_cond_destroy(&e->committed);
    (void)pthread_mutex_destroy(&e->lock);
    free(e);
}

static void lock(twi_engine_t *e)
{
    (void)pthread_mutex_lock(&e->lock);
}

static void unlock(twi_engine_t *e)
{
    (void)pthread_mutex_unlock(&e->lock);
}

/* ---- Health ---- */

void twi_engine_poison(twi_engine_t *e, tw_status_t status)
{
    if (e->health != TW_OK)
        return;
    e->health = status;
    (void)snprintf(e->reason, sizeof e->reason, "%s", tw_last_error());
    TWI_LOG(WARN, "task", "communicator '%s' is lost: %s", e->transport->name, e->reason);
    twi_transport_fail(e->transport, TWI_HEALTH_FAILED, status, -1);
    twi_engine_drain(e);
    (void)pthread_cond_broadcast(&e->committed);
}

/* An abort from another thread shows in the own header first. */
static tw_status_t check_health(twi_engine_t *e)
{
    const twi_window_header_t *own = twi_transport_header(e->transport, e->rank);
    if (e->health == TW_OK && atomic_load_explicit(&own->health, memory_order_acquire) == TWI_HEALTH_ABORTED) {
        twi_engine_drain(e);
        e->health = TW_ERR_ABORTED;
        (void)snprintf(e->reason, sizeof e->reason, "aborted: %.400s", own->reason);
    }
    return e->health == TW_OK ? TW_OK : twi_fail(e->health, "communicator '%s': %s", e->transport->name, e->reason);
}

tw_status_t twi_engine_health(twi_engine_t *e)
{
    lock(e);
    const tw_status_t status = check_health(e);
    unlock(e);
    return status;
}

/* ---- Posting ---- */

static uint64_t window_offset(const twi_engine_t *e, const void *address, size_t bytes)
{
    const twi_window_t *own = e->transport->windows[e->rank];
    const uintptr_t a = (uintptr_t)address;
    const uintptr_t base = (uintptr_t)own->base;
    return a >= base && a - base <= own->bytes && bytes <= own->bytes - (a - base) ? a - base + 1 : 0;
}

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    const uintptr_t x = (uintptr_t)a;
    const uintptr_t y = (uintptr_t)b;
    return x < y + b_bytes && y < x + a_bytes;
}

/* The ring slot of task `number` can be reused once every rank is through with its last user. */
static tw_status_t claim_ring_slot(twi_engine_t *e)
{
    if (e->n_tasks < TWI_TASK_RING)
        return TW_OK;
    const twi_task_t *old = twi_engine_task(e, e->n_tasks);
    bool free_slot = e->done_task > old->number;
    for (int r = 0; r < e->size && free_slot; r++)
        free_slot = twi_load(&twi_engine_board(e, r)->done) >= TWI_EPOCH(old->first + old->repeat, 0);
    if (free_slot)
        return TW_OK;
    return twi_fail(TW_ERR_STATE, "task %" PRIu64 " of communicator '%s' is unfinished; no room for task %" PRIu64,
                    old->number, e->transport->name, e->n_tasks);
}

static twi_task_t *append_task(twi_engine_t *e, const twi_coll_t *coll, uint32_t repeat)
{
    twi_task_t *task = twi_engine_task(e, e->n_tasks);
    *task = (twi_task_t){.coll = coll,
                         .number = e->n_tasks,
                         .first = e->n_rounds,
                         .repeat = repeat,
                         .cancelled_from = repeat,
                         .canceller = -1,
                         .gate = e->next_gate,
                         .gate_round = e->next_gate_round};
    e->n_tasks++;
    e->n_rounds += repeat;
    return task;
}

static void fill_entry(twi_engine_t *e, twi_task_t *task, const twi_task_args_t *args)
{
    twi_board_t *board = twi_engine_board(e, e->rank);
    twi_entry_t *entry = &board->entries[task->number % TWI_TASK_RING];
    entry->send = (uint64_t)(uintptr_t)args->send;
    entry->recv = (uint64_t)(uintptr_t)args->recv;
    entry->send_window = window_offset(e, args->send, args->send_bytes);
    entry->recv_window = window_offset(e, args->recv, args->recv_bytes);
    entry->count = args->count;
    entry->stride = args->stride;
    entry->number = task->number;
    entry->first = task->first;
    entry->dtype = args->dtype;
    entry->op = args->op;
    entry->command = args->coll->command;
    entry->repeat = args->repeat;
    entry->in_place = overlap(args->send, args->send_bytes, args->recv, args->recv_bytes);
    entry->skip_own = args->skip_own;
    atomic_store_explicit(&entry->cancelled_from, args->repeat, memory_order_relaxed);
    entry->hash = twi_entry_hash(entry);
    const twi_round_t round = twi_engine_round(e, task, task->first);
    for (int i = 0; i < TWI_N_ARRAYS && args->arrays[i]; i++)
        memcpy((void *)(uintptr_t)twi_round_array(&round, e->rank, i), args->arrays[i],
               (size_t)e->size * sizeof(uint64_t));
    task->steps = twi_stage_steps(&round, e->rank);
}

/* With the lock. */
static void commit(twi_engine_t *e, twi_task_t *task, uint32_t rounds)
{
    const uint32_t left = task->repeat - task->committed;
    task->committed += rounds < left ? rounds : left;
    if (e->health == TW_OK)
        (void)twi_engine_publish(e);
    if (e->commit_waiters > 0)
        (void)pthread_cond_broadcast(&e->committed);
}

tw_status_t twi_engine_post(twi_engine_t *e, const twi_task_args_t *args, uint64_t *number_out)
{
    lock(e);
    tw_status_t status = check_health(e);
    if (status == TW_OK)
        status = claim_ring_slot(e);
    if (status == TW_OK) {
        twi_task_t *task = append_task(e, args->coll, args->repeat);
        task->elem_bytes = args->elem_bytes;
        task->pitch = twi_stage_pitch(e, args);
        fill_entry(e, task, args);
        if (args->commit)
            commit(e, task, args->commit);
        *number_out = task->number;
    }
    unlock(e);
    return status;
}

tw_status_t twi_engine_post_local(twi_engine_t *e, twi_local_fn run, void *arg, uint64_t *number_out)
{
    lock(e);
    tw_status_t status = check_health(e);
    if (status == TW_OK)
        status = claim_ring_slot(e);
    if (status == TW_OK) {
        twi_task_t *task = append_task(e, NULL, 0);
        task->run = run;
        task->arg = arg;
        *number_out = task->number;
    }
    unlock(e);
    return status;
}

tw_status_t twi_engine_post_gate(twi_engine_t *e, twi_engine_t *source, uint64_t number, uint32_t rounds)
{
    if (rounds == 0)
        return TW_OK;
    lock(source);
    const uint64_t round = twi_engine_task(source, number)->first + rounds - 1;
    unlock(source);
    lock(e);
    e->next_gate = source;
    e->next_gate_round = round;
    unlock(e);
    return TW_OK;
}

/* ---- Committing and cancelling ---- */

void twi_engine_commit(twi_engine_t *e, uint64_t number, uint32_t rounds)
{
    lock(e);
    commit(e, twi_engine_task(e, number), rounds);
    unlock(e);
}

void twi_engine_cancel(twi_engine_t *e, uint64_t number)
{
    lock(e);
    twi_task_t *task = twi_engine_task(e, number);
    if (task->committed < task->repeat) {
        twi_entry_t *entry = &twi_engine_board(e, e->rank)->entries[number % TWI_TASK_RING];
        /* relaxed: peers look at it only after the release of `ready` that publish makes */
        atomic_store_explicit(&entry->cancelled_from, task->committed, memory_order_relaxed);
        if (e->health == TW_OK)
            (void)twi_engine_publish(e);
        (void)pthread_cond_broadcast(&e->committed);
    }
    unlock(e);
}

/* ---- Waiting ---- */

static bool reached(twi_engine_t *e, const twi_task_t *task, uint32_t rounds)
{
    return task->coll ? e->done_round >= task->first + rounds : task->local_done;
}

static tw_status_t outcome(const twi_task_t *task, uint32_t rounds)
{
    if (!task->coll)
        return task->local_status;
    if (rounds > task->cancelled_from)
        return twi_fail(TW_ERR_PEER_LEFT, "%s task %" PRIu64 ": round %" PRIu32 " was cancelled by rank %d",
                        task->coll->name, task->number, task->cancelled_from, task->canceller);
    return TW_OK;
}

/* An earlier task of this rank is not committed; another thread may still do so. */
static tw_status_t await_commit(twi_engine_t *e)
{
    const uint64_t deadline = twi_now_ns() + e->transport->enter_timeout_ns;
    const struct timespec at = {.tv_sec = (time_t)(deadline / 1000000000u), .tv_nsec = (long)(deadline % 1000000000u)};
    const uint64_t before = e->ready_round;
    bool late = false;
    e->commit_waiters++;
    while (e->ready_round == before && e->health == TW_OK && !late)
        late = pthread_cond_timedwait(&e->committed, &e->lock, &at) == ETIMEDOUT;
    e->commit_waiters--;
    if (late)
        return twi_fail(TW_ERR_TIMEOUT, "task %" PRIu64 " of this rank was not committed within %.1f s", e->done_task,
                        (double)e->transport->enter_timeout_ns * 1e-9);
    return check_health(e);
}

static tw_status_t wait_round(twi_engine_t *e, uint64_t round);

/* Called with the lock, returns with it; the wait itself is without. */
static tw_status_t await(twi_engine_t *e, twi_need_t need)
{
    const twi_task_t *task = twi_engine_task(e, e->done_task);
    if (need == TWI_NEED_COMMIT)
        return await_commit(e);
    const bool unpublished =
        e->publish_task < e->n_tasks && e->must_stage &&
        e->ready_round - twi_engine_task(e, e->publish_task)->first < twi_engine_task(e, e->publish_task)->committed;
    const twi_await_t at = {
        .name = task->coll->name,
        .number = task->number,
        .index = (uint32_t)(e->done_round - task->first),
        .epoch = TWI_EPOCH(e->done_round, e->done_step),
        .ready = e->must_stage ? TWI_EPOCH(e->done_round, e->done_step + 1) : TWI_EPOCH(e->done_round + 1, 0),
        .staged = unpublished ? e->staged : UINT64_MAX,
    };
    twi_engine_t *gate = task->gate;
    const uint64_t gate_round = task->gate_round;
    unlock(e);
    const tw_status_t status = need == TWI_NEED_GATE ? wait_round(gate, gate_round) : twi_engine_await(e, need, &at);
    lock(e);
    if (status != TW_OK)
        twi_engine_poison(e, status);
    return status;
}

/* One turn of a wait, with the lock: completes a round or waits for what that needs. */
static tw_status_t turn(twi_engine_t *e)
{
    twi_need_t need;
    TW_TRY(check_health(e));
    (void)twi_engine_publish(e);
    tw_status_t status = twi_engine_complete_round(e, &need);
    if (status == TW_IN_PROGRESS && need == TWI_NEED_PEERS && e->transport->spin_ns > 0) {
        twi_engine_look_briefly(e); /* keeps the lock: too short to matter, and the peers are mostly there */
        status = twi_engine_complete_round(e, &need);
    }
    return status == TW_IN_PROGRESS ? await(e, need) : status;
}

tw_status_t twi_engine_wait(twi_engine_t *e, uint64_t number, uint32_t rounds)
{
    lock(e);
    const twi_task_t *task = twi_engine_task(e, number);
    tw_status_t status = TW_OK;
    while (status == TW_OK && !reached(e, task, rounds))
        status = turn(e);
    if (status == TW_OK)
        status = outcome(task, rounds);
    unlock(e);
    return status;
}

/* Until a round, counted over all tasks, is done: the gates of other engines. */
static tw_status_t wait_round(twi_engine_t *e, uint64_t round)
{
    lock(e);
    tw_status_t status = TW_OK;
    while (status == TW_OK && e->done_round <= round)
        status = turn(e);
    unlock(e);
    return status;
}

int64_t twi_engine_query(twi_engine_t *e, uint64_t number)
{
    lock(e);
    tw_status_t status = check_health(e);
    while (status == TW_OK && e->done_task < e->n_tasks) {
        twi_need_t need;
        (void)twi_engine_publish(e);
        status = twi_engine_complete_round(e, &need);
    }
    const twi_task_t *task = twi_engine_task(e, number);
    int64_t rounds = task->coll ? 0 : task->local_done;
    if (task->coll && e->done_round > task->first)
        rounds = (int64_t)(e->done_round - task->first);
    if (task->coll && rounds > (int64_t)task->repeat)
        rounds = (int64_t)task->repeat;
    unlock(e);
    return status == TW_OK || status == TW_IN_PROGRESS ? rounds : (int64_t)status;
}
