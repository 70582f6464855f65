/* SPDX-License-Identifier: Apache-2.0 */
/* int8 on AMX: 64 of k a step, exact as long as the sums fit int32. */
#include "gemm/x86/amx_body.h"

AMX_KERNEL(twi_gemm_s8_s8_s32_32x32x64__amx, _tile_dpbssd, true, AMX_TOUCH | AMX_CAST | AMX_ROWS | AMX_ADD | AMX_CALL)
