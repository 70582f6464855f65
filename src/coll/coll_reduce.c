/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Carrying out reductions. The sources are always handed to the kernel in ascending rank order, so
 * the bits do not depend on who computes, when, or in which pieces.
 *
 * Shared execution: if every rank gets the same result (all_reduce) the elements are dealt out to the
 * homes in equal shares and a chunk's result is stored on all ranks; otherwise (reduce_scatter) the
 * home is the destination.
 */
#include "coll/coll.h"
#include "coll/reduce.h"
#include "cpu/float_mode.h"

#define ROUND_TO 64u /* shares start at multiples of this many elements */

typedef struct span {
    uint64_t first;
    uint64_t n;
} span_t;

/* The elements of the block that `home` is responsible for. */
static span_t share(const twi_round_t *round, int home)
{
    const uint64_t n = twi_round_entry(round, home)->count;
    if (round->coll->personal)
        return (span_t){0, n};
    const uint64_t ranks = (uint64_t)round->size;
    const uint64_t each = (n / ranks + (n % ranks != 0) + ROUND_TO - 1) / ROUND_TO * ROUND_TO;
    const uint64_t first = twi_min_u64(each * (uint64_t)home, n);
    return (span_t){first, twi_min_u64(n - first, each)};
}

static uint64_t chunk_elems(const twi_round_t *round)
{
    return twi_chunk_bytes(round->size) / round->elem_bytes;
}

uint64_t twi_reduce_n_chunks(const twi_round_t *round, int home)
{
    const uint64_t elems = chunk_elems(round);
    return (share(round, home).n + elems - 1) / elems;
}

/* n elements from all ranks, whatever the floating-point mode of the thread that happens to do it. */
static void reduce(const twi_round_t *round, void *const *targets, int n_targets, const void *const *sources,
                   uint64_t n, bool stream)
{
    const twi_entry_t *own = twi_round_entry(round, round->rank);
    const twi_float_mode_t mode = twi_float_mode_begin();
    twi_reduce_select(own->dtype, own->op, stream)(targets, n_targets, sources, round->size, n);
    twi_float_mode_end(mode);
}

/* Whether the result of one rank is too large to be kept in cache. */
static bool result_streams(const twi_round_t *round, int dst)
{
    return twi_round_streams(round, round->coll->sent(round, dst, dst).n * round->elem_bytes);
}

/* A part of the block for `dst`, from all ranks in order, to all targets. */
static tw_status_t reduce_chunk(const twi_round_t *round, int dst, span_t span, void *const *targets, int n_targets,
                                bool stream)
{
    const size_t bytes = span.n * round->elem_bytes;
    const void *sources[TWI_RANKS_MAX];
    uint8_t *scratch = twi_round_scratch(round);
    for (int src = 0; src < round->size; src++) {
        const uint64_t offset = (round->coll->sent(round, src, dst).offset + span.first) * round->elem_bytes;
        TW_TRY(twi_round_load(round, src, offset, bytes, scratch + (size_t)src * bytes, &sources[src]));
    }
    reduce(round, targets, n_targets, sources, span.n, stream);
    return TW_OK;
}

static tw_status_t run_for_one(const twi_round_t *round, int dst, span_t span)
{
    const uint64_t offset = (round->coll->stored(round, dst, dst) + span.first) * round->elem_bytes;
    uint8_t *result = twi_round_scratch(round) + TWI_SCRATCH_BYTES / 2;
    void *target = twi_round_target(round, dst, offset);
    void *to = target ? target : result;
    TW_TRY(reduce_chunk(round, dst, span, &to, 1, target && result_streams(round, dst)));
    return target ? TW_OK : twi_round_store(round, dst, offset, result, span.n * round->elem_bytes);
}

/*
 * The result goes to every rank. If some cannot be stored to directly it is made in scratch memory,
 * still in cache when it is copied on.
 */
static tw_status_t run_for_all(const twi_round_t *round, span_t span)
{
    const uint64_t offset = (round->coll->stored(round, round->rank, round->rank) + span.first) * round->elem_bytes;
    const size_t bytes = span.n * round->elem_bytes;
    void *targets[TWI_RANKS_MAX];
    int n_targets = 0;
    for (int dst = 0; dst < round->size; dst++) {
        void *target = twi_round_target(round, dst, offset);
        if (target)
            targets[n_targets++] = target;
    }
    if (n_targets == round->size)
        return reduce_chunk(round, round->rank, span, targets, n_targets, result_streams(round, round->rank));
    void *result = twi_round_scratch(round) + TWI_SCRATCH_BYTES / 2;
    TW_TRY(reduce_chunk(round, round->rank, span, &result, 1, false));
    for (int i = 0; i < n_targets; i++)
        twi_copy(targets[i], result, bytes, result_streams(round, round->rank));
    for (int dst = 0; dst < round->size; dst++)
        if (!twi_round_target(round, dst, offset))
            TW_TRY(twi_round_store(round, dst, offset, result, bytes));
    return TW_OK;
}

tw_status_t twi_reduce_run_chunk(const twi_round_t *round, int home, uint64_t chunk)
{
    const uint64_t elems = chunk_elems(round);
    const span_t whole = share(round, home);
    const uint64_t first = chunk * elems;
    const span_t span = {whole.first + first, twi_min_u64(whole.n - first, elems)};
    return round->coll->personal ? run_for_one(round, home, span) : run_for_all(round, span);
}

void twi_reduce_consume(const twi_round_t *round, const uint8_t *const *staged, uint64_t first)
{
    const int size = round->size;
    const int rank = round->rank;
    const twi_entry_t *own = twi_round_entry(round, rank);
    const twi_block_t block = round->coll->sent(round, rank, rank);
    const uint64_t n = twi_min_u64(block.n - first, round->pitch);
    const size_t skip = round->coll->personal ? (size_t)rank * round->pitch * round->elem_bytes : 0;
    const void *sources[TWI_RANKS_MAX];
    for (int src = 0; src < size; src++)
        sources[src] = staged[src] + skip;
    void *to = (uint8_t *)(uintptr_t)own->recv + (round->coll->stored(round, rank, rank) + first) * round->elem_bytes;
    reduce(round, &to, 1, sources, n, result_streams(round, rank));
}
