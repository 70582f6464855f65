/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_OPS_BOARD_H
#define TWI_OPS_BOARD_H
/*
 * What the ranks of a communicator show each other of their operators: a board in every window, and
 * slots behind it. All operators of a communicator are numbered alike on all ranks: the call.
 *
 * Words of the board only grow. A word counts what is finished of the call at hand: TWI_CALL_EPOCH(call,
 * count), so that the next call needs no reset. The owner stores them (release), peers load them (acquire):
 *     entered  the entry of the call is there, and its count lists in the slot of its first round
 *     sent     units of the slots that can be read: partial results, or rows of the left matrix
 *     result   units of finished results that can be read; of gathers: strips that are packed, for the deadlines
 *     taken    rounds of ALL ranks of which this rank has read what it needs; a whole call: the next epoch
 *     meetings barriers and splits that are begun: who is in one that we have not begun does not enter our call
 *     pace     tiles of the product that are multiplied: who compares it with its own knows whether it is behind.
 *              Relaxed, because nothing else follows from it; workers may store it out of order
 * And one for each piece of this rank's own results:
 *     marks    who sums it (TWI_MARK_...): this rank, or whoever takes it first of those that have nothing else to do
 *
 * A rank writes to its own window only, and peers read its slots; but for marks, for pieces of its slot that others
 * sum, and for what it lends them in its entry: its y, to which they write results, after it has entered and before
 * they say so by their `result` or `sent`, or by a mark; or its rows of the left matrix, which they read between its
 * `sent` and their `taken`, for which the end of the call waits. All that is touched between twi_engine_touch_begin
 * and _end only.
 *
 * A helper, who sums a piece of another rank, reads the slots of all ranks. The `taken` of that rank keeps them: it
 * waits for the mark before it moves `taken`.
 *
 * A slot holds one round of a call; its memory may be used again when every rank's `taken` has passed that round
 * (ops_slots.c):
 *     owner: loads taken of all ranks (acquire), writes the slot and its place, stores sent or result (release)
 *     peer:  loads sent or result (acquire), reads place and slot, stores taken (release)
 * Checked by tests/model/ops.pml and given.pml, but for `meetings` and `pace`, on which no result depends.
 *
 * Two entries, two sets of places and two of marks suffice: who fills those of call c has ended call c-1, for which it
 * saw that all ranks entered c-1, and so had ended c-2.
 */
#include "transport/transport.h"

#define TWI_CALL_UNIT_BITS 24u
#define TWI_CALL_UNITS_MAX ((INT64_C(1) << TWI_CALL_UNIT_BITS) - 1)
#define TWI_CALL_EPOCH(call, count) ((uint64_t)(call) << TWI_CALL_UNIT_BITS | (uint64_t)(count))
#define TWI_SLOTS_LIVE 8 /* rounds of a rank that are not taken yet */

/*
 * What becomes of a piece of a rank's results once the rank has multiplied it; as everything on the board it grows.
 *     owner: writes its partial, stores KEPT or GIVEN (release)
 *     taker: loads GIVEN (acquire), makes it TAKEN by compare-and-exchange, sums, stores DONE (release)
 *     owner: loads DONE (acquire)
 */
enum {
    TWI_MARK_NONE,
    TWI_MARK_KEPT,  /* its owner sums it, or has */
    TWI_MARK_GIVEN, /* whoever takes it sums it */
    TWI_MARK_TAKEN, /* by rank 0; one more for every next rank */
};
#define TWI_MARK_DONE(size) (TWI_MARK_TAKEN + (size))
#define TWI_MARKS_MOST 512

/* What a rank calls, in words that a message can show. */
typedef struct twi_call_entry {
    uint64_t hash;        /* of what has to agree */
    uint32_t kind;        /* twi_op_kind_t */
    uint8_t gemm_kind;    /* twi_gemm_kind_t */
    uint8_t out_type;     /* of the result */
    uint8_t scaled_rows;  /* 1: scales of rows travel with them, and have a place in the slots */
    uint8_t int8_weights; /* 1: for rows of floats */
    uint32_t wire;
    int32_t rounds; /* as asked for */
    int64_t m;      /* -1: need not agree */
    int64_t k, n;
    int64_t experts; /* 0: not grouped */
    char kernel[48]; /* its name: tiles are of its shape */
    /* Need not agree: where in the rank's window the matrix is that it lends to peers, and 1 more; 0: none. */
    uint64_t lent;
    int64_t lent_step; /* bytes between its rows */
    int64_t marks;     /* pieces of its results that it marks; those after them it keeps */
} twi_call_entry_t;

typedef struct twi_ops_board {
    _Alignas(TWI_LINE_PAIR) _Atomic uint64_t entered;
    _Alignas(TWI_LINE_PAIR) _Atomic uint64_t sent;
    _Alignas(TWI_LINE_PAIR) _Atomic uint64_t result;
    _Alignas(TWI_LINE_PAIR) _Atomic uint64_t taken;
    _Alignas(TWI_LINE_PAIR) _Atomic uint64_t pace;
    _Alignas(TWI_LINE_PAIR) _Atomic uint64_t meetings;
    _Alignas(TWI_LINE_PAIR) twi_call_entry_t calls[2]; /* [call % 2] */
    _Alignas(
        TWI_LINE_PAIR) uint64_t places[2][TWI_SLOTS_LIVE]; /* [call % 2][round % LIVE]: bytes from the first slot */
    _Alignas(TWI_LINE_PAIR) _Atomic uint64_t marks[2][TWI_MARKS_MOST]; /* [call % 2] */
} twi_ops_board_t;

static inline twi_ops_board_t *twi_board(const twi_transport_t *t, int rank)
{
    return (twi_ops_board_t *)(void *)twi_transport_at(t, rank, t->layout.ops_board);
}

static inline uint64_t twi_board_load(const _Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_acquire);
}

static inline void twi_board_store(_Atomic uint64_t *word, uint64_t value)
{
    atomic_store_explicit(word, value, memory_order_release);
}

/* What a word counts of a call: nothing before it, and all that there can be after it. */
static inline int64_t twi_epoch_count(uint64_t epoch, uint64_t call)
{
    if (epoch < TWI_CALL_EPOCH(call, 0))
        return 0;
    return epoch < TWI_CALL_EPOCH(call + 1, 0) ? (int64_t)(epoch - TWI_CALL_EPOCH(call, 0)) : TWI_CALL_UNITS_MAX;
}

/* The slot of a round of `rank`, once its `sent`, `result` or `entered` says that it is there. */
static inline char *twi_board_slot(const twi_transport_t *t, int rank, uint64_t call, int64_t round)
{
    const uint64_t place = twi_board(t, rank)->places[call % 2][round % TWI_SLOTS_LIVE];
    return (char *)twi_transport_at(t, rank, t->layout.ops + place);
}

#endif
