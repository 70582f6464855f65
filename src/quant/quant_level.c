/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of kernels by level. Any thread. */
#include "quant/quant_level.h"

/* The highest of them that is not above `level`. */
#if defined(__x86_64__)
#define CHOOSE(kernels, level) \
    ((level) >= TWI_ISA_AVX512 ? &kernels##__avx512 : (level) >= TWI_ISA_AVX2 ? &kernels##__avx2 : &kernels##__portable)
#else
#define CHOOSE(kernels, level) ((void)(level), &kernels##__portable)
#endif

const twi_wire_kernels_t *twi_wire_kernels(twi_isa_t level)
{
    return CHOOSE(twi_wire_kernels, level);
}

const twi_token_kernels_t *twi_token_kernels(twi_isa_t level)
{
    return CHOOSE(twi_token_kernels, level);
}
