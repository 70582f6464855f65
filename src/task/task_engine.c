/* SPDX-License-Identifier: Apache-2.0 */
/* The task engine's interface: posting, committing, waiting, and how it ends. See task.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/sizes.h"
#include "cpu/cpu.h"
#include "task/engine.h"
#include "transport/bell.h"

#define NAP_NS 100000000u            /* between looks at the health while waiting for a commit */
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
    e->peer_staged = calloc(size, sizeof *e->peer_staged);
    e->sources = calloc(size, sizeof *e->sources);
    e->chunk_end = calloc(size, sizeof *e->chunk_end);
    e->scratch = aligned_alloc(TWI_LINE_PAIR, TWI_SCRATCH_BYTES);
    const size_t l2 = twi_cpu_topology()->l2_bytes;
    e->stream_bytes = twi_max_u64(l2, STREAM_MIN);
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
    if (e->health == TW_OK && !twi_transport_inherited(e->transport))
        twi_engine_drain(e); /* what we committed and did not wait for */
    for (uint64_t i = e->done_task; i < e->n_tasks; i++)
        free(twi_engine_task(e, i)->arg);
    free(e->peer_staged);
    free(e->sources);
    free(e->chunk_end);
    free(e->scratch);
    free(e);
}

static void lock(twi_engine_t *e)
{
    twi_lock_take(&e->lock);
}

/* The same, but not in a forked child, where whoever holds the lock may not exist. */
static tw_status_t lock_own(twi_engine_t *e)
{
    TW_TRY(twi_transport_check_own(e->transport));
    lock(e);
    return TW_OK;
}

static void unlock(twi_engine_t *e)
{
    twi_lock_drop(&e->lock);
}

/* With the lock: something has changed that a thread of ours in await_commit may wait for. */
static void tell_own_threads(twi_engine_t *e)
{
    atomic_store_explicit(&e->n_commits, e->n_commits + 1, memory_order_relaxed);
    if (e->commit_waiters > 0)
        twi_futex_wake(&e->n_commits);
}

/* ---- Health ---- */

void twi_engine_poison(twi_engine_t *e, tw_status_t status)
{
    if (e->health != TW_OK)
        return;
    e->health = status;
    (void)snprintf(e->reason, sizeof e->reason, "%s", tw_last_error());
    TWI_LOG(WARN, "task", "communicator '%s' is lost: %s", e->transport->name, e->reason);
    twi_transport_fail(e->transport, TWI_HEALTH_FAILED, status);
    twi_engine_drain(e);
    tell_own_threads(e);
}

void twi_engine_lose(twi_engine_t *e, tw_status_t status)
{
    if (lock_own(e) != TW_OK)
        return;
    twi_engine_poison(e, status);
    unlock(e);
}

/* An abort from another thread shows in the own header first. */
static tw_status_t check_health(twi_engine_t *e)
{
    const twi_window_header_t *own = twi_transport_header(e->transport, e->rank);
    if (e->health != TW_OK)
        return twi_fail(TW_ERR_POISONED, "communicator '%s' was lost to an earlier error: %s", e->transport->name,
                        e->reason);
    if (atomic_load_explicit(&own->health, memory_order_acquire) != TWI_HEALTH_ABORTED)
        return TW_OK;
    twi_engine_drain(e);
    e->health = TW_ERR_ABORTED;
    (void)snprintf(e->reason, sizeof e->reason, "aborted: %.400s", own->reason);
    return twi_fail(e->health, "communicator '%s': %s", e->transport->name, e->reason);
}

tw_status_t twi_engine_health(twi_engine_t *e)
{
    TW_TRY(lock_own(e));
    (void)check_health(e);
    const tw_status_t status = e->health;
    if (status != TW_OK)
        (void)twi_fail(status, "communicator '%s': %s", e->transport->name, e->reason);
    unlock(e);
    return status;
}

/* ---- Posting ---- */

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    const uintptr_t x = (uintptr_t)a;
    const uintptr_t y = (uintptr_t)b;
    return x < y + b_bytes && y < x + a_bytes;
}

static tw_status_t no_room(const twi_engine_t *e, const char *what)
{
    return twi_fail(TW_ERR_STATE, "communicator '%s' has %u unfinished tasks%s; no room for another",
                    e->transport->name, TWI_TASK_RING, what);
}

/* Places in the rings can be reused once their last users are done with: here, and on all ranks. */
static tw_status_t find_room(twi_engine_t *e, bool collective)
{
    if (e->n_tasks - e->done_task >= TWI_TASK_RING)
        return no_room(e, "");
    if (!collective || e->n_colls < TWI_TASK_RING)
        return TW_OK;
    const twi_entry_t *old = &twi_engine_board(e, e->rank)->entries[e->n_colls % TWI_TASK_RING];
    return twi_stage_all_done(e, TWI_EPOCH(old->first + old->repeat, 0)) ? TW_OK : no_room(e, " on some rank");
}

static twi_task_t *append_task(twi_engine_t *e, const twi_coll_t *coll, uint32_t repeat)
{
    twi_task_t *task = twi_engine_task(e, e->n_tasks);
    *task = (twi_task_t){.coll = coll,
                         .number = e->n_tasks,
                         .sequence = e->n_colls,
                         .first = e->n_rounds,
                         .repeat = repeat,
                         .cancelled_from = repeat,
                         .canceller = -1};
    e->n_tasks++;
    e->n_colls += coll != NULL;
    e->n_rounds += repeat;
    return task;
}

/* Whether two tasks write to the same memory; blocks of one stride may interleave without touching. */
static bool recv_overlap(const twi_task_t *a, const twi_task_t *b)
{
    if (!overlap(a->recv, a->recv_bytes, b->recv, b->recv_bytes))
        return false;
    const size_t stride = a->recv_stride;
    if (stride == 0 || stride != b->recv_stride)
        return true;
    const uintptr_t distance = (uintptr_t)b->recv - (uintptr_t)a->recv; /* wraps: only its remainder counts */
    const size_t shift = b->recv >= a->recv ? distance % stride : (stride - (0 - distance) % stride) % stride;
    return shift < a->recv_block || shift + b->recv_block > stride;
}

/*
 * Whether the task writes where a small unfinished one, or an earlier round of its own, writes: small
 * rounds may be staged, and those each rank completes itself, at its own time.
 */
static bool overlaps_earlier(twi_engine_t *e, const twi_task_t *task)
{
    if (task->steps == 1 && task->recv_stride > 0 && task->recv_block > task->recv_stride)
        return true;
    for (uint64_t i = e->done_task; i < task->number; i++) {
        const twi_task_t *other = twi_engine_task(e, i);
        if (other->coll && other->steps == 1 && recv_overlap(other, task))
            return true;
    }
    return false;
}

static void fill_entry(twi_engine_t *e, twi_task_t *task, const twi_task_args_t *args)
{
    twi_board_t *board = twi_engine_board(e, e->rank);
    twi_entry_t *entry = &board->entries[task->sequence % TWI_TASK_RING];
    entry->send = (uint64_t)(uintptr_t)args->send;
    entry->recv = (uint64_t)(uintptr_t)args->recv;
    entry->send_window = twi_transport_place(e->transport, args->send, args->send_bytes);
    entry->recv_window = twi_transport_place(e->transport, args->recv, args->recv_bytes);
    entry->count = args->count;
    entry->stride = args->stride;
    entry->number = task->sequence;
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
    entry->in_turn = overlaps_earlier(e, task);
    if (entry->in_turn)
        e->in_turn_until = task->first + task->repeat;
}

/* With the lock. */
static void commit(twi_engine_t *e, twi_task_t *task, uint32_t rounds)
{
    task->committed += (uint32_t)twi_min(rounds, task->repeat - task->committed);
    tell_own_threads(e);
    if (e->health == TW_OK)
        (void)twi_engine_publish(e);
}

/* The steps of a staged round are numbered in TWI_TASK_STEP_BITS bits. */
static tw_status_t check_steps(const twi_engine_t *e, const twi_task_args_t *args)
{
    uint64_t longest = args->count;
    for (int r = 0; args->arrays[TWI_SEND_COUNTS] && r < e->size; r++)
        longest = twi_max_u64(longest, args->arrays[TWI_SEND_COUNTS][r]);
    if (!e->must_stage || longest / twi_stage_pitch(e, args) < (1u << TWI_TASK_STEP_BITS) - 1)
        return TW_OK;
    return twi_fail(TW_ERR_UNSUPPORTED,
                    "count %" PRIu64 " is too large for staging slots of %zu bytes "
                    "(TILEWIRE_STAGE_BYTES)",
                    longest, e->slot_bytes);
}

tw_status_t twi_engine_post(twi_engine_t *e, const twi_task_args_t *args, uint64_t *number_out)
{
    TW_TRY(check_steps(e, args));
    TW_TRY(lock_own(e));
    tw_status_t status = check_health(e);
    if (status == TW_OK)
        status = find_room(e, true);
    if (status == TW_OK) {
        twi_task_t *task = append_task(e, args->coll, args->repeat);
        task->elem_bytes = args->elem_bytes;
        task->recv = args->recv;
        task->recv_bytes = args->recv_bytes;
        task->recv_stride = args->recv_blocks ? args->stride * args->elem_bytes : 0;
        task->recv_block = args->count * args->repeat * args->elem_bytes;
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
    TW_TRY(lock_own(e));
    tw_status_t status = check_health(e);
    if (status == TW_OK)
        status = find_room(e, false);
    if (status == TW_OK) {
        twi_task_t *task = append_task(e, NULL, 0);
        task->run = run;
        task->arg = arg;
        *number_out = task->number;
    }
    unlock(e);
    return status;
}

tw_status_t twi_engine_post_gate(twi_engine_t *e, twi_engine_t *source, uint64_t number)
{
    tw_status_t status = TW_OK;
    TW_TRY(lock_own(e));
    if (e->n_gates < TWI_GATES_MAX)
        e->gates[e->n_gates++] = (twi_gate_t){.source = source, .number = number, .before = e->n_tasks};
    else
        status = twi_fail(TW_ERR_STATE, "more than %d dependencies on other groups", TWI_GATES_MAX);
    unlock(e);
    return status;
}

bool twi_engine_gated(twi_engine_t *e)
{
    if (lock_own(e) != TW_OK)
        return false;
    const bool gated = twi_engine_gate(e, UINT64_MAX) != NULL;
    unlock(e);
    return gated;
}

void twi_engine_forget_gates(twi_engine_t *e)
{
    if (lock_own(e) != TW_OK)
        return;
    e->n_gates = e->n_gates_passed = 0;
    unlock(e);
}

/* ---- Committing and cancelling ---- */

void twi_engine_commit(twi_engine_t *e, uint64_t number, uint32_t rounds)
{
    if (lock_own(e) != TW_OK)
        return;
    if (check_health(e) == TW_OK)
        commit(e, twi_engine_task(e, number), rounds);
    unlock(e);
}

void twi_engine_cancel(twi_engine_t *e, uint64_t number)
{
    if (lock_own(e) != TW_OK)
        return;
    twi_task_t *task = twi_engine_task(e, number);
    if (task->committed < task->repeat) {
        twi_entry_t *entry = &twi_engine_board(e, e->rank)->entries[task->sequence % TWI_TASK_RING];
        /* relaxed: peers look at it only after the release of `ready` that publish makes */
        atomic_store_explicit(&entry->cancelled_from, task->committed, memory_order_relaxed);
        tell_own_threads(e);
        if (e->health == TW_OK)
            (void)twi_engine_publish(e);
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
                        twi_command_name(task->coll->command), task->sequence, task->cancelled_from, task->canceller);
    return TW_OK;
}

/* An earlier task of this rank is not committed; another thread may still do so. */
static tw_status_t await_commit(twi_engine_t *e)
{
    const uint64_t deadline = twi_now_ns() + e->transport->enter_timeout_ns;
    const uint32_t before = atomic_load_explicit(&e->n_commits, memory_order_relaxed);
    e->commit_waiters++;
    tw_status_t status = TW_OK;
    while (status == TW_OK && e->n_commits == before && twi_now_ns() < deadline) {
        unlock(e);
        twi_futex_wait(&e->n_commits, before, NAP_NS);
        lock(e);
        status = check_health(e);
    }
    e->commit_waiters--;
    if (status != TW_OK || e->n_commits != before)
        return status;
    status = twi_fail(TW_ERR_TIMEOUT, "task %" PRIu64 " of this rank was not committed within %.1f s",
                      twi_engine_task(e, e->done_task)->sequence, (double)e->transport->enter_timeout_ns * 1e-9);
    twi_engine_poison(e, status); /* or its buffers would be used after this error */
    return status;
}

static tw_status_t wait_task(twi_engine_t *e, uint64_t number);

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
        .name = twi_command_name(task->coll->command),
        .number = task->sequence,
        .index = (uint32_t)(e->done_round - task->first),
        .epoch = TWI_EPOCH(e->done_round, e->done_step),
        .ready = e->must_stage ? TWI_EPOCH(e->done_round, e->done_step + 1) : TWI_EPOCH(e->done_round + 1, 0),
        .staged = unpublished ? e->staged : UINT64_MAX,
        .round = twi_engine_round(e, task, e->done_round),
    };
    const twi_gate_t *gate = need == TWI_NEED_GATE ? twi_engine_gate(e, task->number) : NULL;
    if (need == TWI_NEED_GATE && !gate)
        return TW_OK; /* it has opened meanwhile */
    twi_engine_t *source = gate ? gate->source : NULL;
    const uint64_t number = gate ? gate->number : 0;
    unlock(e);
    const tw_status_t status = source ? wait_task(source, number) : twi_engine_await(e, need, &at);
    lock(e);
    if (status != TW_OK)
        twi_engine_poison(e, status);
    return status;
}

/* Completes the next round if the peers are there, or nearly so; keeps the lock for that microsecond. */
static tw_status_t try_round(twi_engine_t *e, twi_need_t *need, bool may_wait)
{
    const tw_status_t status = twi_engine_complete_round(e, need);
    if (status != TW_IN_PROGRESS || *need != TWI_NEED_PEERS)
        return status;
    twi_engine_look_briefly(e, may_wait);
    return twi_engine_complete_round(e, need);
}

/* One turn of a wait, with the lock: completes a round or waits for what that needs. */
static tw_status_t turn(twi_engine_t *e)
{
    twi_need_t need;
    TW_TRY(check_health(e));
    (void)twi_engine_publish(e);
    const tw_status_t status = try_round(e, &need, e->transport->spin_ns > 0);
    return status == TW_IN_PROGRESS ? await(e, need) : status;
}

tw_status_t twi_engine_wait(twi_engine_t *e, uint64_t number, uint32_t rounds)
{
    TW_TRY(lock_own(e));
    const twi_task_t *task = twi_engine_task(e, number);
    tw_status_t status = TW_OK;
    while (status == TW_OK && !reached(e, task, rounds))
        status = turn(e);
    if (status == TW_OK)
        status = outcome(task, rounds);
    unlock(e);
    return status;
}

/* Until a task of any kind is done: the gates of other engines. */
static tw_status_t wait_task(twi_engine_t *e, uint64_t number)
{
    TW_TRY(lock_own(e));
    tw_status_t status = TW_OK;
    while (status == TW_OK && e->done_task <= number)
        status = turn(e);
    unlock(e);
    return status;
}

int64_t twi_engine_query(twi_engine_t *e, uint64_t number)
{
    tw_status_t status = lock_own(e);
    if (status != TW_OK)
        return (int64_t)status;
    status = check_health(e);
    while (status == TW_OK && e->done_task < e->n_tasks) {
        twi_need_t need;
        (void)twi_engine_publish(e);
        status = try_round(e, &need, false);
    }
    const twi_task_t *task = twi_engine_task(e, number);
    int64_t rounds = task->coll ? 0 : task->local_done;
    if (task->coll && e->done_round > task->first)
        rounds = (int64_t)(e->done_round - task->first);
    if (task->coll)
        rounds = twi_min(rounds, task->repeat);
    unlock(e);
    return status == TW_OK || status == TW_IN_PROGRESS ? rounds : (int64_t)status;
}
