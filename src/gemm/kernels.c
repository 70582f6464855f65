/* SPDX-License-Identifier: Apache-2.0 */
/* The table of kernels and the choice among them. */
#include "gemm/kernels.h"

#include <stdatomic.h>

#include "base/config.h"
#include "base/log.h"

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

/*
 * What is known of a row for a kind. Whoever does not know yet tries it, and what the first one found holds for all, and
 * for good: a weight is packed for the kernel that was found before.
 */
typedef enum verdict { UNTRIED, WORKS, FAILS } verdict_t;
static _Atomic verdict_t g_verdicts[sizeof twi_gemm_kernels / sizeof twi_gemm_kernels[0]][TWI_GEMM_KINDS];

static verdict_t try_row(int row, twi_gemm_kind_t kind)
{
    const char *name = twi_gemm_kernels[row].name;
    bool works;
    const bool tried = twi_gemm_kernel_try(&twi_gemm_kernels[row], kind, &works);
    const verdict_t found = !tried || works ? WORKS : FAILS;
    verdict_t known = UNTRIED;
    /* Relaxed, here and below: a verdict says nothing of other memory. */
    if (!atomic_compare_exchange_strong_explicit(&g_verdicts[row][kind], &known, found, memory_order_relaxed,
                                                 memory_order_relaxed))
        return known;
    if (!tried)
        TWI_LOG(WARN, "gemm", "no memory to try %s for %s: it is taken on trust", name, twi_gemm_kind_name(kind));
    if (found == FAILS)
        TWI_LOG(ERROR, "gemm", "%s gives wrong sums for %s on this machine: a slower kernel is used", name,
                twi_gemm_kind_name(kind));
    return found;
}

/* The portable ones are what others are compared with. */
static bool trusted(int row, twi_gemm_kind_t kind)
{
    if (twi_gemm_kernels[row].isa == TWI_ISA_PORTABLE || !twi_config()->self_test)
        return true;
    const verdict_t known = atomic_load_explicit(&g_verdicts[row][kind], memory_order_relaxed);
    return (known == UNTRIED ? try_row(row, kind) : known) == WORKS;
}

const twi_gemm_kernel_t *twi_gemm_kernel_find(twi_gemm_kind_t kind, twi_isa_t level)
{
    int row = twi_gemm_n_kernels - 1;
    while (!(twi_gemm_kernels[row].serves >> kind & 1u) || !twi_gemm_kernel_usable(&twi_gemm_kernels[row], level) ||
           !trusted(row, kind))
        row--;
    return &twi_gemm_kernels[row];
}

const char *twi_gemm_kind_name(twi_gemm_kind_t kind)
{
    static const char *const names[TWI_GEMM_KINDS] = {"fp32", "bf16", "fp16", "int8"};
    return (unsigned)kind < TWI_GEMM_KINDS ? names[kind] : "unknown";
}

bool twi_gemm_kernel_row(unsigned index, tw_info_row_t *row_out)
{
    if (index >= TWI_GEMM_KINDS)
        return false;
    const twi_gemm_kind_t kind = (twi_gemm_kind_t)index;
    *row_out = (tw_info_row_t){.section = "kernel",
                               .name = twi_gemm_kind_name(kind),
                               .value = twi_gemm_kernel_find(kind, twi_cpu_isa())->name,
                               .help = "what multiplies matrices of that type"};
    return true;
}
