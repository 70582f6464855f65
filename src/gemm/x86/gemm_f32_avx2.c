/* SPDX-License-Identifier: Apache-2.0 */
/* fp32 products with AVX2 and FMA: one fused multiply-add for every k. Any thread. */
#if defined(__x86_64__)
#define KERNEL_BYTES 32
#define KERNEL_MR 6
#define KERNEL_SUM float
#define KERNEL_STEP(sums, a, b) _mm256_fmadd_ps((__m256)(a), (__m256)(b), sums)
#define KERNEL_EXCESS 0
#define KERNEL_WIDENS (1u << TWI_GEMM_BF16 | 1u << TWI_GEMM_F16)
#define KERNEL_SCALES 4
#include "gemm/x86/kernel_body.h"

void twi_gemm_f32_f32_f32_6x16x1__avx2(const twi_gemm_call_t *call)
{
    run_kernel(call);
}
#endif
