/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bf16 products with AVX512_BF16: one VDPBF16PS for every two of k, which rounds after each of the two
 * products and takes denormals for zero. Any thread.
 */
#if defined(__x86_64__)
#define KERNEL_BYTES 64
#define KERNEL_MR 14
#define KERNEL_SUM float
#define KERNEL_STEP(sums, a, b) _mm512_dpbf16_ps(sums, (__m512bh)(a), (__m512bh)(b))
#define KERNEL_EXCESS 0
#define KERNEL_WIDENS 0
#define KERNEL_SCALES 2
#include "gemm/x86/kernel_body.h"

void twi_gemm_bf16_bf16_f32_14x32x2__avx512bf16(const twi_gemm_call_t *call)
{
    run_kernel(call);
}
#endif
