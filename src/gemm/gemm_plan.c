/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a problem is computed: kernel and blocks.
 *
 * A strip is some rows; its panels of A, or those of a stack of it, stay in the second-level cache for a pass over k
 * while the panels of B go by. A k-block of a panel of B stays in a cache, for tiles the first, while it meets all
 * panels of the stack; the sums are stored between k-blocks, which therefore are as long as that allows. B comes from
 * further away, and tiles take it as fast as it can come: so they have as many rows in a stack as fit with all of their
 * k. Where B is dequantised or packed on the way, which costs the same for any number of rows, a stack is higher still;
 * where k is long, fewer rows at a time are better than more passes, whose sums come from further away.
 */
#include "base/config.h"
#include "base/sizes.h"
#include "gemm/weight.h"

enum {
    /* Rows of a strip and of a stack. */
    ROWS = 256,             /* of a stack where nothing below applies; a strip has at least these */
    TILES_ROWS_LEAST = 128, /* of a stack for tiles: with fewer of them B would go by too often */
    TILES_ROWS_MOST = 1024, /* of a stack for tiles: more are not needed */
    PACKED_ROWS = 4 * ROWS, /* of both where panels of B are packed on the way */
    /* Bytes of a column of B in a k-block. */
    TILES_BYTES = 1024,       /* for tiles, which take B as fast as the first-level cache has it */
    TILES_WHOLE_BYTES = 3072, /* for tiles: if all of k is no more than this it is one block, without sums in between */
    TILES_NEAR_BYTES = 1280,  /* of a k-block for tiles: these stay in the first-level cache, the others go past it */
    MADE_WHOLE_BYTES = 8192,  /* as TILES_WHOLE_BYTES, if B is dequantised: all of a column by its first tile */
    LANES_BYTES = 4096,       /* for kernels whose steps leave time to bring B from the second-level cache; F16X2 too */
    /* The second-level cache, and what a stack of A may have of it in a pass. */
    L2_BYTES = 1 << 20,      /* its size, if that is not known */
    L2_BYTES_MOST = 2 << 20, /* more of it is not used */
    STACK_EIGHTHS = 4,
    STACK_EIGHTHS_QUANTISED = 6, /* for tiles, if B is dequantised on the way: that is worth some misses */
    /* Sums that wait between several passes. */
    COLUMNS = 256,          /* nb, at most */
    SUMS_BYTES = 512 << 10, /* of a stack and nb columns, at most */
    LINE_BYTES = 64,
};

static int64_t at_least(int64_t value, int64_t least)
{
    return value > least ? value : least;
}

static int64_t at_most(int64_t value, int64_t most)
{
    return value < most ? value : most;
}

static int64_t stored_bytes(const twi_gemm_problem_t *problem)
{
    return problem->weight ? problem->weight->item_bytes : problem->b->item_bytes;
}

static bool quantised(const twi_gemm_problem_t *problem)
{
    return problem->weight ? problem->weight->group > 0 : problem->antiquant.scale != NULL;
}

/* The size of equal blocks of about `wanted` that make up k. */
static int64_t even_blocks(int64_t k, int64_t wanted)
{
    const int64_t n = at_least((k + wanted / 2) / wanted, 1);
    return (k + n - 1) / n;
}

static bool is_tiles(const twi_gemm_plan_t *plan)
{
    return (plan->kernel->flags & TWI_KERNEL_AMX) != 0;
}

/* Bytes of the second-level cache that a stack may have. */
static int64_t stack_room(const twi_gemm_plan_t *plan)
{
    const int64_t l2 = (int64_t)twi_cpu_topology()->l2_bytes, whole = l2 > 0 ? at_most(l2, L2_BYTES_MOST) : L2_BYTES;
    const bool higher = is_tiles(plan) && plan->problem->weight && plan->quantised && !plan->lanes;
    return whole / 8 * (higher ? STACK_EIGHTHS_QUANTISED : STACK_EIGHTHS);
}

/* Rows of a stack; equal ones, if there is one group. */
static int64_t choose_stack(const twi_gemm_plan_t *plan)
{
    const twi_gemm_problem_t *problem = plan->problem;
    if (!problem->weight)
        return PACKED_ROWS;
    if (!is_tiles(plan))
        return ROWS;
    const int64_t row_bytes = at_least(plan->k_pad * twi_gemm_lane_bytes(plan->kernel->lane), 1);
    const int64_t rows = at_most(at_least(stack_room(plan) / row_bytes, TILES_ROWS_LEAST), TILES_ROWS_MOST);
    return problem->n_groups > 1 || problem->m == 0 ? rows : twi_ceil_div(problem->m, twi_ceil_div(problem->m, rows));
}

/*
 * Bytes of a column up to which k is one block for tiles, if there are more of them than one for each group. Blocks with
 * padding cannot be dequantised by the kernel.
 */
static int64_t whole_bytes(const twi_gemm_plan_t *plan)
{
    const twi_gemm_problem_t *problem = plan->problem;
    if (!is_tiles(plan) || !problem->weight || plan->lanes ||
        problem->m <= plan->kernel->mr * at_least(problem->n_groups, 1))
        return 0;
    return !plan->quantised ? TILES_WHOLE_BYTES : plan->k_pad == problem->k ? MADE_WHOLE_BYTES : 0;
}

static int64_t choose_kb(const twi_gemm_plan_t *plan, bool low)
{
    const int64_t lane = twi_gemm_lane_bytes(plan->kernel->lane);
    if (low && (plan->direct || (plan->widens && plan->problem->weight && !plan->quantised)))
        return plan->k_pad; /* B goes by once */
    if (plan->k_pad * lane <= whole_bytes(plan))
        return plan->k_pad;
    const bool tiles = is_tiles(plan) && (low || plan->kernel->lane != TWI_LANE_F16X2);
    return even_blocks(plan->k_pad, (tiles ? TILES_BYTES : LANES_BYTES) / lane);
}

/* A choice, or what the caller wants, as whole units and within the problem. */
static int64_t settle(int64_t wanted, int64_t choice, int64_t unit, int64_t most)
{
    return twi_round_up(at_least(at_most(wanted > 0 ? wanted : choice, most), 1), unit);
}

static twi_gemm_blocks_t choose_blocks(const twi_gemm_plan_t *plan)
{
    const twi_gemm_kernel_t *kernel = plan->kernel;
    const twi_gemm_problem_t *problem = plan->problem;
    const twi_gemm_blocks_t *wanted = &problem->blocks;
    const bool low = problem->m <= kernel->mr;
    twi_gemm_blocks_t blocks;
    const int64_t stack = choose_stack(plan);
    blocks.mb = settle(wanted->mb, at_least(stack, ROWS), kernel->mr, problem->m);
    blocks.stack = settle(wanted->stack, stack, kernel->mr, blocks.mb);
    blocks.kb = settle(wanted->kb, choose_kb(plan, low), kernel->ks, plan->k_pad);
    const int64_t fits = at_least(stack_room(plan) / (blocks.stack * twi_gemm_lane_bytes(kernel->lane)), 1);
    /* even_blocks makes one block of up to 3/2 of what it is given: for tiles that is too much of their cache */
    const int64_t each = is_tiles(plan) ? at_least(fits / 8 * 7, 1) : fits;
    const int64_t pass = low ? plan->k_pad : even_blocks(plan->k_pad, each);
    blocks.pass = settle(wanted->pass, pass, blocks.kb, plan->k_pad);
    blocks.nb = settle(wanted->nb, at_most(COLUMNS, SUMS_BYTES / (blocks.stack * 4)), kernel->nr, problem->n);
    return blocks;
}

bool twi_gemm_can_stream(const twi_gemm_plan_t *plan, uint32_t type)
{
    const int64_t row = plan->kernel->nr * (int64_t)twi_dtype_bytes(type);
    return plan->kernel->isa >= TWI_ISA_AVX512 && row % LINE_BYTES == 0;
}

/* Whole lines of C, and more of them than would stay in a cache. */
bool twi_gemm_streams(const twi_gemm_plan_t *plan, const void *c, int64_t ldc, int64_t rows, uint32_t type)
{
    const int64_t row = ldc * (int64_t)twi_dtype_bytes(type);
    const bool whole = (uintptr_t)c % LINE_BYTES == 0 && row % LINE_BYTES == 0 && row > 0;
    return whole && twi_gemm_can_stream(plan, type) && rows >= (int64_t)twi_config()->stream_bytes / row;
}

void twi_gemm_plan(const twi_gemm_problem_t *problem, twi_gemm_plan_t *plan_out)
{
    const twi_isa_t isa = twi_cpu_isa();
    const twi_gemm_kernel_t *kernel = twi_gemm_kernel_find(problem->kind, isa);
    twi_gemm_plan_t plan = {
        .problem = problem,
        .kernel = kernel,
        .convert = twi_gemm_convert(isa),
        .finish = twi_gemm_finish(isa),
        .k_pad = twi_round_up(problem->k, kernel->ks),
        .stored_bytes = stored_bytes(problem),
        .quantised = quantised(problem),
        .lanes = twi_gemm_lanes_differ(kernel, problem->kind),
    };
    plan.direct = problem->weight && !plan.quantised && !plan.lanes;
    plan.widens = plan.lanes && (kernel->flags & TWI_KERNEL_WIDENS);
    plan.scales = plan.quantised && (kernel->flags & TWI_KERNEL_SCALES);
    plan.panel_bytes = twi_round_up(plan.k_pad * kernel->mr * twi_gemm_lane_bytes(kernel->lane), LINE_BYTES);
    plan.blocks = choose_blocks(&plan);
    plan.near = is_tiles(&plan) && kernel->lane != TWI_LANE_F16X2 ? TILES_NEAR_BYTES / twi_gemm_lane_bytes(kernel->lane)
                                                                  : plan.k_pad;
    plan.asides = (kernel->flags & TWI_KERNEL_AMX) && plan.k_pad > 0;
    plan.makes = plan.asides && problem->weight && plan.lanes != plan.quantised;
    plan.streams =
        !problem->hook && twi_gemm_streams(&plan, problem->c, problem->ldc, problem->m, problem->epilogue.out_type);
    plan.worker_bytes = twi_gemm_worker_bytes(&plan);
    *plan_out = plan;
}
