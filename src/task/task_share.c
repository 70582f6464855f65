/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared execution: a round is cut into chunks, each rank has a home share of them, and whoever waits
 * claims chunks, its own share first, and runs them for everybody: reads all send buffers, writes all
 * recv buffers. When the last chunk is finished the round is complete on all ranks, also on those that
 * have not called in.
 *
 * `claimed` and `finished` of a home count chunks over all rounds and only grow. A chunk is claimed by
 * compare-and-swap while the count is below the round's end, so a late rank finds nothing left and no
 * chunk runs twice. `finished` is added to with release after the chunk's stores, and loaded with
 * acquire before a rank returns the result. Checked by tests/model/epoch.pml.
 */
#include <inttypes.h>

#include "task/engine.h"

static void begin_sharing(twi_engine_t *e, const twi_round_t *round)
{
    if (e->sharing)
        return;
    twi_engine_pass_staged(e);
    for (int home = 0; home < e->size; home++) {
        const uint64_t before = atomic_load_explicit(&e->chunk_end[home], memory_order_relaxed);
        const uint64_t end = before + round->coll->n_chunks(round, home);
        atomic_store_explicit(&e->chunk_end[home], end, memory_order_relaxed);
    }
    e->sharing = true;
}

/* Takes the next chunk of a home; UINT64_MAX if none is left. */
static uint64_t claim(twi_engine_t *e, const twi_round_t *round, int home)
{
    _Atomic uint64_t *claimed = &twi_engine_board(e, home)->claimed;
    const uint64_t end = atomic_load_explicit(&e->chunk_end[home], memory_order_relaxed);
    uint64_t next = atomic_load_explicit(claimed, memory_order_relaxed);
    while (next < end)
        if (atomic_compare_exchange_weak_explicit(claimed, &next, next + 1, memory_order_release, memory_order_relaxed))
            return next - (end - round->coll->n_chunks(round, home));
    return UINT64_MAX;
}

/*
 * Ranks whose buffers may no longer be touched: they failed, or left without completing this round.
 * Pairs with twi_engine_drain: we store `doing`, then load health; a rank that gives up stores its
 * health, then loads `doing`. With a seq_cst fence between on both sides, either we see that it gave
 * up, or it sees us and waits until we are through.
 */
static tw_status_t buffers_gone(const twi_engine_t *e, const twi_round_t *round)
{
    for (int r = 0; r < e->size; r++) {
        const twi_window_header_t *h = twi_transport_header(e->transport, r);
        const uint32_t health = twi_transport_health(e->transport, r);
        if (health == TWI_HEALTH_OK || r == e->rank)
            continue;
        if (health == TWI_HEALTH_FAILED || health == TWI_HEALTH_ABORTED)
            return twi_fail((tw_status_t)h->status, "%s task %" PRIu64 ": rank %d gave up: %.300s",
                            twi_command_name(round->coll->command), twi_round_entry(round, round->rank)->number, r,
                            h->reason);
        if (twi_load(&twi_engine_board(e, r)->done) <= TWI_EPOCH(e->done_round, 0))
            return twi_fail(TW_ERR_PEER_LEFT, "%s task %" PRIu64 ": rank %d left the communicator",
                            twi_command_name(round->coll->command), twi_round_entry(round, round->rank)->number, r);
    }
    return TW_OK;
}

static tw_status_t run_one(twi_engine_t *e, const twi_round_t *round, int home, uint64_t chunk)
{
    tw_status_t status = buffers_gone(e, round);
    if (status == TW_OK) {
        status = round->coll->run_chunk(round, home, chunk);
        if (status != TW_OK)
            (void)twi_fail_prefix(status, "%s task %" PRIu64, twi_command_name(round->coll->command),
                                  twi_round_entry(round, round->rank)->number);
    }
    if (status != TW_OK)
        return status;
    (void)atomic_fetch_add_explicit(&twi_engine_board(e, home)->finished, 1, memory_order_release);
    return TW_OK;
}

/*
 * `doing` is set before a claim can be taken (release of the claim), so that peers who miss a chunk of
 * ours know whom they wait for, even if we die in the middle.
 */
static tw_status_t run_home(twi_engine_t *e, const twi_round_t *round, int home)
{
    twi_board_t *own = twi_engine_board(e, e->rank);
    tw_status_t status = TW_OK;
    bool ran = false;
    atomic_store_explicit(&own->doing, (uint64_t)home + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    for (uint64_t chunk; status == TW_OK && (chunk = claim(e, round, home)) != UINT64_MAX; ran = true)
        status = run_one(e, round, home, chunk);
    atomic_store_explicit(&own->doing, 0, memory_order_release); /* after our last access to anybody's buffers */
    if (ran)
        twi_transport_wake(e->transport);
    return status;
}

bool twi_share_all_finished(const twi_engine_t *e)
{
    for (int home = 0; home < e->size; home++)
        if (twi_load(&twi_engine_board(e, home)->finished) <
            atomic_load_explicit(&e->chunk_end[home], memory_order_relaxed))
            return false;
    return true;
}

/* Rounds before this one may have been staged ones, which each rank completes itself. */
bool twi_share_in_turn(const twi_round_t *round, int rank, uint64_t epoch)
{
    return !twi_round_entry(round, rank)->in_turn || twi_load(&twi_engine_board(round->engine, rank)->done) >= epoch;
}

static bool all_in_turn(const twi_engine_t *e, const twi_round_t *round)
{
    for (int r = 0; r < e->size; r++)
        if (!twi_share_in_turn(round, r, TWI_EPOCH(e->done_round, 0)))
            return false;
    return true;
}

tw_status_t twi_share_complete(twi_engine_t *e, const twi_round_t *round, twi_need_t *need)
{
    begin_sharing(e, round);
    if (!all_in_turn(e, round)) {
        *need = TWI_NEED_TURN;
        return TW_IN_PROGRESS;
    }
    for (int i = 0; i < e->size && !twi_share_all_finished(e); i++) {
        const tw_status_t status = run_home(e, round, (e->rank + i) % e->size);
        if (status != TW_OK)
            return twi_engine_failed(e, status);
    }
    if (!twi_share_all_finished(e)) {
        *need = TWI_NEED_FINISHED;
        return TW_IN_PROGRESS;
    }
    return twi_engine_round_done(e);
}
