/* SPDX-License-Identifier: Apache-2.0 */
/* Packed weights: checks the tensors, finds memory, and calls src/gemm. No state, any thread. */
#include <inttypes.h>
#include <stdlib.h>

#include "api/gemm_args.h"
#include "base/args.h"
#include "base/pages.h"
#include "gemm/weight.h"

/* ---- Checks ----------------------------------------------------------------------------------- */

static tw_status_t check_args(const tw_weight_args_t *user_args, bool need_data, tw_weight_args_t *args_out,
                              twi_api_right_t *right_out)
{
    TW_TRY(twi_args_copy(args_out, sizeof *args_out, user_args, "args"));
    const twi_api_right_args_t right = {
        .name = "x2",
        .left_name = "x1",
        .x2 = args_out->x2,
        .format = args_out->format,
        .scale = args_out->antiquant_scale,
        .offset = args_out->antiquant_offset,
        .group_size = args_out->antiquant_group_size,
    };
    return twi_api_right_check(&right, NULL, need_data, right_out);
}

tw_status_t tw_weight_bytes(const tw_weight_args_t *user_args, size_t *bytes_out)
{
    tw_weight_args_t args;
    twi_api_right_t right;
    tw_weight_t header;
    TW_TRY(check_args(user_args, false, &args, &right));
    TW_REQUIRE(bytes_out, "bytes_out is NULL");
    TW_TRY(twi_api_right_weight(&right, &header));
    *bytes_out = (size_t)header.bytes;
    return TW_OK;
}

/* ---- Memory ----------------------------------------------------------------------------------- */

/* Memory for the weight: the caller's, or, noted in the header, our own. */
static tw_status_t find_memory(const tw_weight_args_t *args, tw_weight_t *header, void **memory_out)
{
    if (!args->memory) {
        TW_REQUIRE(args->memory_bytes == 0, "memory_bytes is %zu, but memory is NULL", args->memory_bytes);
        size_t mapped = (size_t)header->bytes;
        void *memory = twi_pages_map(&mapped);
        if (!memory)
            return twi_fail(TW_ERR_NO_MEMORY, "no memory for a weight of %" PRIu64 " bytes", header->bytes);
        header->owned = mapped;
        *memory_out = memory;
        return TW_OK;
    }
    TW_REQUIRE((uintptr_t)args->memory % TWI_GEMM_WEIGHT_ALIGN == 0, "memory %p is not aligned to %d bytes",
               args->memory, TWI_GEMM_WEIGHT_ALIGN);
    if (args->memory_bytes < header->bytes)
        return twi_fail(TW_ERR_NO_MEMORY, "memory_bytes is %zu, must be at least %" PRIu64, args->memory_bytes,
                        header->bytes);
    *memory_out = args->memory;
    return TW_OK;
}

/* ---- Calls ------------------------------------------------------------------------------------ */

static tw_status_t pack(const tw_weight_args_t *args, const twi_api_right_t *right, const twi_api_scratch_t *scratch,
                        tw_weight_t **weight_out)
{
    tw_weight_t header;
    void *memory = NULL;
    TW_TRY(twi_api_right_weight(right, &header));
    TW_TRY(find_memory(args, &header, &memory));
    twi_gemm_weight_source_t source = {.kind = right->kind, .n_matrices = right->n_matrices};
    source.matrices = twi_api_right_bind(right, scratch, &source.antiquant);
    twi_api_right_fill(right, scratch);
    twi_gemm_weight_fill(&source, &header, memory);
    *weight_out = memory;
    return TW_OK;
}

tw_status_t tw_weight_pack(const tw_weight_args_t *user_args, tw_weight_t **weight_out)
{
    tw_weight_args_t args;
    twi_api_right_t right;
    twi_api_scratch_t scratch = {0};
    TW_TRY(check_args(user_args, true, &args, &right));
    TW_REQUIRE(weight_out, "weight_out is NULL");
    twi_api_right_place(&right, &scratch);
    TW_TRY(twi_api_scratch_alloc(&scratch));
    const tw_status_t status = pack(&args, &right, &scratch, weight_out);
    free(scratch.base);
    return status;
}

tw_status_t tw_weight_open(void *memory, size_t memory_bytes, tw_weight_t **weight_out)
{
    TW_REQUIRE(memory, "memory is NULL");
    TW_REQUIRE((uintptr_t)memory % TWI_GEMM_WEIGHT_ALIGN == 0, "memory %p is not aligned to %d bytes", memory,
               TWI_GEMM_WEIGHT_ALIGN);
    TW_REQUIRE(weight_out, "weight_out is NULL");
    TW_TRY(twi_gemm_weight_check(memory, memory_bytes, "memory"));
    tw_weight_t *weight = memory;
    TW_REQUIRE(weight->owned == 0, "memory %p holds a weight that was packed into the library's own memory", memory);
    *weight_out = weight;
    return TW_OK;
}

void tw_weight_release(tw_weight_t *weight)
{
    if (weight && weight->owned > 0)
        twi_pages_unmap(weight, (size_t)weight->owned);
}
