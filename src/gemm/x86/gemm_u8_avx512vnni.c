/* SPDX-License-Identifier: Apache-2.0 */
/*
 * int8 products with AVX-512 VNNI: four of k at a time, exact modulo 2^32. The instruction wants one side
 * without sign: A comes with 128 added, and 128 times the sums of B is taken off again. Any thread.
 */
#if defined(__x86_64__)
#define KERNEL_BYTES 64
#define KERNEL_MR 14
#define KERNEL_SUM uint32_t
#define KERNEL_STEP(sums, a, b) (sums_t) _mm512_dpbusd_epi32((__m512i)(sums), a, b)
#define KERNEL_EXCESS ((int32_t)0x80808080)
#define KERNEL_WIDENS 0
#define KERNEL_SCALES 0
#include "gemm/x86/kernel_body.h"

void twi_gemm_u8_s8_s32_14x32x4__avx512vnni(const twi_gemm_call_t *call)
{
    run_kernel(call);
}
#endif
