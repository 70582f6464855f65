/* SPDX-License-Identifier: Apache-2.0 */
/* bf16 on AMX: 32 of k a step. The instruction takes denormals for zero, as factors and as sums. */
#include "gemm/x86/amx_body.h"

AMX_INLINE void bf16_step_upper(const char *a, const char *b)
{
    _tile_loadd(4, a, AMX_A_LD);
    _tile_loadd(6, b, AMX_B_LD);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + AMX_B_RIGHT, AMX_B_LD);
    _tile_dpbf16ps(1, 4, 7);
}

AMX_INLINE void bf16_step_full(const char *a, const char *b)
{
    _tile_stream_loadd(4, a, AMX_A_LD);
    _tile_loadd(6, b, AMX_B_LD);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + AMX_B_RIGHT, AMX_B_LD);
    _tile_dpbf16ps(1, 4, 7);
    _tile_stream_loadd(5, a + AMX_A_LOWER, AMX_A_LD);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
}

void twi_gemm_bf16_bf16_f32_32x32x32__amx(const twi_gemm_call_t *call)
{
    if (call->rows > AMX_HALF)
        amx_product(call, call->acc, bf16_step_full, AMX_PLANE_BYTES, 1);
    else
        amx_product(call, call->acc, bf16_step_upper, AMX_PLANE_BYTES, 0);
}
