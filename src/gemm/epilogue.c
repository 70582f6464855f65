/* SPDX-License-Identifier: Apache-2.0 */
/* Picks the epilogue of a level. Any thread. */
#include "gemm/epilogue.h"

#include "gemm/epilogue_level.h"

twi_gemm_finish_fn *twi_gemm_finish(twi_isa_t level)
{
#if defined(__x86_64__)
    if (level >= TWI_ISA_AVX512BF16)
        return twi_gemm_finish__avx512bf16;
    if (level >= TWI_ISA_AVX512)
        return twi_gemm_finish__avx512;
    if (level >= TWI_ISA_AVX2)
        return twi_gemm_finish__avx2;
#endif
    (void)level;
    return twi_gemm_finish__portable;
}

twi_gemm_row_fn *twi_gemm_row(twi_isa_t level, const twi_gemm_epilogue_t *epilogue, bool adds)
{
#if defined(__x86_64__)
    if (level >= TWI_ISA_AVX512BF16)
        return twi_gemm_row__avx512bf16(epilogue, adds);
#endif
    (void)level, (void)epilogue, (void)adds;
    return NULL;
}
