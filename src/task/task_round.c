/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completing rounds. All ranks read the same published facts and so choose the same way:
 *
 *  staged   every contribution is in a slot: each rank reads the slots and writes its own result.
 *  shared   otherwise, all buffers can be reached, and whoever waits does a part of the work for
 *           everybody (task_share.c).
 *
 * Where buffers cannot be reached (must_stage) every round is staged, in as many steps as it takes.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/sizes.h"
#include "task/engine.h"

#define BRIEF_LOOKS 256 /* about a microsecond */

/* ---- Both ways ---- */

static bool peers_ready(const twi_engine_t *e, uint64_t epoch)
{
    for (int r = 0; r < e->size; r++)
        if (r != e->rank && twi_load(&twi_engine_board(e, r)->ready) < epoch)
            return false;
    return true;
}

tw_status_t twi_engine_failed(twi_engine_t *e, tw_status_t status)
{
    twi_engine_poison(e, status);
    return status;
}

static void step_done(twi_engine_t *e)
{
    e->done_step++;
    twi_publish(&twi_engine_board(e, e->rank)->done, TWI_EPOCH(e->done_round, e->done_step));
    twi_transport_wake(e->transport);
}

tw_status_t twi_engine_round_done(twi_engine_t *e)
{
    e->done_round++;
    e->done_step = 0;
    e->sharing = false;
    e->look_at_ready = false;
    twi_publish(&twi_engine_board(e, e->rank)->done, TWI_EPOCH(e->done_round, 0));
    if (e->must_stage || e->in_turn_until > e->done_round) /* otherwise nobody waits for `done` */
        twi_transport_wake(e->transport);
    return TW_OK;
}

static void task_done(twi_engine_t *e)
{
    e->done_task++;
    twi_publish(&e->tasks_done, e->done_task);
}

/* ---- Staged ---- */

/*
 * Looks up the slots of one step: true if every contribution to it is staged. Moves past those that
 * were found only when the step is consumed or the round turns out to be shared.
 */
static bool find_staged(twi_engine_t *e, uint64_t hash, bool *hash_differs)
{
    const uint64_t tag = TWI_EPOCH(e->done_round, e->done_step) + 1;
    bool all = true;
    for (int r = 0; r < e->size; r++) {
        const twi_slot_t *slot = twi_stage_find(e, r, tag);
        e->sources[r] = slot ? slot->payload : NULL;
        if (slot && slot->hash != hash)
            *hash_differs = true;
        all &= slot != NULL;
    }
    return all;
}

void twi_engine_pass_staged(twi_engine_t *e)
{
    for (int r = 0; r < e->size; r++)
        e->peer_staged[r] += e->sources[r] != NULL;
}

static void consume(twi_engine_t *e, const twi_round_t *round)
{
    round->coll->consume(round, e->sources, e->done_step * round->pitch);
    twi_engine_pass_staged(e);
}

/* Rounds that pass through the slots step by step, because peers' memory cannot be reached. */
static tw_status_t complete_staged(twi_engine_t *e, const twi_round_t *round, uint64_t hash, twi_need_t *need)
{
    uint64_t steps = 0;
    for (int r = 0; r < e->size; r++)
        steps = twi_max_u64(steps, twi_stage_steps(round, r));
    for (; e->done_step < steps; step_done(e)) {
        bool hash_differs = false;
        /* our own step first: consuming may overwrite what it sends (in place) */
        if (TWI_EPOCH(e->ready_round, e->ready_step) < TWI_EPOCH(e->done_round, e->done_step + 1)) {
            *need = TWI_NEED_SLOTS;
            return TW_IN_PROGRESS;
        }
        if (!peers_ready(e, TWI_EPOCH(e->done_round, e->done_step + 1))) {
            *need = TWI_NEED_PEERS;
            return TW_IN_PROGRESS;
        }
        (void)find_staged(e, hash, &hash_differs);
        if (hash_differs)
            return twi_engine_failed(e, twi_fail(TW_ERR_INTERNAL,
                                                 "task %" PRIu64 ": a staged slot belongs to another task",
                                                 twi_round_entry(round, round->rank)->number));
        consume(e, round);
        (void)twi_engine_publish(e); /* room may have become free */
    }
    if (e->ready_round <= e->done_round) { /* our own last steps still wait for slots */
        *need = TWI_NEED_SLOTS;
        return TW_IN_PROGRESS;
    }
    return twi_engine_round_done(e);
}

/* ---- The next round ---- */

static tw_status_t agree(twi_engine_t *e, twi_task_t *task, const twi_round_t *round)
{
    if (task->agreed)
        return TW_OK;
    const tw_status_t status = twi_round_agree(round);
    task->agreed = status == TW_OK;
    return status == TW_OK ? TW_OK : twi_engine_failed(e, status);
}

/* Whether some rank cancelled the round; then it ends without a result, on every rank. */
static bool cancelled(twi_engine_t *e, twi_task_t *task, const twi_round_t *round)
{
    for (int r = 0; r < e->size; r++) {
        const twi_entry_t *entry = twi_round_entry(round, r);
        if (round->index < atomic_load_explicit(&entry->cancelled_from, memory_order_relaxed))
            continue;
        if (round->index < task->cancelled_from) {
            task->cancelled_from = round->index;
            task->canceller = r;
        }
        return true;
    }
    return false;
}

static tw_status_t run_local(twi_engine_t *e, twi_task_t *task)
{
    task->local_status = task->run(task->arg);
    task->local_done = true;
    free(task->arg);
    task->arg = NULL;
    task_done(e);
    return TW_OK;
}

/* What this rank itself still owes the round, if anything: it has to be published, at least in part. */
static bool own_part_missing(const twi_engine_t *e, const twi_task_t *task, const twi_round_t *round, twi_need_t *need)
{
    if (TWI_EPOCH(e->ready_round, e->ready_step) > TWI_EPOCH(e->done_round, 0))
        return false;
    if (round->index >= task->committed)
        *need = TWI_NEED_COMMIT;
    else
        *need = e->must_stage && !twi_engine_gate(round->engine, task->number) ? TWI_NEED_SLOTS : TWI_NEED_GATE;
    return true;
}

/*
 * Whether the round is staged on all ranks. A small task looks at the slots only at first: their tag
 * and data share a cache line, and `ready`, left alone, stays in its owner's cache. Otherwise `ready`
 * decides that all ranks have committed, and then the slots are looked at, which cannot change any
 * more. TW_IN_PROGRESS: some rank has not committed, as far as we looked.
 */
static tw_status_t find_eager(twi_engine_t *e, const twi_task_t *task, uint64_t hash, bool *eager, bool *hash_differs)
{
    *eager = task->steps == 1 && find_staged(e, hash, hash_differs);
    if (*eager)
        return TW_OK;
    if (task->steps == 1 && !e->look_at_ready)
        return TW_IN_PROGRESS;
    if (!peers_ready(e, TWI_EPOCH(e->done_round + 1, 0)))
        return TW_IN_PROGRESS;
    *hash_differs = false;
    *eager = find_staged(e, hash, hash_differs);
    return TW_OK;
}

/* Peers' memory can be reached: all contributions are in slots, or the round is shared. */
static tw_status_t complete_reached(twi_engine_t *e, twi_task_t *task, const twi_round_t *round, twi_need_t *need)
{
    if (e->sharing)
        return twi_share_complete(e, round, need);
    const twi_entry_t *own = twi_round_entry(round, e->rank);
    bool eager;
    bool hash_differs = false;
    *need = TWI_NEED_PEERS;
    TW_TRY(find_eager(e, task, own->hash, &eager, &hash_differs));
    if (!eager || hash_differs || own->count == 0)
        TW_TRY(agree(e, task, round));
    if (eager) {
        consume(e, round);
        twi_stage_prefetch(e);
        return twi_engine_round_done(e);
    }
    if (cancelled(e, task, round)) {
        twi_engine_pass_staged(e);
        return twi_engine_round_done(e);
    }
    return twi_share_complete(e, round, need);
}

static tw_status_t complete_unreached(twi_engine_t *e, twi_task_t *task, const twi_round_t *round, twi_need_t *need)
{
    *need = TWI_NEED_PEERS;
    if (!peers_ready(e, TWI_EPOCH(e->done_round, e->done_step + 1)))
        return TW_IN_PROGRESS;
    TW_TRY(agree(e, task, round));
    if (cancelled(e, task, round)) {
        if (e->ready_round == e->done_round) { /* nobody wants the rest of our contribution */
            e->ready_round++;
            e->ready_step = 0;
            twi_publish(&twi_engine_board(e, e->rank)->ready, TWI_EPOCH(e->ready_round, 0));
        }
        return twi_engine_round_done(e);
    }
    return complete_staged(e, round, twi_round_entry(round, e->rank)->hash, need);
}

static tw_status_t complete_collective(twi_engine_t *e, twi_task_t *task, twi_need_t *need)
{
    const twi_round_t round = twi_engine_round(e, task, e->done_round);
    if (own_part_missing(e, task, &round, need))
        return TW_IN_PROGRESS;
    return e->must_stage ? complete_unreached(e, task, &round, need) : complete_reached(e, task, &round, need);
}

void twi_engine_look_briefly(twi_engine_t *e, bool may_wait)
{
    const twi_task_t *task = twi_engine_task(e, e->done_task);
    const uint64_t tag = TWI_EPOCH(e->done_round, e->done_step) + 1;
    e->look_at_ready = true; /* from now on */
    for (int r = 0, looks = may_wait ? 0 : BRIEF_LOOKS; r < e->size && looks < BRIEF_LOOKS; looks++) {
        const bool slot = task->steps == 1 && looks % 64 != 63;
        r += r == e->rank ||
             (slot ? twi_stage_find(e, r, tag) != NULL : twi_load(&twi_engine_board(e, r)->ready) >= tag);
    }
}

tw_status_t twi_engine_complete_round(twi_engine_t *e, twi_need_t *need)
{
    twi_task_t *task = twi_engine_task(e, e->done_task);
    if (!task->coll)
        return run_local(e, task);
    const tw_status_t status = complete_collective(e, task, need);
    if (status == TW_OK && e->done_round == task->first + task->repeat)
        task_done(e);
    return status;
}
