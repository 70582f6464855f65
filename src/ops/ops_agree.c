/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank calls, shown to its peers and compared with what they call. See agree.h. */
#include "ops/agree.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"

static uint64_t hash_of(const twi_call_entry_t *entry)
{
    uint64_t hash = twi_hash_mix(0x6f70u, entry->kind);
    hash = twi_hash_mix(hash, (uint64_t)entry->gemm_kind << 24 | (uint64_t)entry->out_type << 16 |
                                  (uint64_t)entry->scaled_rows << 8 | entry->int8_weights);
    hash = twi_hash_mix(hash, (uint64_t)entry->wire << 32 | (uint32_t)entry->rounds);
    hash = twi_hash_mix(hash, (uint64_t)entry->m);
    hash = twi_hash_mix(hash, (uint64_t)entry->k);
    hash = twi_hash_mix(hash, (uint64_t)entry->n);
    hash = twi_hash_mix(hash, (uint64_t)entry->experts);
    for (size_t i = 0; i < sizeof entry->kernel; i++)
        hash = twi_hash_mix(hash, (uint8_t)entry->kernel[i]);
    return hash;
}

void twi_entry_fill(twi_op_t *op, int64_t m)
{
    const twi_op_problem_t *problem = &op->problem;
    op->entry = (twi_call_entry_t){
        .kind = (uint32_t)problem->kind,
        .gemm_kind = (uint8_t)problem->product.kind,
        .out_type = (uint8_t)problem->product.epilogue.out_type,
        .scaled_rows = problem->kind == TWI_OP_ALL_GATHER_MM && problem->product.epilogue.token,
        .int8_weights = op->plan.quantised,
        .wire = (uint32_t)problem->wire,
        .rounds = problem->rounds,
        .m = m,
        .k = problem->product.k,
        .n = problem->product.n,
        .experts = problem->send_counts ? problem->product.n_groups : 0,
    };
    const char *kernel = op->plan.kernel->name; /* copied by hand: snprintf takes as long as all else here */
    memcpy(op->entry.kernel, kernel, strnlen(kernel, sizeof op->entry.kernel - 1));
    op->entry.hash = hash_of(&op->entry);
}

bool twi_entry_lend(twi_op_t *op, const void *matrix, int64_t rows, int64_t row_bytes, int64_t step)
{
    if (op->size == 1 || rows == 0 || row_bytes == 0)
        return false;
    op->entry.lent = twi_transport_place(op->transport, matrix, (size_t)((rows - 1) * step + row_bytes));
    op->entry.lent_step = step;
    return op->entry.lent != 0;
}

twi_gemm_rows_t twi_entry_lent(const twi_op_t *op, int rank)
{
    const twi_call_entry_t *entry = twi_entry_of(op, rank);
    char *at = entry->lent ? (char *)twi_transport_at(op->transport, rank, entry->lent - 1) : NULL;
    return (twi_gemm_rows_t){.at = at, .step = entry->lent_step};
}

void twi_entry_publish(twi_op_t *op)
{
    twi_ops_board_t *board = twi_board(op->transport, op->rank);
    board->calls[op->call % 2] = op->entry;
    if (op->lists)
        memcpy(twi_op_slot(op, op->rank, 0), op->lists, op->lists_bytes);
    twi_board_store(&board->entered, TWI_CALL_EPOCH(op->call, 1));
    twi_transport_wake(op->transport);
}

const twi_call_entry_t *twi_entry_of(const twi_op_t *op, int rank)
{
    return &twi_board(op->transport, rank)->calls[op->call % 2];
}

bool twi_entry_agrees(const twi_op_t *op, int rank)
{
    return twi_entry_of(op, rank)->hash == op->entry.hash;
}

static void describe(const twi_call_entry_t *entry, char *text, size_t room)
{
    static const char *const wires[] = {"out", "f32", "int8"};
    char rows[32] = "";
    char experts[32] = "";
    if (entry->m >= 0)
        (void)snprintf(rows, sizeof rows, "m %" PRId64 ", ", entry->m);
    if (entry->experts > 0)
        (void)snprintf(experts, sizeof experts, ", experts %" PRId64, entry->experts);
    (void)snprintf(text, room, "%s(%sk %" PRId64 ", n %" PRId64 ", %s%s%s to %s, wire %s, rounds %" PRId32 "%s, %.47s)",
                   twi_op_kind_name(entry->kind), rows, entry->k, entry->n,
                   twi_gemm_kind_name((twi_gemm_kind_t)entry->gemm_kind),
                   entry->int8_weights ? " with int8 weights" : "", entry->scaled_rows ? " with x1_scale" : "",
                   entry->out_type == TWI_BFP16 ? "bf16" : "fp16", entry->wire < 3 ? wires[entry->wire] : "unknown",
                   entry->rounds, experts, entry->kernel);
}

tw_status_t twi_entry_differs(const twi_op_t *op, const twi_call_entry_t *entry, int rank)
{
    char ours[192];
    char theirs[192] = "a barrier or a split";
    describe(&op->entry, ours, sizeof ours);
    if (entry)
        describe(entry, theirs, sizeof theirs);
    return twi_fail(TW_ERR_DIVERGED, "call %" PRIu64 ": rank %d called %s, rank %d called %s", op->call, op->rank, ours,
                    rank, theirs);
}
