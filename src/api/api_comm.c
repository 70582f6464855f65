/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators: making, splitting, ending them, and the small questions about them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tilewire/hccl.h>

#include "api/comm.h"
#include "base/args.h"
#include "base/config.h"
#include "base/log.h"
#include "coll/coll.h"
#include "ops/ops.h"

/* ---- Creation ---- */

static tw_status_t check_name(const char *name)
{
    if (!name)
        return TW_OK;
    const size_t length = strnlen(name, TW_NAME_MAX + 1);
    TW_REQUIRE(length >= 1 && length <= TW_NAME_MAX, "name has %s, must have 1..%d bytes",
               length ? "more than 127 bytes" : "0 bytes", TW_NAME_MAX);
    return TW_OK;
}

static uint64_t or_default(uint64_t value, uint64_t preset)
{
    return value ? value : preset;
}

tw_status_t twi_comm_join(twi_boot_t *boot, const tw_comm_args_t *args, tw_comm_t **comm_out)
{
    const twi_config_t *config = twi_config();
    tw_comm_t *comm = calloc(1, sizeof *comm);
    if (!comm)
        return twi_fail(TW_ERR_NO_MEMORY, "no memory for a communicator");
    (void)pthread_mutex_init(&comm->heap_lock, NULL);
    comm->profile = args->profile != TW_PROFILE_DEFAULT ? args->profile : (tw_profile_t)config->profile;
    const twi_transport_args_t transport = {
        .boot = boot,
        .veto = args->name ? twi_comm_table_add(comm, args->name, boot->rank) : TW_OK,
        .name = args->name ? args->name : "",
        .wish = args->transport != TW_TRANSPORT_AUTO ? args->transport : (tw_transport_t)config->transport,
        .board_bytes = twi_engine_board_bytes(boot->size),
        .stage_bytes = twi_engine_stage_bytes(),
        .ops_board_bytes = twi_ops_board_bytes(),
        .ops_bytes = config->fuse_bytes,
        .window_bytes = or_default(args->window_bytes, config->window_bytes),
        .join_timeout_ns = config->join_timeout,
        .timeout_ns = or_default(args->timeout_ns, config->timeout),
        .enter_timeout_ns = or_default(args->enter_timeout_ns, config->enter_timeout),
    };
    tw_status_t status = twi_transport_open(&transport, &comm->transport);
    if (status == TW_OK)
        status = twi_engine_create(comm->transport, &comm->engine);
    if (status == TW_OK && !args->name)
        status = twi_comm_table_add(comm, comm->transport->name, boot->rank);
    if (status != TW_OK) {
        tw_comm_destroy(comm);
        return status;
    }
    twi_comm_table_ready(comm);
    *comm_out = comm;
    return TW_OK;
}

tw_status_t tw_comm_create(const tw_comm_args_t *user_args, tw_comm_t **comm_out)
{
    tw_comm_args_t args;
    TW_TRY(twi_args_copy(&args, sizeof args, user_args, "args"));
    TW_REQUIRE(comm_out, "comm_out is NULL");
    TW_TRY(check_name(args.name));
    TW_REQUIRE(twi_transport_name(args.transport), "transport %d is not one of tw_transport_t", (int)args.transport);
    TW_REQUIRE(args.profile >= TW_PROFILE_DEFAULT && args.profile <= TW_PROFILE_A3,
               "profile %d is not one of tw_profile_t", (int)args.profile);
    TW_REQUIRE(!(args.allgather && args.address), "address '%s' and allgather are both given", args.address);
    const twi_config_t *config = twi_config();
    const twi_boot_args_t boot_args = {
        .address = args.address,
        .rank = args.rank,
        .size = args.size,
        .name = args.name ? args.name : "",
        .token = args.token ? args.token : config->token,
        .allgather = args.allgather,
        .allgather_user = args.allgather_user,
        .timeout_ns = config->join_timeout,
    };
    twi_boot_t *boot = NULL;
    TW_TRY(twi_boot_open(&boot_args, &boot));
    const twi_log_rank_t before = twi_log_show_rank(&args, boot->rank);
    const tw_status_t status = twi_comm_join(boot, &args, comm_out);
    if (status == TW_OK)
        (void)twi_log_show_rank(*comm_out, boot->rank);
    else
        (void)twi_log_show_rank(before.owner, before.rank);
    twi_boot_close(boot);
    return status;
}

void tw_comm_destroy(tw_comm_t *comm)
{
    if (!comm)
        return;
    if (atomic_load(&comm->sessions) > 0)
        TWI_LOG(WARN, "api", "communicator '%s' destroyed with an open kernel-side session", tw_comm_name(comm));
    twi_comm_table_remove(comm);
    twi_comm_ops_end(comm);
    twi_comm_workers_end(comm);
    twi_engine_destroy(comm->engine);
    twi_transport_close(comm->transport);
    twi_heap_free_all(comm);
    twi_log_hide_rank(comm);
    (void)pthread_mutex_destroy(&comm->heap_lock);
    free(comm);
}

void tw_comm_abort(tw_comm_t *comm, const char *reason)
{
    if (!comm)
        return;
    (void)twi_fail(TW_ERR_ABORTED, "%s", reason && reason[0] ? reason : "no reason given");
    twi_transport_fail(comm->transport, TWI_HEALTH_ABORTED, TW_ERR_ABORTED);
}

/* ---- Questions ---- */

int tw_comm_rank(const tw_comm_t *comm)
{
    return comm ? comm->transport->rank : -1;
}

int tw_comm_size(const tw_comm_t *comm)
{
    return comm ? comm->transport->size : -1;
}

const char *tw_comm_name(const tw_comm_t *comm)
{
    return comm && comm->transport ? comm->transport->name : "";
}

tw_status_t tw_comm_status(const tw_comm_t *comm)
{
    TW_REQUIRE(comm, "comm is NULL");
    return twi_engine_health(comm->engine);
}

tw_transport_t tw_comm_transport(const tw_comm_t *comm)
{
    return comm ? comm->transport->ops->id : TW_TRANSPORT_AUTO;
}

/* ---- Small collectives of our own ---- */

tw_status_t twi_comm_no_session(tw_comm_t *comm, const char *call)
{
    if (atomic_load(&comm->sessions) == 0)
        return TW_OK;
    return twi_fail(TW_ERR_STATE, "%s: communicator '%s' has an open kernel-side session", call, tw_comm_name(comm));
}

tw_status_t twi_comm_allgather(tw_comm_t *comm, const void *in, void *out, size_t bytes)
{
    const twi_task_args_t task = {
        .coll = &twi_coll_all_gather,
        .send = in,
        .recv = out,
        .send_bytes = bytes,
        .recv_bytes = bytes * (size_t)comm->transport->size,
        .count = bytes,
        .stride = bytes,
        .dtype = TW_HCCL_UINT8,
        .elem_bytes = 1,
        .repeat = 1,
    };
    uint64_t number;
    TW_TRY(twi_engine_post(comm->engine, &task, &number));
    twi_ops_meet(comm->transport);
    twi_engine_commit(comm->engine, number, 1); /* wakes peers */
    return twi_engine_wait(comm->engine, number, 1);
}

tw_status_t tw_comm_barrier(tw_comm_t *comm)
{
    TW_REQUIRE(comm, "comm is NULL");
    TW_TRY(twi_comm_no_session(comm, "tw_comm_barrier"));
    uint8_t in = 0;
    uint8_t out[TWI_RANKS_MAX];
    return twi_comm_allgather(comm, &in, out, 1);
}

/* ---- Split ---- */

typedef struct wish {
    int32_t color; /* -1: none */
    int32_t key;
} wish_t;

/* A rendezvous of the ranks of one color through the parent, in which all ranks of it take part. */
typedef struct split_boot {
    twi_boot_t base;
    tw_comm_t *parent;
    const int *members; /* [size] parent's ranks */
    uint8_t *all;       /* everybody's blobs */
} split_boot_t;

static tw_status_t split_allgather(twi_boot_t *base, const void *in, void *out, size_t bytes)
{
    split_boot_t *boot = (split_boot_t *)base;
    uint8_t *all = realloc(boot->all, bytes * (size_t)tw_comm_size(boot->parent));
    if (!all) /* keep the old memory; peers see our silence as the failure it is */
        return twi_fail(TW_ERR_NO_MEMORY, "no memory to split communicator '%s'", tw_comm_name(boot->parent));
    boot->all = all;
    TW_TRY(twi_comm_allgather(boot->parent, in, all, bytes));
    for (int i = 0; i < base->size; i++)
        memcpy((uint8_t *)out + (size_t)i * bytes, all + (size_t)boot->members[i] * bytes, bytes);
    return TW_OK;
}

static const twi_boot_ops_t split_ops = {.allgather = split_allgather};

/* The parent's ranks of our color, ordered by key, then rank; returns how many. */
static int members_of(const wish_t *wishes, int size, int32_t color, int *members)
{
    int n = 0;
    for (int r = 0; r < size; r++) {
        if (wishes[r].color != color)
            continue;
        int at = n++;
        for (; at > 0 && wishes[members[at - 1]].key > wishes[r].key; at--)
            members[at] = members[at - 1];
        members[at] = r;
    }
    return n;
}

/* Ranks without a color still take part in the exchanges of the others. */
static tw_status_t stand_by(tw_comm_t *parent)
{
    split_boot_t boot = {.base = {.ops = &split_ops}, .parent = parent};
    const tw_status_t status = twi_transport_spectate(&boot.base);
    free(boot.all);
    return status;
}

/* "parent/color.count"; a long parent is shortened and told apart by a hash. */
static void derive_name(const tw_comm_t *parent, int32_t color, char out[TW_NAME_MAX + 1])
{
    const char *name = tw_comm_name(parent);
    uint32_t hash = 2166136261u;
    for (const char *c = name; *c; c++)
        hash = (hash ^ (uint8_t)*c) * 16777619u;
    if (strlen(name) <= 90)
        (void)snprintf(out, TW_NAME_MAX + 1, "%s/%d.%u", name, color, parent->splits);
    else
        (void)snprintf(out, TW_NAME_MAX + 1, "%.80s~%08x/%d.%u", name, hash, color, parent->splits);
}

static tw_status_t split_off(tw_comm_t *parent, const wish_t *wishes, int32_t color, const char *name,
                             tw_comm_t **comm_out)
{
    const int size = tw_comm_size(parent);
    int members[TWI_RANKS_MAX];
    split_boot_t boot = {.base = {.ops = &split_ops}, .parent = parent, .members = members};
    boot.base.size = members_of(wishes, size, color, members);
    while (members[boot.base.rank] != tw_comm_rank(parent))
        boot.base.rank++;
    char derived[TW_NAME_MAX + 1];
    derive_name(parent, color, derived);
    const tw_comm_args_t args = {
        .struct_size = sizeof args,
        .name = name ? name : derived,
        .transport = parent->transport->ops->id,
        .window_bytes = parent->transport->layout.heap_bytes,
        .timeout_ns = parent->transport->timeout_ns,
        .enter_timeout_ns = parent->transport->enter_timeout_ns,
        .profile = parent->profile,
    };
    const tw_status_t status = twi_comm_join(&boot.base, &args, comm_out);
    free(boot.all);
    return status;
}

tw_status_t tw_comm_split(tw_comm_t *comm, int color, int key, const char *name, tw_comm_t **comm_out)
{
    TW_REQUIRE(comm, "comm is NULL");
    TW_REQUIRE(comm_out, "comm_out is NULL");
    TW_REQUIRE(color >= -1, "color is %d, must be -1 (none) or more", color);
    TW_TRY(check_name(name));
    TW_TRY(twi_comm_no_session(comm, "tw_comm_split"));
    wish_t wishes[TWI_RANKS_MAX];
    const wish_t own = {.color = color, .key = key};
    TW_TRY(twi_comm_allgather(comm, &own, wishes, sizeof own));
    comm->splits++;
    if (color == -1) {
        *comm_out = NULL;
        return stand_by(comm);
    }
    return split_off(comm, wishes, color, name, comm_out);
}
