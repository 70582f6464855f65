/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Publishing: making this rank's contributions reachable and saying so in `ready`.
 *
 * Small contributions are copied into a slot of the own window (eager). Larger ones stay where they
 * are if peers can reach them; otherwise (must_stage) they pass through the slots in steps. A slot
 * may be overwritten when every rank's `done` has passed the step that it holds:
 *
 *     owner: loads done of all peers (acquire), writes payload, stores tag, then ready (release)
 *     peer:  loads ready (acquire), tag (acquire), reads payload, stores done (release)
 *
 * Checked by tests/model/epoch.pml.
 */
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/sizes.h"
#include "task/engine.h"
#include "transport/bell.h"

static size_t slot_pitch(size_t payload)
{
    return (sizeof(twi_slot_t) + payload + TWI_LINE_PAIR - 1) / TWI_LINE_PAIR * TWI_LINE_PAIR;
}

size_t twi_engine_stage_bytes(void)
{
    const size_t eager = TWI_SLOTS * slot_pitch(twi_config()->eager_bytes);
    const size_t stage = TWI_SLOTS * slot_pitch(twi_config()->stage_bytes);
    return twi_max_u64(eager, stage);
}

tw_status_t twi_stage_init(twi_engine_t *e)
{
    e->must_stage = e->transport->reach == TWI_REACH_NONE && e->size > 1;
    e->slot_bytes = e->must_stage ? twi_config()->stage_bytes : twi_config()->eager_bytes;
    e->slot_pitch = slot_pitch(e->slot_bytes);
    /* 16: the widest element */
    if (e->must_stage && e->slot_bytes / (size_t)e->size < 16)
        return twi_fail(TW_ERR_ARGUMENT, "TILEWIRE_STAGE_BYTES %zu is too small for %d ranks", e->slot_bytes, e->size);
    return TW_OK;
}

static twi_slot_t *slot_of(const twi_engine_t *e, int rank, uint64_t position)
{
    const size_t offset = e->transport->layout.stage + (size_t)(position % TWI_SLOTS) * e->slot_pitch;
    return (twi_slot_t *)(void *)twi_transport_at(e->transport, rank, offset);
}

void twi_stage_prefetch(const twi_engine_t *e)
{
    twi_prefetch_write(slot_of(e, e->rank, e->staged));
}

/*
 * Steps are staged in slot after slot, so we know where to look. Only where rounds have several steps
 * can a cancelled round leave slots that we did not count: then we look at all of them.
 */
twi_slot_t *twi_stage_find(twi_engine_t *e, int rank, uint64_t tag)
{
    for (uint64_t i = 0; i < (e->must_stage ? TWI_SLOTS : 1); i++) {
        twi_slot_t *slot = slot_of(e, rank, e->peer_staged[rank] + i);
        if (twi_load(&slot->tag) == tag) {
            e->peer_staged[rank] += i;
            return slot;
        }
    }
    return NULL;
}

/*
 * Elements of each block that a slot has room for: one block for every rank if they are personal, else one for all.
 * Eager ones of the second kind are limited to slot_bytes / ceil(size / 2), since every rank reads every slot: what is
 * larger is shared.
 */
uint64_t twi_stage_pitch(const twi_engine_t *e, const twi_task_args_t *args)
{
    const size_t readers = e->must_stage ? 1 : ((size_t)e->size + 1) / 2;
    const size_t bytes = (args->coll->personal ? (size_t)e->size : readers) * args->elem_bytes; /* of one element */
    if (args->count > 0 && args->count <= UINT32_MAX && args->count * bytes <= e->slot_bytes)
        return args->count;
    return e->slot_bytes / bytes;
}

uint64_t twi_stage_steps(const twi_round_t *round, int rank)
{
    const uint64_t uniform = twi_round_entry(round, rank)->count;
    uint64_t longest = uniform;
    for (int dst = 0; uniform == 0 && dst < round->size; dst++) /* alltoallv */
        longest = twi_max_u64(longest, round->coll->sent(round, rank, dst).n);
    if (longest == round->pitch)
        return 1;
    return round->pitch ? (longest + round->pitch - 1) / round->pitch : UINT64_MAX;
}

/*
 * Whether every rank is through with what our slot number `staged` holds from its last use: we too,
 * because completing a round looks at all slots, ours included.
 */
bool twi_stage_slot_free(const twi_engine_t *e, uint64_t staged)
{
    return twi_stage_done_floor(e) >= atomic_load_explicit(&slot_of(e, e->rank, staged)->tag, memory_order_relaxed);
}

bool twi_stage_holds_slot(const twi_engine_t *e, uint64_t staged, int rank)
{
    return twi_load(&twi_engine_board(e, rank)->done) <
           atomic_load_explicit(&slot_of(e, e->rank, staged)->tag, memory_order_relaxed);
}

uint64_t twi_stage_done_floor(const twi_engine_t *e)
{
    uint64_t floor = UINT64_MAX;
    for (int r = 0; r < e->size; r++)
        floor = twi_min_u64(floor, twi_load(&twi_engine_board(e, r)->done));
    return floor;
}

bool twi_stage_all_done(twi_engine_t *e, uint64_t epoch)
{
    if (e->done_floor < epoch)
        e->done_floor = twi_stage_done_floor(e);
    return e->done_floor >= epoch;
}

static bool next_slot_free(twi_engine_t *e)
{
    return twi_stage_all_done(e, e->own_tags[e->staged % TWI_SLOTS]);
}

static void copy_block(const twi_round_t *round, int dst, uint64_t first, uint8_t *to)
{
    const twi_block_t block = round->coll->sent(round, round->rank, dst);
    if (first >= block.n)
        return;
    const uint64_t n = twi_min_u64(block.n - first, round->pitch);
    const uint8_t *send = (const uint8_t *)(uintptr_t)twi_round_entry(round, round->rank)->send;
    memcpy(to, send + (block.offset + first) * round->elem_bytes, n * round->elem_bytes);
}

static void stage_step(twi_engine_t *e, const twi_round_t *round, uint64_t step, uint64_t epoch)
{
    twi_slot_t *slot = slot_of(e, e->rank, e->staged);
    const size_t pitch_bytes = round->pitch * round->elem_bytes;
    slot->hash = twi_round_entry(round, e->rank)->hash;
    if (round->coll->personal) {
        for (int dst = 0; dst < e->size; dst++)
            copy_block(round, dst, step * round->pitch, slot->payload + (size_t)dst * pitch_bytes);
    } else {
        copy_block(round, e->rank, step * round->pitch, slot->payload);
    }
    twi_publish(&slot->tag, epoch + 1);
    e->own_tags[e->staged % TWI_SLOTS] = epoch + 1;
    e->staged++;
}

static void announce(twi_engine_t *e)
{
    twi_publish(&twi_engine_board(e, e->rank)->ready, TWI_EPOCH(e->ready_round, e->ready_step));
}

/* The staging memory is reserved when it is first needed. */
static bool reserve_stage(twi_engine_t *e)
{
    if (e->stage_reserved)
        return true;
    twi_window_t *own = e->transport->windows[e->rank];
    const tw_status_t status = twi_window_reserve(own, e->transport->layout.stage, TWI_SLOTS * e->slot_pitch);
    if (status != TW_OK) {
        twi_engine_poison(e, status);
        return false;
    }
    e->stage_reserved = true;
    return true;
}

/* Publishes one committed round; false if slots are missing (must_stage only). */
static bool publish_round(twi_engine_t *e, const twi_task_t *task)
{
    const twi_round_t round = twi_engine_round(e, task, e->ready_round);
    if (e->must_stage) {
        for (; e->ready_step < task->steps; e->ready_step++) {
            if (!reserve_stage(e) || !next_slot_free(e))
                return false;
            stage_step(e, &round, e->ready_step, TWI_EPOCH(e->ready_round, e->ready_step));
        }
    } else if (task->steps == 1 && reserve_stage(e) && next_slot_free(e)) {
        stage_step(e, &round, 0, TWI_EPOCH(e->ready_round, 0));
    }
    e->ready_round++;
    e->ready_step = 0;
    return true;
}

const twi_gate_t *twi_engine_gate(twi_engine_t *e, uint64_t number)
{
    for (; e->n_gates_passed < e->n_gates; e->n_gates_passed++) {
        const twi_gate_t *gate = &e->gates[e->n_gates_passed];
        if (gate->before > number)
            return NULL;
        if (twi_load(&gate->source->tasks_done) <= gate->number)
            return gate;
    }
    e->n_gates = e->n_gates_passed = 0;
    return NULL;
}

bool twi_engine_publish(twi_engine_t *e)
{
    const uint64_t before = TWI_EPOCH(e->ready_round, e->ready_step);
    while (e->publish_task < e->n_tasks && e->health == TW_OK) {
        const twi_task_t *task = twi_engine_task(e, e->publish_task);
        const uint32_t index = (uint32_t)(e->ready_round - task->first);
        if (!task->coll && !task->local_done)
            break; /* what comes after it may tell peers that it has been done */
        if (index == task->repeat) {
            e->publish_task++;
            continue;
        }
        const twi_entry_t *entry = &twi_engine_board(e, e->rank)->entries[task->sequence % TWI_TASK_RING];
        if (index >= atomic_load_explicit(&entry->cancelled_from, memory_order_relaxed)) {
            e->ready_round++;
            continue;
        }
        if (index >= task->committed || twi_engine_gate(e, task->number) || !publish_round(e, task))
            break;
    }
    if (TWI_EPOCH(e->ready_round, e->ready_step) == before)
        return false;
    announce(e);
    twi_transport_wake(e->transport);
    return true;
}
