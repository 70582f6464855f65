/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Prepare calls: every argument is checked here, before anything is registered. All functions
 * return -1 with tw_last_error set, and leave the state as it was.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "api/hccl_session.h"
#include "base/dtype.h"
#include "coll/coll.h"

/* What the checks have in common. */
typedef struct call {
    tw_hccl_t *hccl;
    uint32_t command;
    uint32_t type;
    uint32_t op;
    uint64_t count;
    uint64_t stride; /* as given, 0: count */
    uint32_t repeat;
    uint32_t flags;
    uint64_t send_elems; /* extent over all rounds */
    uint64_t recv_elems;
} call_t;

static tw_status_t check_state(const tw_hccl_t *hccl, uint32_t command)
{
    TW_REQUIRE(hccl, "hccl is NULL");
    if (hccl->phase != TWI_HCCL_READY)
        return twi_fail(TW_ERR_STATE, "Prepare needs InitV2 first, and no Finalize yet");
    if (!(hccl->registered & 1u << command))
        return twi_fail(TW_ERR_STATE, "Prepare of %s needs its SetCcTilingV2 first", twi_command_name(command));
    return twi_hccl_may_prepare(hccl);
}

static tw_status_t check_type(const call_t *c)
{
    TW_REQUIRE(twi_dtype_bytes(c->type) > 0, "type %" PRIu32 " is reserved", c->type);
    TW_REQUIRE(c->repeat >= 1 && c->repeat <= UINT8_MAX, "repeat %" PRIu32 ", must be 1..255", c->repeat);
    TW_REQUIRE((c->flags & ~(uint32_t)TW_HCCL_COMMIT) == 0, "flags 0x%" PRIx32 " are unknown", c->flags);
    if (!twi_command_reduces(c->command))
        return TW_OK;
    TW_REQUIRE(twi_dtype_reduces(c->type), "type %" PRIu32 " cannot be reduced", c->type);
    TW_REQUIRE(c->op == TW_HCCL_SUM || c->op == TW_HCCL_MAX || c->op == TW_HCCL_MIN,
               "op %" PRIu32 " is not sum, max or min", c->op);
    return TW_OK;
}

static tw_status_t check_buffer(const char *name, const void *buffer, uint64_t elems, uint32_t type, size_t *bytes_out)
{
    const size_t elem = twi_dtype_bytes(type);
    size_t bytes;
    uintptr_t end;
    TW_REQUIRE(buffer, "%s is NULL", name);
    TW_REQUIRE(((uintptr_t)buffer & (elem - 1)) == 0, "%s %p is not aligned to its element of %zu bytes", name, buffer,
               elem);
    TW_REQUIRE(!__builtin_mul_overflow(elems, elem, &bytes) && bytes <= PTRDIFF_MAX &&
                   !__builtin_add_overflow((uintptr_t)buffer, bytes, &end),
               "%s: %" PRIu64 " elements of %zu bytes overflow", name, elems, elem);
    *bytes_out = bytes;
    return TW_OK;
}

/* Elements from the first block to the end of the last one: `blocks` of them, over all rounds. */
static tw_status_t extent(const call_t *c, uint64_t blocks, uint64_t *elems_out)
{
    const uint64_t stride = c->stride ? c->stride : c->count;
    uint64_t rounds;
    uint64_t last;
    TW_REQUIRE(!__builtin_mul_overflow(c->count, (uint64_t)c->repeat, &rounds) &&
                   !__builtin_mul_overflow(stride, blocks - 1, &last) &&
                   !__builtin_add_overflow(last, rounds, elems_out),
               "count %" PRIu64 ", stride %" PRIu64 ", repeat %" PRIu32 " overflow", c->count, stride, c->repeat);
    return TW_OK;
}

static tw_hccl_handle_t post(const call_t *c, twi_task_args_t *task)
{
    task->commit = c->flags & TW_HCCL_COMMIT ? c->repeat : 0;
    const twi_hccl_post_t request = {
        .command = c->command, .repeat = c->repeat, .commit = c->flags & TW_HCCL_COMMIT, .task = task};
    return twi_hccl_post(c->hccl, &request);
}

static twi_task_args_t task_of(const call_t *c, const void *send, void *recv)
{
    return (twi_task_args_t){
        .coll = twi_coll_find(c->command),
        .send = send,
        .recv = recv,
        .count = c->count,
        .stride = c->stride ? c->stride : c->count,
        .dtype = c->type,
        .elem_bytes = (uint32_t)twi_dtype_bytes(c->type),
        .op = c->op,
        .repeat = c->repeat,
        .skip_own = c->hccl->skip_own & 1u << c->command,
    };
}

/* Collectives with one count; each side has one block, or one a rank. */
static tw_status_t check_uniform(call_t *c, const void *send, bool send_blocks, void *recv, bool recv_blocks,
                                 twi_task_args_t *task)
{
    TW_TRY(check_state(c->hccl, c->command));
    TW_TRY(check_type(c));
    TW_REQUIRE(c->count > 0, "count is 0");
    const uint64_t ranks = tw_hccl_rank_dim(c->hccl);
    TW_TRY(extent(c, send_blocks ? ranks : 1, &c->send_elems));
    TW_TRY(extent(c, recv_blocks ? ranks : 1, &c->recv_elems));
    *task = task_of(c, send, recv);
    task->recv_blocks = recv_blocks;
    TW_TRY(check_buffer("send", send, c->send_elems, c->type, &task->send_bytes));
    return check_buffer("recv", recv, c->recv_elems, c->type, &task->recv_bytes);
}

tw_hccl_handle_t tw_hccl_all_reduce(tw_hccl_t *hccl, const void *send, void *recv, uint64_t count, uint32_t type,
                                    uint32_t op, uint32_t repeat, uint32_t flags)
{
    call_t c = {.hccl = hccl, .command = TW_HCCL_CMD_ALLREDUCE, .type = type, .op = op};
    c.count = count, c.repeat = repeat, c.flags = flags;
    twi_task_args_t task;
    return check_uniform(&c, send, false, recv, false, &task) == TW_OK ? post(&c, &task) : TW_HCCL_INVALID;
}

tw_hccl_handle_t tw_hccl_all_gather(tw_hccl_t *hccl, const void *send, void *recv, uint64_t send_count, uint32_t type,
                                    uint64_t stride, uint32_t repeat, uint32_t flags)
{
    call_t c = {.hccl = hccl, .command = TW_HCCL_CMD_ALLGATHER, .type = type, .stride = stride};
    c.count = send_count, c.repeat = repeat, c.flags = flags;
    twi_task_args_t task;
    return check_uniform(&c, send, false, recv, true, &task) == TW_OK ? post(&c, &task) : TW_HCCL_INVALID;
}

tw_hccl_handle_t tw_hccl_reduce_scatter(tw_hccl_t *hccl, const void *send, void *recv, uint64_t recv_count,
                                        uint32_t type, uint32_t op, uint64_t stride, uint32_t repeat, uint32_t flags)
{
    call_t c = {.hccl = hccl, .command = TW_HCCL_CMD_REDUCE_SCATTER, .type = type, .op = op, .stride = stride};
    c.count = recv_count, c.repeat = repeat, c.flags = flags;
    twi_task_args_t task;
    return check_uniform(&c, send, true, recv, false, &task) == TW_OK ? post(&c, &task) : TW_HCCL_INVALID;
}

tw_hccl_handle_t tw_hccl_alltoall(tw_hccl_t *hccl, const void *send, void *recv, uint64_t count, uint32_t type,
                                  uint64_t stride, uint32_t repeat, uint32_t flags)
{
    call_t c = {.hccl = hccl, .command = TW_HCCL_CMD_ALLTOALL, .type = type, .stride = stride};
    c.count = count, c.repeat = repeat, c.flags = flags;
    twi_task_args_t task;
    return check_uniform(&c, send, true, recv, true, &task) == TW_OK ? post(&c, &task) : TW_HCCL_INVALID;
}

/* ---- AlltoAllV ---- */

/* The furthest element that any block reaches, over all rounds. */
static tw_status_t extent_v(const char *side, const call_t *c, const uint64_t *counts, const uint64_t *displs,
                            uint64_t *elems_out)
{
    uint64_t furthest = 0;
    for (uint32_t r = 0; r < tw_hccl_rank_dim(c->hccl); r++) {
        uint64_t n;
        uint64_t end;
        TW_REQUIRE(!__builtin_mul_overflow(counts[r], (uint64_t)c->repeat, &n) &&
                       !__builtin_add_overflow(n, displs[r], &end),
                   "%s_counts[%" PRIu32 "] %" PRIu64 ", %s_displs %" PRIu64 ", repeat %" PRIu32 " overflow", side, r,
                   counts[r], side, displs[r], c->repeat);
        if (n > 0 && end > furthest)
            furthest = end;
    }
    *elems_out = furthest;
    return TW_OK;
}

static tw_status_t check_v(call_t *c, uint32_t recv_type, twi_task_args_t *task)
{
    TW_TRY(check_state(c->hccl, c->command));
    TW_TRY(check_type(c));
    TW_REQUIRE(recv_type == c->type, "recv_type %" PRIu32 " differs from send_type %" PRIu32, recv_type, c->type);
    TW_REQUIRE(tw_hccl_rank_dim(c->hccl) <= TW_HCCL_MAX_RANKS_ALLTOALLV, "alltoallv works on at most %d ranks",
               TW_HCCL_MAX_RANKS_ALLTOALLV);
    static const char *const names[] = {"send_counts", "send_displs", "recv_counts", "recv_displs"};
    for (int i = 0; i < TWI_N_ARRAYS; i++)
        TW_REQUIRE(task->arrays[i], "%s is NULL", names[i]);
    TW_TRY(extent_v("send", c, task->arrays[TWI_SEND_COUNTS], task->arrays[TWI_SEND_DISPLS], &c->send_elems));
    TW_TRY(extent_v("recv", c, task->arrays[TWI_RECV_COUNTS], task->arrays[TWI_RECV_DISPLS], &c->recv_elems));
    TW_TRY(check_buffer("send", task->send, c->send_elems, c->type, &task->send_bytes));
    TW_TRY(check_buffer("recv", task->recv, c->recv_elems, c->type, &task->recv_bytes));
    task->elem_bytes = (uint32_t)twi_dtype_bytes(c->type);
    return TW_OK;
}

tw_hccl_handle_t tw_hccl_alltoallv(tw_hccl_t *hccl, const void *send, const uint64_t *send_counts,
                                   const uint64_t *send_displs, uint32_t send_type, void *recv,
                                   const uint64_t *recv_counts, const uint64_t *recv_displs, uint32_t recv_type,
                                   uint32_t repeat, uint32_t flags)
{
    call_t c = {.hccl = hccl, .command = TW_HCCL_CMD_ALLTOALLV, .type = send_type, .repeat = repeat, .flags = flags};
    twi_task_args_t task = {
        .coll = &twi_coll_alltoallv,
        .send = send,
        .recv = recv,
        .dtype = send_type,
        .repeat = repeat,
        .arrays = {send_counts, send_displs, recv_counts, recv_displs},
    };
    return check_v(&c, recv_type, &task) == TW_OK ? post(&c, &task) : TW_HCCL_INVALID;
}

/* ---- InterHcclGroupSync ---- */

static tw_status_t check_sync(const tw_hccl_t *hccl, int8_t src_group)
{
    TW_REQUIRE(hccl, "hccl is NULL");
    if (hccl->phase != TWI_HCCL_READY)
        return twi_fail(TW_ERR_STATE, "InterHcclGroupSync needs InitV2 first");
    TW_REQUIRE(src_group >= 0 && (uint32_t)src_group < hccl->context->n_groups, "src_group %d, must be 0..%" PRIu32,
               src_group, hccl->context->n_groups - 1);
    TW_REQUIRE((uint32_t)src_group != hccl->context->group, "src_group %d is the own group", src_group);
    return twi_hccl_may_prepare(hccl);
}

static bool sync_with(tw_hccl_t *hccl, int8_t src_group, tw_hccl_handle_t src)
{
    if (check_sync(hccl, src_group) != TW_OK)
        return false;
    const twi_hccl_post_t request = {.counts_only = true, .gate = hccl->context->groups[src_group], .gate_handle = src};
    return twi_hccl_post(hccl, &request) >= 0;
}

int32_t tw_hccl_inter_group_sync(tw_hccl_t *hccl, int8_t src_group, tw_hccl_handle_t src)
{
    return twi_hccl_result("InterHcclGroupSync", sync_with(hccl, src_group, src));
}
