/* SPDX-License-Identifier: Apache-2.0 */
/* The per-core objects: creation, InitV2, tiling, and questions. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "api/hccl_session.h"
#include "base/log.h"

enum { TILING_MOST = 1 << 20 /* bytes of a tiling struct */ };

static bool core_type_ok(tw_hccl_core_type_t type)
{
    return type == TW_HCCL_CORE_AIV || type == TW_HCCL_CORE_AIC;
}

tw_status_t tw_hccl_create(const tw_hccl_core_t *core, tw_hccl_t **hccl_out)
{
    TW_REQUIRE(core, "core is NULL");
    TW_REQUIRE(hccl_out, "hccl_out is NULL");
    TW_REQUIRE(core_type_ok(core->type), "core.type %d, must be AIV (1) or AIC (2)", (int)core->type);
    TW_REQUIRE(core->poster_type == TW_HCCL_CORE_DEFAULT || core_type_ok(core->poster_type),
               "core.poster_type %d, must be DEFAULT (0), AIV (1) or AIC (2)", (int)core->poster_type);
    tw_hccl_t *hccl = calloc(1, sizeof *hccl);
    if (!hccl)
        return twi_fail(TW_ERR_NO_MEMORY, "no memory for an hccl object");
    hccl->core = *core;
    *hccl_out = hccl;
    return TW_OK;
}

void tw_hccl_destroy(tw_hccl_t *hccl)
{
    if (hccl && hccl->phase == TWI_HCCL_READY)
        twi_hccl_detach(hccl);
    free(hccl);
}

int32_t twi_hccl_result(const char *call, bool done)
{
    if (!done)
        TWI_LOG(WARN, "hccl", "%s is refused: %s", call, tw_last_error());
    return done ? TW_HCCL_SUCCESS : TW_HCCL_FAILED;
}

static tw_status_t init(tw_hccl_t *hccl, tw_hccl_context_t *context, const void *tiling, bool first_form)
{
    TW_REQUIRE(hccl, "hccl is NULL");
    TW_REQUIRE(context, "context is NULL");
    if (hccl->phase != TWI_HCCL_NEW)
        return twi_fail(TW_ERR_STATE, "the object is initialised already");
    if (!first_form)
        TW_REQUIRE(tiling, "init_tiling is NULL");
    if (tiling)
        TW_TRY(twi_hccl_read_init_tiling(tiling));
    TW_TRY(twi_hccl_attach(hccl, context));
    hccl->tiling = tiling;
    hccl->first_form = first_form;
    hccl->registered = first_form && !tiling ? UINT32_MAX : 0;
    hccl->queue_num = 1;
    hccl->phase = TWI_HCCL_READY;
    return TW_OK;
}

int32_t tw_hccl_init_v2(tw_hccl_t *hccl, tw_hccl_context_t *context, const void *init_tiling)
{
    return twi_hccl_result("InitV2", init(hccl, context, init_tiling, false) == TW_OK);
}

int32_t tw_hccl_init(tw_hccl_t *hccl, tw_hccl_context_t *context, const void *init_tiling)
{
    return twi_hccl_result("Init", init(hccl, context, init_tiling, true) == TW_OK);
}

static tw_status_t set_tiling(tw_hccl_t *hccl, const void *cc_tiling)
{
    twi_hccl_tiling_t tiling;
    TW_TRY(twi_hccl_read_cc_tiling(cc_tiling, &tiling));
    const char *name = tw_comm_name(hccl->context->comm);
    if (strcmp(tiling.group_name, name) != 0)
        TWI_LOG(INFO, "hccl", "tiling names group '%s', the context is of '%s', which is used", tiling.group_name,
                name);
    const uint32_t bit = 1u << tiling.op_type;
    hccl->registered |= bit;
    hccl->skip_own = tiling.skip_own ? hccl->skip_own | bit : hccl->skip_own & ~bit;
    hccl->queue_num = tiling.queue_num ? tiling.queue_num : hccl->queue_num;
    return TW_OK;
}

static tw_status_t check_form(const tw_hccl_t *hccl, bool first_form)
{
    TW_REQUIRE(hccl, "hccl is NULL");
    if (hccl->phase != TWI_HCCL_READY)
        return twi_fail(TW_ERR_STATE, "SetCcTiling needs an initialised object");
    if (hccl->first_form != first_form)
        return twi_fail(TW_ERR_STATE, "Init goes with SetCcTiling, InitV2 with SetCcTilingV2");
    return TW_OK;
}

static tw_status_t set_tiling_at(tw_hccl_t *hccl, uint64_t offset)
{
    TW_TRY(check_form(hccl, false));
    TW_REQUIRE(offset >= sizeof(tw_hccl_init_tiling_t) && offset <= TILING_MOST,
               "offset %" PRIu64 ", must be %zu..%d: behind the init tiling", offset, sizeof(tw_hccl_init_tiling_t),
               TILING_MOST);
    return set_tiling(hccl, hccl->tiling + offset);
}

int32_t tw_hccl_set_cc_tiling_v2(tw_hccl_t *hccl, uint64_t offset)
{
    return twi_hccl_result("SetCcTilingV2", set_tiling_at(hccl, offset) == TW_OK);
}

static tw_status_t set_tiling_of(tw_hccl_t *hccl, const void *cc_tiling)
{
    TW_TRY(check_form(hccl, true));
    TW_REQUIRE(cc_tiling, "cc_tiling is NULL");
    return set_tiling(hccl, cc_tiling);
}

int32_t tw_hccl_set_cc_tiling(tw_hccl_t *hccl, const void *cc_tiling)
{
    return twi_hccl_result("SetCcTiling", set_tiling_of(hccl, cc_tiling) == TW_OK);
}

/* ---- Questions ---- */

static const twi_transport_t *transport_of(const tw_hccl_t *hccl)
{
    return hccl && hccl->context ? hccl->context->comm->transport : NULL;
}

uint32_t tw_hccl_rank_id(const tw_hccl_t *hccl)
{
    const twi_transport_t *t = transport_of(hccl);
    return t ? (uint32_t)t->rank : UINT32_MAX;
}

uint32_t tw_hccl_rank_dim(const tw_hccl_t *hccl)
{
    const twi_transport_t *t = transport_of(hccl);
    return t ? (uint32_t)t->size : UINT32_MAX;
}

/* Backed with memory when it is first asked for; NULL with tw_last_error if there is none left. */
static void *window(tw_hccl_t *hccl, uint32_t rank, bool out)
{
    const twi_transport_t *t = transport_of(hccl);
    if (!t || rank >= (uint32_t)t->size)
        return NULL;
    const size_t offset = out ? t->layout.out : t->layout.in;
    _Atomic uint64_t *backed = &hccl->context->backed[out][rank / 64];
    const uint64_t bit = UINT64_C(1) << rank % 64;
    if (!(atomic_load_explicit(backed, memory_order_relaxed) & bit)) {
        if (twi_window_reserve(t->windows[rank], offset, t->layout.in_bytes) != TW_OK)
            return NULL;
        (void)atomic_fetch_or_explicit(backed, bit, memory_order_relaxed); /* without it others ask once more */
    }
    return twi_transport_at(t, (int)rank, offset);
}

void *tw_hccl_window_in(tw_hccl_t *hccl, uint32_t rank)
{
    return window(hccl, rank, false);
}

void *tw_hccl_window_out(tw_hccl_t *hccl, uint32_t rank)
{
    return window(hccl, rank, true);
}

uint64_t tw_hccl_window_bytes(const tw_hccl_t *hccl)
{
    const twi_transport_t *t = transport_of(hccl);
    return t ? t->layout.in_bytes : 0;
}

uint16_t tw_hccl_queue_num(const tw_hccl_t *hccl)
{
    return hccl ? hccl->queue_num : 0;
}
