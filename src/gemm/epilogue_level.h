/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_GEMM_EPILOGUE_LEVEL_H
#define TWI_GEMM_EPILOGUE_LEVEL_H
/* The epilogues that there are. Outside epilogue.c they are reached through twi_gemm_finish and twi_gemm_row. */
#include "gemm/epilogue.h"

twi_gemm_finish_fn twi_gemm_finish__portable;
#if defined(__x86_64__)
twi_gemm_finish_fn twi_gemm_finish__avx2;
twi_gemm_finish_fn twi_gemm_finish__avx512;
twi_gemm_finish_fn twi_gemm_finish__avx512bf16;
twi_gemm_row_fn *twi_gemm_row__avx512bf16(const twi_gemm_epilogue_t *epilogue, bool adds);
#endif

#endif
