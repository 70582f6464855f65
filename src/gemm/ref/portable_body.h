/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The body of the kernels in C without instructions of any machine. The including file defines first:
 *     factor_t                      element of a panel
 *     vector_t                      4 sums
 *     factors_t                     8 neighbours of a row of B, in the form that suits
 *     get_factors(from)             reads them
 *     add_products(sums, a, b)      adds a * b to two vectors of sums
 *     finished(sums)                sums as they are stored: one value for all NaNs
 * and gets run_kernel(call). Each element is computed for itself, in the order of k. A tile is done in
 * groups of 8 columns, so that the sums fit in the registers of common machines.
 */
#include "gemm/kernel_touch.h"

#define INLINE static inline __attribute__((always_inline))

enum { MR = 4, NR = 16, GROUP = 8, GROUPS = NR / GROUP };

typedef struct group_sums {
    vector_t half[2];
} group_sums_t;

/* `rows` is a constant wherever this is inlined. */
INLINE void run_group(const twi_gemm_call_t *call, twi_touch_t *touch, int group, int rows)
{
    group_sums_t(*acc)[GROUPS] = call->acc;
    group_sums_t sums[MR];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        sums[r] = call->accumulate ? acc[r][group] : (group_sums_t){0};

    const factor_t *a = call->a, *b = (const factor_t *)call->b + group * GROUP;
    for (int64_t left = call->steps, n; left > 0; left -= n) {
        n = twi_touch_chunk(touch, left);
        for (int64_t i = 0; i < n; i++, a += MR, b += NR) {
            const factors_t columns = get_factors(b);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
                add_products(sums[r].half, a[r], columns);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        acc[r][group] = (group_sums_t){{finished(sums[r].half[0]), finished(sums[r].half[1])}};
}

INLINE void run_rows(const twi_gemm_call_t *call, int rows)
{
    twi_touch_t touch = twi_touch_begin(call);
    for (int group = 0; group < GROUPS; group++)
        run_group(call, &touch, group, rows);
}

INLINE void run_kernel(const twi_gemm_call_t *call)
{
    if (call->rows == 1)
        run_rows(call, 1);
    else if (call->rows == 2)
        run_rows(call, 2);
    else
        run_rows(call, MR);
}
