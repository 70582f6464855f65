/* SPDX-License-Identifier: Apache-2.0 */
/* A kept space has never run a large product: it needs a little more than KEPT_BYTES, and has a huge page for them. */
#include "api/product_space.h"

#include <stdatomic.h>
#include <stdbool.h>

#include "base/sizes.h"

enum { KEPT_BYTES = (2 << 20) - (64 << 10), KEPT_GROUPS = 1024 };

static _Atomic(twi_gemm_space_t *) kept; /* acquired by whoever takes it, pairs with the release of give */

/* With one worker A is packed strip by strip, behind the worker's own memory. */
static bool is_small(const twi_gemm_plan_t *plan)
{
    const int64_t room = KEPT_BYTES - (int64_t)plan->worker_bytes;
    const int64_t panels = twi_ceil_div(plan->blocks.stack, plan->kernel->mr);
    return room > 0 && plan->panel_bytes <= room / panels && plan->problem->n_groups <= KEPT_GROUPS;
}

tw_status_t twi_api_space_take(const twi_gemm_plan_t *plan, twi_gemm_space_t **space_out)
{
    *space_out = is_small(plan) ? atomic_exchange_explicit(&kept, NULL, memory_order_acquire) : NULL;
    return *space_out ? TW_OK : twi_gemm_space_create(NULL, space_out);
}

void twi_api_space_give(const twi_gemm_plan_t *plan, twi_gemm_space_t *space)
{
    if (is_small(plan))
        space = atomic_exchange_explicit(&kept, space, memory_order_acq_rel);
    twi_gemm_space_destroy(space);
}
