/* SPDX-License-Identifier: Apache-2.0 */
/* The same where bf16 is rounded by an instruction. */
#if defined(__x86_64__)
#define EPI_NAME twi_gemm_finish__avx512bf16
#define EPI_BF16
#define EPI_ROW_NAME twi_gemm_row__avx512bf16
#include "gemm/x86/epilogue_x86.h"
#endif
