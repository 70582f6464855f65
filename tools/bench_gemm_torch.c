/* SPDX-License-Identifier: Apache-2.0 */
/* torch beside a matrix product: bench/peers/peer_torch.py. It is started before the library has threads. */
#include <stdio.h>
#include <string.h>

#include "bench_gemm.h"

bool gemm_torch_start(const gemm_plan_t *plan, bench_torch_t *torch_out)
{
    const bench_torch_args_t args = {
        .script = "peer_torch.py", .variable = "PEER_TORCH", .threads = plan->threads, .isa = plan->isa};
    return bench_torch_start(&args, torch_out);
}

bool gemm_torch_case(bench_torch_t *torch, const gemm_plan_t *plan, const cli_shape_t *shape, size_t copies,
                     char *layout_out, size_t layout_bytes)
{
    char line[256];
    (void)snprintf(line, sizeof line, "case %s %zu %zu %zu %d %zu\n", gemm_dtypes[plan->dtype].name, shape->m, shape->k,
                   shape->n, plan->threads, copies);
    if (!bench_torch_ask(torch, line, line, sizeof line))
        return false;
    layout_out[0] = '\0';
    if (strncmp(line, "ok ", 3) == 0)
        (void)snprintf(layout_out, layout_bytes, "%s", line + 3);
    else if (strncmp(line, "none ", 5) == 0)
        (void)fprintf(stderr, "tilewire bench: --peers: %s: %s\n", torch->version, line);
    else
        return bench_torch_odd("case", line);
    return true;
}
