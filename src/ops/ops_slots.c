/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slots of this rank: which part of its window a round of an operator may write. The lowest place
 * that no live round uses is taken, so that operators stay in memory that has been touched before, and
 * small ones in the same few lines of cache. A round is live until every rank's `taken` has passed it.
 */
#include "ops/op.h"

static uint64_t taken_floor(const twi_transport_t *t)
{
    uint64_t floor = UINT64_MAX;
    for (int r = 0; r < t->size; r++) {
        const uint64_t taken = twi_board_load(&twi_board(t, r)->taken);
        floor = taken < floor ? taken : floor;
    }
    return floor;
}

static void forget_taken(twi_ops_t *ops)
{
    const uint64_t floor = taken_floor(ops->transport);
    int kept = 0;
    for (int i = 0; i < ops->n_live; i++)
        if (ops->live[i].until > floor)
            ops->live[kept++] = ops->live[i];
    ops->n_live = kept;
}

static bool is_free(const twi_ops_t *ops, size_t at, size_t bytes)
{
    if (bytes > ops->slots_bytes || at > ops->slots_bytes - bytes)
        return false;
    for (int i = 0; i < ops->n_live; i++)
        if (at < ops->live[i].at + ops->live[i].bytes && ops->live[i].at < at + bytes)
            return false;
    return true;
}

static bool find_place(const twi_ops_t *ops, size_t bytes, size_t *at_out)
{
    size_t best = SIZE_MAX;
    if (is_free(ops, 0, bytes))
        best = 0;
    for (int i = 0; i < ops->n_live; i++) {
        const size_t at = ops->live[i].at + ops->live[i].bytes;
        if (at < best && is_free(ops, at, bytes))
            best = at;
    }
    *at_out = best;
    return best != SIZE_MAX;
}

static tw_status_t reserve(twi_ops_t *ops, size_t end)
{
    if (end <= ops->slots_reserved)
        return TW_OK;
    twi_transport_t *t = ops->transport;
    TW_TRY(twi_window_reserve(t->windows[t->rank], t->layout.ops + ops->slots_reserved, end - ops->slots_reserved));
    ops->slots_reserved = end;
    return TW_OK;
}

tw_status_t twi_slot_fits(const twi_op_t *op, size_t bytes)
{
    if (bytes <= op->ops->slots_bytes)
        return TW_OK;
    return twi_fail(TW_ERR_NO_MEMORY, "%s needs slots of %zu bytes; TILEWIRE_FUSE_BYTES is %zu", twi_op_name(op), bytes,
                    op->ops->slots_bytes);
}

static size_t bytes_of(const twi_op_t *op, int64_t round)
{
    const size_t bytes = op->slot_bytes ? op->slot_bytes[round] : op->slot_bytes_each;
    return (bytes + TWI_LINE_PAIR - 1) / TWI_LINE_PAIR * TWI_LINE_PAIR;
}

/* With the lock; rounds are opened in order. */
static void open_next(twi_op_t *op, int64_t round)
{
    twi_ops_t *ops = op->ops;
    const size_t bytes = bytes_of(op, round);
    size_t at;
    forget_taken(ops);
    if (ops->n_live == TWI_SLOTS_LIVE || !find_place(ops, bytes, &at))
        return;
    if (reserve(ops, at + bytes) != TW_OK) {
        twi_op_trouble(op, TW_ERR_NO_MEMORY);
        return;
    }
    ops->live[ops->n_live++] = (twi_slot_use_t){TWI_CALL_EPOCH(op->call, round + 1), at, bytes};
    twi_board(op->transport, op->rank)->places[op->call % 2][round % TWI_SLOTS_LIVE] = at;
    atomic_store_explicit(&op->opened, round + 1, memory_order_release); /* pairs with the load below */
}

bool twi_slot_open(twi_op_t *op, int64_t round)
{
    if (atomic_load_explicit(&op->opened, memory_order_acquire) > round)
        return true;
    twi_lock_take(&op->ops->slots_lock);
    if (atomic_load_explicit(&op->opened, memory_order_relaxed) == round)
        open_next(op, round);
    const bool open = atomic_load_explicit(&op->opened, memory_order_relaxed) > round;
    twi_lock_drop(&op->ops->slots_lock);
    return open;
}

bool twi_slot_lacks(twi_op_t *op, int64_t round, int rank)
{
    if (twi_slot_open(op, round))
        return false;
    const twi_transport_t *t = op->transport;
    return rank == op->rank || twi_board_load(&twi_board(t, rank)->taken) <= taken_floor(t);
}
