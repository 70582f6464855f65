/* SPDX-License-Identifier: Apache-2.0 */
/* fp32 products with AVX-512: one fused multiply-add for every k. Any thread. */
#if defined(__x86_64__)
#define KERNEL_BYTES 64
#define KERNEL_MR 14
#define KERNEL_SUM float
#define KERNEL_STEP(sums, a, b) _mm512_fmadd_ps((__m512)(a), (__m512)(b), sums)
#define KERNEL_EXCESS 0
#define KERNEL_WIDENS (1u << TWI_GEMM_BF16 | 1u << TWI_GEMM_F16)
#define KERNEL_SCALES 4
#include "gemm/x86/kernel_body.h"

void twi_gemm_f32_f32_f32_14x32x1__avx512(const twi_gemm_call_t *call)
{
    run_kernel(call);
}
#endif
