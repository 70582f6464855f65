/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the sequence moves the rows of a grouped operator, whose products stand expert by expert and whose
 * messages stand rank by rank: with one alltoallv an expert, straight between the places, or, if blocks
 * are small, with one alltoallv and copies that change the order.
 */
#include <stdlib.h>

#include "bench_fused.h"

enum { SMALL_BLOCK_BYTES = 64 << 10 };

static size_t row_elements(const fused_operands_t *operands)
{
    return fused_op_gathers(operands->c->op) ? operands->c->k : operands->c->n;
}

static bool is_staged(const fused_operands_t *operands)
{
    const fused_case_t *c = operands->c;
    const size_t blocks = (size_t)operands->plan->ranks * (size_t)c->experts;
    const size_t block_bytes = c->m * row_elements(operands) * (operands->types.x.bits / 8) / blocks;
    return c->experts > 1 && block_bytes < SMALL_BLOCK_BYTES;
}

static void set_counts(fused_operands_t *operands)
{
    const fused_plan_t *plan = operands->plan;
    const fused_case_t *c = operands->c;
    const bool gathers = fused_op_gathers(c->op);
    for (int peer = 0; peer < plan->ranks; peer++) {
        for (int j = 0; j < c->experts; j++) {
            const size_t at = (size_t)peer * (size_t)c->experts + (size_t)j;
            operands->send_counts[at] = (int64_t)fused_count(plan, c, operands->rank, peer, j);
            operands->recv_counts[at] = (int64_t)fused_count(plan, c, peer, operands->rank, j);
            operands->group_rows[j] += gathers ? operands->recv_counts[at] : operands->send_counts[at];
        }
    }
}

/* Expert j straight from place to place. */
static void set_direct(fused_operands_t *operands, int j)
{
    const fused_plan_t *plan = operands->plan;
    const fused_case_t *c = operands->c;
    const fused_exchange_t *exchange = &operands->exchanges[j];
    const size_t width = row_elements(operands);
    for (int peer = 0; peer < plan->ranks; peer++) {
        const size_t at = (size_t)peer * (size_t)c->experts + (size_t)j;
        exchange->send_counts[peer] = (uint64_t)operands->send_counts[at] * width;
        exchange->recv_counts[peer] = (uint64_t)operands->recv_counts[at] * width;
        exchange->send_displs[peer] = fused_sent_at(plan, c, operands->rank, peer, j) * width;
        exchange->recv_displs[peer] = fused_came_at(plan, c, peer, operands->rank, j) * width;
    }
}

static uint64_t rows_of_peer(const int64_t *counts, int peer, int experts)
{
    uint64_t rows = 0;
    for (int j = 0; j < experts; j++)
        rows += (uint64_t)counts[(size_t)peer * (size_t)experts + (size_t)j];
    return rows;
}

/* All experts at once, rank by rank on both sides. */
static void set_staged(fused_operands_t *operands)
{
    const fused_exchange_t *exchange = &operands->exchanges[0];
    const size_t width = row_elements(operands);
    uint64_t sent = 0, came = 0;
    for (int peer = 0; peer < operands->plan->ranks; peer++) {
        exchange->send_counts[peer] = rows_of_peer(operands->send_counts, peer, operands->c->experts) * width;
        exchange->recv_counts[peer] = rows_of_peer(operands->recv_counts, peer, operands->c->experts) * width;
        exchange->send_displs[peer] = sent;
        exchange->recv_displs[peer] = came;
        sent += exchange->send_counts[peer];
        came += exchange->recv_counts[peer];
    }
}

/* Between the order of experts, where products stand, and that of ranks. */
static void set_moves(fused_operands_t *operands)
{
    const fused_plan_t *plan = operands->plan;
    const fused_case_t *c = operands->c;
    const bool gathers = fused_op_gathers(c->op);
    size_t by_rank = 0;
    for (int peer = 0; peer < plan->ranks; peer++) {
        for (int j = 0; j < c->experts; j++) {
            const size_t at = (size_t)peer * (size_t)c->experts + (size_t)j;
            const size_t by_expert = gathers ? fused_came_at(plan, c, peer, operands->rank, j)
                                             : fused_sent_at(plan, c, operands->rank, peer, j);
            const size_t rows = (size_t)(gathers ? operands->recv_counts[at] : operands->send_counts[at]);
            operands->moves[at] = (fused_move_t){
                .to = gathers ? by_expert : by_rank, .from = gathers ? by_rank : by_expert, .rows = rows};
            by_rank += rows;
        }
    }
}

static bool allocate(fused_operands_t *operands)
{
    const size_t ranks = (size_t)operands->plan->ranks, blocks = ranks * (size_t)operands->c->experts;
    operands->send_counts = calloc(2 * blocks + (size_t)operands->c->experts, sizeof *operands->send_counts);
    operands->exchange_room = calloc(4 * blocks, sizeof *operands->exchange_room);
    operands->moves = calloc(blocks, sizeof *operands->moves);
    if (operands->send_counts == NULL || operands->exchange_room == NULL || operands->moves == NULL)
        return false;
    operands->recv_counts = operands->send_counts + blocks;
    operands->group_rows = operands->recv_counts + blocks;
    for (int j = 0; j < operands->c->experts; j++) {
        uint64_t *room = operands->exchange_room + 4 * ranks * (size_t)j;
        operands->exchanges[j] = (fused_exchange_t){room, room + ranks, room + 2 * ranks, room + 3 * ranks};
    }
    return true;
}

bool fused_exchanges_make(fused_operands_t *operands)
{
    const fused_case_t *c = operands->c;
    if (!fused_op_grouped(c->op))
        return true;
    if (!allocate(operands))
        return false;
    set_counts(operands);
    if (is_staged(operands)) {
        operands->n_exchanges = 1;
        operands->n_moves = operands->plan->ranks * c->experts;
        set_staged(operands);
        set_moves(operands);
        return true;
    }
    operands->n_exchanges = c->experts;
    for (int j = 0; j < c->experts; j++)
        set_direct(operands, j);
    return true;
}

void fused_exchanges_free(fused_operands_t *operands)
{
    free(operands->send_counts);
    free(operands->exchange_room);
    free(operands->moves);
}
