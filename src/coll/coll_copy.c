/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Carrying out collectives that only move blocks. The unit of shared execution is a pair of ranks:
 * what goes from a to b and what goes from b to a, exchanged together, so that an exchange in place
 * (send == recv) saves one block before it is overwritten. A pair belongs to the share of one of its two ranks.
 */
#include <string.h>

#include "coll/coll.h"
#include "coll/reduce.h"

/* The pairs of `home`: itself, and the partners at odd distance above or even distance below it. */
static int next_partner(const twi_round_t *round, int home, int partner)
{
    const int size = round->size;
    for (int p = partner + 1; p < size; p++) {
        const int low = (int)twi_min(p, home);
        const int owner = (p - home) % 2 ? low : p + home - low; /* odd distance: the lower rank */
        if (p == home || owner == home)
            return p;
    }
    return size;
}

static uint64_t pair_chunks(const twi_round_t *round, int a, int b, uint64_t elems)
{
    const uint64_t to = round->coll->sent(round, a, b).n;
    const uint64_t back = round->coll->sent(round, b, a).n;
    return (twi_max_u64(to, back) + elems - 1) / elems;
}

static uint64_t chunk_elems(const twi_round_t *round)
{
    return twi_chunk_bytes(2) / round->elem_bytes;
}

uint64_t twi_copy_n_chunks(const twi_round_t *round, int home)
{
    const uint64_t elems = chunk_elems(round);
    uint64_t chunks = 0;
    for (int p = next_partner(round, home, -1); p < round->size; p = next_partner(round, home, p))
        chunks += pair_chunks(round, home, p, elems);
    return chunks;
}

/* A part of a block on its way. */
typedef struct piece {
    int src;
    int dst;
    uint64_t send_offset; /* bytes */
    uint64_t recv_offset;
    size_t bytes;
    bool stream;
} piece_t;

static piece_t cut(const twi_round_t *round, int src, int dst, uint64_t first, uint64_t elems)
{
    const twi_block_t block = round->coll->sent(round, src, dst);
    const uint64_t n = first >= block.n ? 0 : twi_min_u64(block.n - first, elems);
    return (piece_t){.src = src,
                     .dst = dst,
                     .send_offset = (block.offset + first) * round->elem_bytes,
                     .recv_offset = (round->coll->stored(round, src, dst) + first) * round->elem_bytes,
                     .bytes = n * round->elem_bytes,
                     .stream = twi_round_streams(round, block.n * round->elem_bytes)};
}

static tw_status_t deliver(const twi_round_t *round, const piece_t *piece, const void *from)
{
    void *target = twi_round_target(round, piece->dst, piece->recv_offset);
    if (target == from)
        return TW_OK;
    if (!target)
        return twi_round_store(round, piece->dst, piece->recv_offset, from, piece->bytes);
    twi_copy(target, from, piece->bytes, piece->stream);
    return TW_OK;
}

static tw_status_t fetch(const twi_round_t *round, const piece_t *piece, uint8_t *scratch, const void **out)
{
    *out = scratch;
    return piece->bytes ? twi_round_load(round, piece->src, piece->send_offset, piece->bytes, scratch, out) : TW_OK;
}

static tw_status_t move(const twi_round_t *round, const piece_t *piece, uint8_t *scratch)
{
    const void *from;
    TW_TRY(fetch(round, piece, scratch, &from));
    return piece->bytes ? deliver(round, piece, from) : TW_OK;
}

/* Delivers both ways; what the first delivery would overwrite is saved before it. */
static tw_status_t exchange(const twi_round_t *round, const piece_t *to, const piece_t *back)
{
    uint8_t *scratch = twi_round_scratch(round);
    uint8_t *saved = scratch + TWI_SCRATCH_BYTES / 2;
    const void *returning;
    if (!twi_round_entry(round, to->dst)->in_place) {
        TW_TRY(move(round, to, scratch));
        return move(round, back, scratch);
    }
    TW_TRY(fetch(round, back, saved, &returning));
    if (returning != saved && back->bytes)
        memcpy(saved, returning, back->bytes);
    TW_TRY(move(round, to, scratch));
    return back->bytes ? deliver(round, back, saved) : TW_OK;
}

tw_status_t twi_copy_run_chunk(const twi_round_t *round, int home, uint64_t chunk)
{
    const uint64_t elems = chunk_elems(round);
    int partner = next_partner(round, home, -1);
    for (uint64_t n; chunk >= (n = pair_chunks(round, home, partner, elems)); chunk -= n)
        partner = next_partner(round, home, partner);
    const piece_t to = cut(round, home, partner, chunk * elems, elems);
    if (partner == home)
        return twi_round_entry(round, home)->skip_own ? TW_OK : move(round, &to, twi_round_scratch(round));
    const piece_t back = cut(round, partner, home, chunk * elems, elems);
    return exchange(round, &to, &back);
}

void twi_copy_consume(const twi_round_t *round, const uint8_t *const *staged, uint64_t first)
{
    const int rank = round->rank;
    const twi_entry_t *own = twi_round_entry(round, rank);
    uint8_t *recv = (uint8_t *)(uintptr_t)own->recv;
    const size_t skip = round->coll->personal ? (size_t)rank * round->pitch * round->elem_bytes : 0;
    for (int src = 0; src < round->size; src++) {
        const piece_t piece = cut(round, src, rank, first, round->pitch);
        if (piece.bytes && !(src == rank && own->skip_own))
            memcpy(recv + piece.recv_offset, staged[src] + skip, piece.bytes);
    }
}
