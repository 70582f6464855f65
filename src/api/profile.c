/* SPDX-License-Identifier: Apache-2.0 */
/* The limits of profiles, as tables, and the few that are more than a range. */
#include "api/profile.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/sizes.h"
#include "ops/ops.h"

#define BIT(x) (1u << (x))
#define OPS_MM (BIT(TWI_OP_MM_REDUCE_SCATTER) | BIT(TWI_OP_ALL_GATHER_MM))
#define OPS_GMM (BIT(TWI_OP_GMM_ALLTOALLV) | BIT(TWI_OP_ALLTOALLV_GMM))

#define ANY_MODE (TWI_PROFILE_FLOAT | TWI_PROFILE_A16W8 | TWI_PROFILE_A8W8)

const char *twi_profile_name(tw_profile_t profile)
{
    return profile == TW_PROFILE_A2 ? "a2" : profile == TW_PROFILE_A3 ? "a3" : "none";
}

/* ---- Products and ranks ------------------------------------------------------------------------ */

/* Numbers of ranks, each a power of two, as a sum of them; 0: the operator is not available. */
static const uint32_t worlds[TWI_OP_KINDS][2] = {
    [TWI_OP_MM_REDUCE_SCATTER] = {2 | 4 | 8, 2 | 4 | 8 | 16 | 32},
    [TWI_OP_ALL_GATHER_MM] = {2 | 4 | 8, 2 | 4 | 8 | 16 | 32},
    [TWI_OP_MM_ALL_REDUCE] = {1 | 2 | 4 | 8, 0},
    [TWI_OP_GMM_ALLTOALLV] = {0, 8 | 16 | 32 | 64},
    [TWI_OP_ALLTOALLV_GMM] = {0, 8 | 16 | 32 | 64},
};

static tw_status_t check_world(tw_profile_t profile, const twi_profile_call_t *call)
{
    const uint32_t allowed = worlds[call->kind][profile == TW_PROFILE_A3];
    const char *name = twi_profile_name(profile);
    TW_REQUIRE(allowed, "profile %s: %s is not available", name, twi_op_kind_name((uint32_t)call->kind));
    const uint64_t world = (uint64_t)call->world;
    if ((world & (world - 1)) == 0 && (world & allowed))
        return TW_OK;
    char text[64] = "";
    size_t at = 0;
    for (uint32_t w = 1; w <= allowed && at < sizeof text; w *= 2)
        if (w & allowed)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s%u", at ? ", " : "", w);
    return twi_fail(TW_ERR_ARGUMENT, "profile %s: comm has %" PRId64 " ranks, %s allows %s", name, call->world,
                    twi_op_kind_name((uint32_t)call->kind), text);
}

/* ---- Ranges ------------------------------------------------------------------------------------ */

typedef struct range {
    uint32_t kinds; /* bits of twi_op_kind_t */
    uint32_t modes; /* bits of twi_profile_mode_t */
    bool shared;    /* only with a shared expert */
    size_t field;   /* of twi_profile_call_t */
    const char *name;
    int64_t least, most;
} range_t;

#define FIELD(name) offsetof(twi_profile_call_t, name)
#define ALL_REDUCE BIT(TWI_OP_MM_ALL_REDUCE)

static const range_t ranges[] = {
    {OPS_MM, ANY_MODE, false, FIELD(k), "k", 256, 65534},
    {ALL_REDUCE, ANY_MODE, false, FIELD(m), "m", 1, INT32_MAX},
    {ALL_REDUCE, TWI_PROFILE_FLOAT, false, FIELD(k), "k", 1, INT32_MAX},
    {ALL_REDUCE, TWI_PROFILE_FLOAT, false, FIELD(n), "n", 1, INT32_MAX},
    {ALL_REDUCE, TWI_PROFILE_A16W8 | TWI_PROFILE_A8W8, false, FIELD(k), "k", 1, 65535},
    {ALL_REDUCE, TWI_PROFILE_A16W8, false, FIELD(n), "n", 1, 65535},
    {ALL_REDUCE, TWI_PROFILE_A8W8, false, FIELD(stored), "n", 1, 65535},
    {OPS_GMM, ANY_MODE, false, FIELD(experts), "e", 1, 32},
    {OPS_GMM, ANY_MODE, false, FIELD(n_counts), "e * W", 1, 256},
    {OPS_GMM, ANY_MODE, false, FIELD(k), "H1", 1, 65535},
    {OPS_GMM, ANY_MODE, false, FIELD(n), "N1", 1, 65535},
    {OPS_GMM, ANY_MODE, false, FIELD(m), "A", 1, INT64_MAX},
    {OPS_GMM, ANY_MODE, false, FIELD(bsk), "BSK", 1, 52428799},
    {OPS_GMM, ANY_MODE, true, FIELD(h2), "H2", 1, 12288},
    {OPS_GMM, ANY_MODE, true, FIELD(n2), "N2", 1, 65535},
};

static tw_status_t check_ranges(tw_profile_t profile, const twi_profile_call_t *call)
{
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        const range_t *range = &ranges[i];
        if (!(range->kinds & BIT(call->kind)) || !(range->modes & call->mode) || (range->shared && !call->shared))
            continue;
        const int64_t value = *(const int64_t *)(const void *)((const char *)call + range->field);
        TW_REQUIRE(value >= range->least && value <= range->most,
                   "profile %s: %s is %" PRId64 ", %s allows %" PRId64 "..%" PRId64, twi_profile_name(profile),
                   range->name, value, twi_op_kind_name((uint32_t)call->kind), range->least, range->most);
    }
    return TW_OK;
}

/* ---- Grouped operators ------------------------------------------------------------------------- */

enum { K_LEAST = 2, K_MOST = 8 };

/* The experts of a token, where the number of tokens is known. */
static tw_status_t check_top_k(tw_profile_t profile, const twi_profile_call_t *call)
{
    const int64_t bsk = call->bsk, bs = call->bs;
    const bool keeps = bs > 0 && bsk / K_LEAST >= bs && twi_ceil_div(bsk, K_MOST) <= bs;
    TW_REQUIRE(keeps, "profile %s: K = BSK / BS is %" PRId64 " / %" PRId64 ", %s allows %d..%d",
               twi_profile_name(profile), bsk, bs, twi_op_kind_name((uint32_t)call->kind), K_LEAST, K_MOST);
    return TW_OK;
}

#define VOLUME_LEAST (INT64_C(1) << 20) /* elements of 16 bits: 2 MiB */
#define VOLUME_MOST (INT64_C(50) << 20) /* 100 MiB */

/* Rows times H1, whatever is sent, to or from each rank, also the own one. */
static tw_status_t check_volume(tw_profile_t profile, const twi_profile_call_t *call, const int64_t *counts,
                                const char *name)
{
    for (int64_t peer = 0; peer < call->world; peer++) {
        int64_t rows = 0, elements;
        for (int64_t j = 0; j < call->experts; j++)
            rows += counts[peer * call->experts + j];
        if (__builtin_mul_overflow(rows, call->k, &elements))
            elements = INT64_MAX;
        TW_REQUIRE(elements >= VOLUME_LEAST && elements <= VOLUME_MOST,
                   "profile %s: %s has %" PRId64 " rows of H1 = %" PRId64 " for rank %" PRId64
                   ", %s allows 2..100 MiB a rank, %" PRId64 "..%" PRId64 " elements",
                   twi_profile_name(profile), name, rows, call->k, peer, twi_op_kind_name((uint32_t)call->kind),
                   VOLUME_LEAST, VOLUME_MOST);
    }
    return TW_OK;
}

static tw_status_t check_grouped(tw_profile_t profile, const twi_profile_call_t *call)
{
    if (call->shared)
        TW_TRY(check_top_k(profile, call));
    TW_TRY(check_volume(profile, call, call->send_counts, "send_counts"));
    return check_volume(profile, call, call->recv_counts, "recv_counts");
}

/* ---- All of it --------------------------------------------------------------------------------- */

tw_status_t twi_profile_check(tw_profile_t profile, const twi_profile_call_t *call)
{
    if (profile != TW_PROFILE_A2 && profile != TW_PROFILE_A3)
        return TW_OK;
    TW_TRY(check_world(profile, call));
    TW_TRY(check_ranges(profile, call));
    TW_REQUIRE(!(profile == TW_PROFILE_A2 && call->nz && call->mode == TWI_PROFILE_FLOAT),
               "profile a2: format is TW_FORMAT_NZ (%d), %s allows it for int8 x2 only", TW_FORMAT_NZ,
               twi_op_kind_name((uint32_t)call->kind));
    return BIT(call->kind) & OPS_GMM ? check_grouped(profile, call) : TW_OK;
}

tw_status_t twi_profile_check_bias(tw_profile_t profile, int kind, const float *bias, int64_t n)
{
    if (profile == TW_PROFILE_NONE || kind != TWI_OP_MM_REDUCE_SCATTER || !bias)
        return TW_OK;
    for (int64_t i = 0; i < n; i++)
        TW_REQUIRE(bias[i] == 0.0f, "profile %s: bias[%" PRId64 "] is %g, mm_reduce_scatter allows 0",
                   twi_profile_name(profile), i, (double)bias[i]);
    return TW_OK;
}
