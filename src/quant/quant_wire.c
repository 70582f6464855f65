/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of the int8 wire's kernels by level. Any thread. */
#include "quant/quant_wire.h"

#include "quant/quant_wire_level.h"

const twi_wire_kernels_t *twi_wire_kernels(twi_isa_t level)
{
#if defined(__x86_64__)
    if (level >= TWI_ISA_AVX512)
        return &twi_wire_kernels__avx512;
    if (level >= TWI_ISA_AVX2)
        return &twi_wire_kernels__avx2;
#else
    (void)level;
#endif
    return &twi_wire_kernels__portable;
}
