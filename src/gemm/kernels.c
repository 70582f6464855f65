/* SPDX-License-Identifier: Apache-2.0 */
/* The table of kernels and the choice among them. */
#include "gemm/kernels.h"

#define TW_KERNEL(name_, ISA, LANE, SERVES, MR, NR, KS, KA, KB, FLAGS) \
    {.name = #name_,                                                   \
     .isa = TWI_ISA_##ISA,                                             \
     .lane = TWI_LANE_##LANE,                                          \
     .serves = SERVES,                                                 \
     .mr = MR,                                                         \
     .nr = NR,                                                         \
     .ks = KS,                                                         \
     .ka = KA,                                                         \
     .kb = KB,                                                         \
     .flags = FLAGS,                                                   \
     .run = name_},
const twi_gemm_kernel_t twi_gemm_kernels[] = {
#include "gemm/kernels.def"
};
#undef TW_KERNEL

#define TW_KERNEL(name, ISA, LANE, SERVES, MR, NR, KS, KA, KB, FLAGS) \
    _Static_assert(MR <= TWI_GEMM_MR_MAX && NR <= TWI_GEMM_NR_MAX && KS % KA == 0 && KS % KB == 0, #name);
#include "gemm/kernels.def"
#undef TW_KERNEL

const int twi_gemm_n_kernels = sizeof twi_gemm_kernels / sizeof twi_gemm_kernels[0];

int twi_gemm_kernel_usable(const twi_gemm_kernel_t *kernel, twi_isa_t level)
{
    return kernel->isa <= level && (!(kernel->flags & TWI_KERNEL_VNNI) || twi_cpu_vnni());
}

const twi_gemm_kernel_t *twi_gemm_kernel_find(twi_gemm_kind_t kind, twi_isa_t level)
{
    const twi_gemm_kernel_t *best = NULL;
    for (int i = 0; i < twi_gemm_n_kernels; i++) {
        const twi_gemm_kernel_t *kernel = &twi_gemm_kernels[i];
        if ((kernel->serves >> kind & 1u) && twi_gemm_kernel_usable(kernel, level))
            best = kernel;
    }
    return best;
}
