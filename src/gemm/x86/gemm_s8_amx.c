/* SPDX-License-Identifier: Apache-2.0 */
/* int8 on AMX: 64 of k a step, exact as long as the sums fit int32. */
#include "gemm/x86/amx_body.h"

AMX_INLINE void s8_step_upper(const char *a, const char *b)
{
    _tile_loadd(4, a, AMX_A_LD);
    _tile_loadd(6, b, AMX_B_LD);
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(7, b + AMX_B_RIGHT, AMX_B_LD);
    _tile_dpbssd(1, 4, 7);
}

AMX_INLINE void s8_step_full(const char *a, const char *b)
{
    _tile_stream_loadd(4, a, AMX_A_LD);
    _tile_loadd(6, b, AMX_B_LD);
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(7, b + AMX_B_RIGHT, AMX_B_LD);
    _tile_dpbssd(1, 4, 7);
    _tile_stream_loadd(5, a + AMX_A_LOWER, AMX_A_LD);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
}

void twi_gemm_s8_s8_s32_32x32x64__amx(const twi_gemm_call_t *call)
{
    if (call->rows > AMX_HALF)
        amx_product(call, call->acc, s8_step_full, AMX_PLANE_BYTES, 1);
    else
        amx_product(call, call->acc, s8_step_upper, AMX_PLANE_BYTES, 0);
}
