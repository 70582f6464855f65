/* SPDX-License-Identifier: Apache-2.0 */
/* test_kernels with a kernel that gets one cell wrong, for test_kernels_options.c. */
#include <math.h>

#include "gemm/kernels.h"

void __real_twi_gemm_f32_f32_f32_4x16x1__portable(const twi_gemm_call_t *call);
void __wrap_twi_gemm_f32_f32_f32_4x16x1__portable(const twi_gemm_call_t *call);
void __wrap_twi_gemm_f32_f32_f32_4x16x1__portable(const twi_gemm_call_t *call)
{
    enum { ROW = 2, COLUMN = 5, NR = 16 };
    __real_twi_gemm_f32_f32_f32_4x16x1__portable(call);
    if (call->rows > ROW)
        ((float *)call->acc)[ROW * NR + COLUMN] = NAN;
}
