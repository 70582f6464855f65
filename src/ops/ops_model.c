/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Estimates. Rates are those of one core, rounded: they only have to tell shapes for which tiles are
 * worth sending one by one from those that are over before the first flag is seen.
 */
#include "ops/model.h"

#include <stdio.h>

#include "base/sizes.h"

#define COPY_BYTES_PER_US 5000.0  /* between two caches, reading and writing */
#define LATENCY_US 3.0            /* of a collective of nothing */
#define STRIP_US 1.5              /* fitted: of 256 rows of each rank, each time that somebody waits for them */
#define PANEL_ROWS 2.0            /* that a panel of the left matrix costs besides its own */
#define PASS_BYTES_PER_US 10000.0 /* of a right matrix that goes by */
#define PASS_ITEMS_PER_US 4000.0  /* elements of a right matrix that is converted on the way */

/* Operations of a core in a microsecond. */
static double rate_of(const twi_gemm_kernel_t *kernel)
{
    const bool bytes = kernel->lane == TWI_LANE_S8 || kernel->lane == TWI_LANE_U8;
    switch (kernel->isa) {
    case TWI_ISA_AMX:
        return kernel->lane == TWI_LANE_F16X2 ? 150e3 : bytes ? 1200e3 : 600e3;
    case TWI_ISA_AVX512BF16:
        return 150e3;
    case TWI_ISA_AVX512:
        return bytes ? 250e3 : 80e3;
    case TWI_ISA_AVX2:
        return 40e3;
    default:
        return 4e3;
    }
}

/* Panels of the left matrix, more of them than a product has. */
static double panels_us(const twi_model_args_t *args, double gemm_us)
{
    const int64_t whole = twi_ceil_div(args->rows, args->plan->kernel->mr), more = args->panels - whole;
    return more > 0 ? gemm_us * PANEL_ROWS * (double)more / ((double)args->rows + PANEL_ROWS * (double)whole) : 0;
}

static double longer(double a, double b)
{
    return a > b ? a : b;
}

/* A pass takes as long as the right matrix needs to go by, or its rows to be multiplied; conversions are not hidden. */
static double passes_us(const twi_model_args_t *args, double gemm_us)
{
    const twi_gemm_plan_t *plan = args->plan;
    const twi_gemm_kind_t kind = plan->problem->kind;
    const double items = (double)plan->problem->k * (double)plan->problem->n;
    if (args->apart == 0)
        return 0;
    if (plan->quantised || plan->lanes)
        return items / PASS_ITEMS_PER_US;
    const double pass_us = items * (double)twi_gemm_kind_bytes(kind) / PASS_BYTES_PER_US;
    const double apart_us = gemm_us * (double)args->apart / (double)args->rows;
    return longer(gemm_us - apart_us, pass_us) + longer(apart_us, pass_us) - longer(gemm_us, pass_us);
}

/* What comes with tiles that are sent one by one. */
static double price_us(const twi_model_args_t *args, double gemm_us)
{
    const int64_t strips = args->waits * args->size * twi_ceil_div(args->shard_rows, TWI_STRIP_ROWS);
    return (double)strips * STRIP_US + panels_us(args, gemm_us) + passes_us(args, gemm_us);
}

static twi_schedule_t wished(const twi_model_args_t *args, twi_schedule_t schedule, int64_t least)
{
    schedule.fused = args->wish != TW_ROUNDS_UNFUSED;
    schedule.rounds = schedule.fused && args->wish > least ? args->wish : least;
    schedule.why = args->wish < least && schedule.fused ? "as many as the slots need" : "asked for";
    return schedule;
}

twi_estimate_t twi_model_estimate(const twi_gemm_plan_t *plan, int64_t rows, int64_t wire_bytes)
{
    const double operations = 2.0 * (double)rows * (double)plan->problem->k * (double)plan->problem->n;
    return (twi_estimate_t){
        .gemm_us = operations / rate_of(plan->kernel),
        .comm_us = LATENCY_US + (double)wire_bytes / COPY_BYTES_PER_US,
    };
}

twi_schedule_t twi_model_choose(const twi_model_args_t *args)
{
    const twi_gemm_plan_t *plan = args->plan;
    const twi_estimate_t estimate = twi_model_estimate(plan, args->rows, args->wire_bytes);
    twi_schedule_t schedule = {.estimate = estimate};
    /* Two rounds must fit, so that one is filled while the other is read. */
    const int64_t half = (int64_t)(args->slots_bytes / 2);
    const int64_t least = half > 0 && args->bytes > half ? twi_ceil_div(args->bytes, half) : 1;
    if (args->wish != TW_ROUNDS_AUTO)
        return wished(args, schedule, least);
    const double hidden = estimate.gemm_us < estimate.comm_us ? estimate.gemm_us : estimate.comm_us;
    schedule.fused = true;
    /* Coming back to a strip costs more than rounds hide: no more of them than the slots ask for. */
    schedule.rounds = least;
    schedule.why = "there is more to hide than it costs";
    if (args->size == 1)
        schedule.why = "there is one rank";
    else if (least > 1)
        schedule.why = "the slots hold no more of it at a time";
    else if (args->shard_rows < plan->kernel->mr)
        schedule = (twi_schedule_t){false, 1, estimate, "a rank's rows do not fill a tile"};
    else if (hidden < price_us(args, estimate.gemm_us))
        schedule = (twi_schedule_t){false, 1, estimate, "there is too little to hide"};
    return schedule;
}

void twi_model_explain(const twi_op_t *op, const char *how, const twi_estimate_t *estimate, char *text, size_t bytes)
{
    (void)snprintf(text, bytes,
                   "%s: %s; estimated for one core: product %.0f us, communication %.0f us; kernel %s, %d ranks, "
                   "%d workers here",
                   twi_op_name(op), how, estimate->gemm_us, estimate->comm_us, op->plan.kernel->name, op->size,
                   op->ops->n_workers);
}
