/* SPDX-License-Identifier: Apache-2.0 */
/* bf16 on AMX: 32 of k a step. The instruction takes denormals for zero, as factors and as sums. */
#include "gemm/x86/amx_body.h"

AMX_KERNEL(twi_gemm_bf16_bf16_f32_32x32x32__amx, _tile_dpbf16ps, false,
           AMX_TOUCH | AMX_CAST | AMX_ROWS | AMX_ADD | AMX_DEQUANT | AMX_CALL)
