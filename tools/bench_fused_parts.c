/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the product alone and the collective alone leave is what they leave in the sequence: otherwise their times are
 * those of something else. Both are compared by a sum of their bits, as one may be where the other was.
 */
#include <stdio.h>
#include <string.h>

#include "bench_fused.h"

/* ---- Where they leave it ----------------------------------------------------------------------- */

static const fused_tensor_t *product_of(const fused_operands_t *operands)
{
    return fused_op_gathers(operands->c->op) ? &operands->partial : &operands->alone;
}

static const fused_tensor_t *received_by(const fused_operands_t *operands)
{
    if (!fused_op_gathers(operands->c->op))
        return &operands->received;
    return operands->n_moves > 0 ? &operands->staged : &operands->gathered;
}

static size_t received_bytes(const fused_operands_t *operands)
{
    const bool int8 = operands->plan->wire == TW_WIRE_INT8;
    return int8 ? operands->rows_y * operands->c->n : received_by(operands)->bytes;
}

/* ---- Sums -------------------------------------------------------------------------------------- */

static uint64_t add_bits(uint64_t sum, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (size_t done = 0; done < bytes; done += sizeof sum) {
        uint64_t word = 0;
        memcpy(&word, at + done, bytes - done < sizeof word ? bytes - done : sizeof word);
        sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
        sum ^= sum >> 29;
    }
    return sum;
}

static uint64_t product_sum(const fused_operands_t *operands, const fused_tensor_t *product)
{
    return add_bits(add_bits(1, product->data, product->bytes), operands->mm_y_alone.data, operands->mm_y_alone.bytes);
}

static uint64_t received_sum(const fused_operands_t *operands)
{
    const uint64_t sum = add_bits(1, received_by(operands)->data, received_bytes(operands));
    const fused_tensor_t *tokens = &operands->token_all;
    return fused_op_gathers(operands->c->op) ? add_bits(sum, tokens->data, tokens->bytes) : sum;
}

void fused_parts_keep(fused_operands_t *operands)
{
    operands->product_sum = product_sum(operands, &operands->partial);
    operands->received_sum = received_sum(operands);
}

static void poison(const fused_tensor_t *tensor)
{
    if (tensor->data != NULL)
        memset(tensor->data, 0xff, tensor->bytes);
}

void fused_parts_poison(const fused_operands_t *operands)
{
    poison(product_of(operands));
    poison(received_by(operands));
    poison(&operands->mm_y_alone);
    if (fused_op_gathers(operands->c->op))
        poison(&operands->token_all);
}

static bool same(const fused_operands_t *operands, uint64_t sum, uint64_t kept, const char *what)
{
    const fused_case_t *c = operands->c;
    if (sum != kept)
        (void)fprintf(
            stderr,
            "tilewire bench: rank %d: %s %zu,%zu,%zu: what the %s alone leaves differs from what it leaves in "
            "the sequence\n",
            operands->rank, fused_op_names[c->op], c->m, c->k, c->n, what);
    return sum == kept;
}

bool fused_parts_same(const fused_operands_t *operands)
{
    const uint64_t product = product_sum(operands, product_of(operands));
    const bool right = same(operands, product, operands->product_sum, "product");
    return same(operands, received_sum(operands), operands->received_sum, "collective") && right;
}
