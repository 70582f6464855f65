/* SPDX-License-Identifier: Apache-2.0 */
/* The epilogue with AVX-512. */
#if defined(__x86_64__)
#define EPI_NAME twi_gemm_finish__avx512
#include "gemm/x86/epilogue_x86.h"
#endif
