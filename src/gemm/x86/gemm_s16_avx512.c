/* SPDX-License-Identifier: Apache-2.0 */
/* int8 products, widened to int16, with AVX-512: two of k at a time, exact modulo 2^32. Any thread. */
#if defined(__x86_64__)
#define KERNEL_BYTES 64
#define KERNEL_MR 14
#define KERNEL_SUM uint32_t
#define KERNEL_STEP(sums, a, b) ((sums) + (sums_t)_mm512_madd_epi16(a, b))
#define KERNEL_EXCESS 0
#define KERNEL_WIDENS (1u << TWI_GEMM_S8)
#define KERNEL_SCALES 0
#include "gemm/x86/kernel_body.h"

void twi_gemm_s16_s16_s32_14x32x2__avx512(const twi_gemm_call_t *call)
{
    run_kernel(call);
}
#endif
