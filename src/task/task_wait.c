/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a round may have to wait for. These conditions run without the engine's lock, so that other
 * threads of the rank can commit meanwhile: they read only atomics and a snapshot. Each also holds
 * when another thread of this rank has completed the round.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/sizes.h"
#include "task/engine.h"

#define DRAIN_NS 2000000000u

typedef struct awaited {
    twi_engine_t *engine;
    twi_await_t at;
} awaited_t;

static bool moved(const awaited_t *a)
{
    return twi_load(&twi_engine_board(a->engine, a->engine->rank)->done) > a->at.epoch;
}

static bool peer_published(const awaited_t *a, int rank)
{
    return twi_load(&twi_engine_board(a->engine, rank)->ready) >= a->at.ready;
}

static bool slot_freed(const awaited_t *a)
{
    return a->at.staged != UINT64_MAX && twi_stage_slot_free(a->engine, a->at.staged);
}

static bool peers_published(void *arg)
{
    const awaited_t *a = arg;
    for (int r = 0; r < a->engine->size; r++)
        if (r != a->engine->rank && !peer_published(a, r))
            return slot_freed(a) || moved(a);
    return true;
}

/* Missing is also a peer that still uses the slot we need: those who wait for us wait for it. */
static bool unpublished(void *arg, int rank)
{
    const awaited_t *a = arg;
    return !peer_published(a, rank) ||
           (a->at.staged != UINT64_MAX && twi_stage_holds_slot(a->engine, a->at.staged, rank));
}

static bool slot_is_free(void *arg)
{
    const awaited_t *a = arg;
    return slot_freed(a) || moved(a);
}

static bool holds_slot(void *arg, int rank)
{
    const awaited_t *a = arg;
    return a->at.staged != UINT64_MAX && twi_stage_holds_slot(a->engine, a->at.staged, rank);
}

/* Peers that have to complete earlier rounds first. */
static bool behind(void *arg, int rank)
{
    const awaited_t *a = arg;
    return !twi_share_in_turn(&a->at.round, rank, a->at.epoch);
}

static bool peers_caught_up(void *arg)
{
    const awaited_t *a = arg;
    for (int r = 0; r < a->engine->size; r++)
        if (r != a->engine->rank && behind(arg, r))
            return moved(a);
    return true;
}

static bool chunks_finished(void *arg)
{
    const awaited_t *a = arg;
    return twi_share_all_finished(a->engine) || moved(a);
}

static bool at_work(void *arg, int rank)
{
    const awaited_t *a = arg;
    return atomic_load_explicit(&twi_engine_board(a->engine, rank)->doing, memory_order_relaxed) != 0;
}

/* Grows with everything the peers do; its changes restart the deadline for silence. */
static uint64_t activity(void *arg)
{
    const awaited_t *a = arg;
    uint64_t sum = 0;
    for (int r = 0; r < a->engine->size; r++) {
        const twi_board_t *board = twi_engine_board(a->engine, r);
        sum += twi_load(&board->ready) + twi_load(&board->done) + twi_load(&board->finished);
    }
    return sum;
}

/* True if no peer that is still missing stands at the very start of the awaited round: all of those have entered it. */
static bool all_missing_have_entered(const awaited_t *a)
{
    const uint64_t start = TWI_EPOCH(a->at.epoch >> TWI_TASK_STEP_BITS, 0);
    for (int r = 0; r < a->engine->size; r++)
        if (r != a->engine->rank && !peer_published(a, r) && twi_load(&twi_engine_board(a->engine, r)->ready) == start)
            return false;
    return true;
}

/* How far a peer is, for telling who holds up the others: the one with the lowest. */
static uint64_t position(void *arg, int rank)
{
    const awaited_t *a = arg;
    const twi_board_t *board = twi_engine_board(a->engine, rank);
    return twi_load(&board->done) + twi_load(&board->ready);
}

static void describe(void *arg, char *text, size_t room)
{
    const awaited_t *a = arg;
    (void)snprintf(text, room, "%s task %" PRIu64 " round %" PRIu32 " on rank %d", a->at.name, a->at.number,
                   a->at.index, a->engine->rank);
}

tw_status_t twi_engine_await(twi_engine_t *e, twi_need_t need, const twi_await_t *at)
{
    awaited_t awaited = {.engine = e, .at = *at};
    twi_wait_t wait = {.arg = &awaited, .describe = describe, .position = position};
    switch (need) {
    case TWI_NEED_SLOTS:
        wait.ready = slot_is_free;
        wait.waits_for = holds_slot;
        break;
    case TWI_NEED_TURN:
        wait.ready = peers_caught_up;
        wait.waits_for = behind;
        wait.lateness = "has not completed its earlier rounds, which write to the same memory,";
        break;
    case TWI_NEED_FINISHED:
        wait.ready = chunks_finished;
        wait.waits_for = at_work;
        wait.progress = activity;
        break;
    default:
        wait.ready = peers_published;
        wait.waits_for = unpublished;
        wait.progress = all_missing_have_entered(&awaited) ? activity : NULL;
        break;
    }
    return twi_transport_wait(e->transport, &wait);
}

/* The same pairs with twi_engine_drain as in task_share.c: we store, then load health; it the other way round. */
void twi_engine_touch_begin(twi_engine_t *e)
{
    (void)atomic_fetch_add_explicit(&twi_engine_board(e, e->rank)->touching, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
}

void twi_engine_touch_end(twi_engine_t *e)
{
    (void)atomic_fetch_sub_explicit(&twi_engine_board(e, e->rank)->touching, 1, memory_order_release);
}

static bool is_busy(const twi_engine_t *e, int rank)
{
    const twi_board_t *board = twi_engine_board(e, rank);
    return twi_load(&board->doing) != 0 || twi_load(&board->touching) != 0;
}

/*
 * After giving up (our health says so): waits until no peer works on chunks or for an operator any more, because
 * that may be in buffers of ours. A peer that is dead works on nothing; one that is stopped, or long at one piece of
 * work, is given up after DRAIN_NS, and the caller must keep its buffers until the communicator is destroyed on all
 * ranks.
 */
void twi_engine_drain(twi_engine_t *e)
{
    const uint64_t patience = twi_min_u64(e->transport->timeout_ns, DRAIN_NS);
    const uint64_t deadline = twi_now_ns() + patience;
    atomic_thread_fence(memory_order_seq_cst);
    for (int r = 0; r < e->size; r++) {
        for (unsigned spins = 0; r != e->rank && is_busy(e, r); spins++) {
            if (spins % 64 == 63 && (!twi_transport_alive(e->transport, r) || twi_now_ns() >= deadline))
                break;
            (void)sched_yield();
        }
    }
}
