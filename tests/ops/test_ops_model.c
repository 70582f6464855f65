/* SPDX-License-Identifier: Apache-2.0 */
/* The cost model: each of its prices turns a choice, and so do wishes and slots that are too small. */
#include "harness/test.h"
#include "ops/model.h"
#include "ops/products.h"

typedef struct choice {
    twi_gemm_problem_t problem;
    twi_gemm_plan_t plan;
    twi_model_args_t args;
} choice_t;

/* Rows of the table are there whatever the machine can do. */
static const twi_gemm_kernel_t *find_kernel(twi_isa_t isa, twi_gemm_lane_t lane)
{
    for (int i = 0; i < twi_gemm_n_kernels; i++)
        if (twi_gemm_kernels[i].isa == isa && twi_gemm_kernels[i].lane == lane)
            return &twi_gemm_kernels[i];
    test_skip("there is no such kernel on this architecture");
    return NULL;
}

/* A product of bf16 of two ranks, cut into whole panels, all rows in one pass. */
static void open_choice(choice_t *c, const twi_gemm_kernel_t *kernel, int64_t m, int64_t k, int64_t n)
{
    *c = (choice_t){.problem = {.kind = TWI_GEMM_BF16, .m = m, .k = k, .n = n}};
    c->plan = (twi_gemm_plan_t){
        .problem = &c->problem, .kernel = kernel, .lanes = twi_gemm_lanes_differ(kernel, TWI_GEMM_BF16)};
    c->args = (twi_model_args_t){
        .plan = &c->plan,
        .rows = m,
        .shard_rows = m / 2,
        .bytes = m * n * 2,
        .wire_bytes = m * n * 2,
        .waits = 1,
        .slots_bytes = (size_t)64 << 20,
        .size = 2,
        .wish = TW_ROUNDS_AUTO,
    };
}

static void check_choice(const choice_t *c, bool fused, int64_t rounds, const char *why, int line)
{
    const twi_schedule_t got = twi_model_choose(&c->args);
    if (got.fused != fused || got.rounds != rounds || strcmp(got.why, why) != 0)
        test_fail(__FILE__, line, "%s, %lld rounds (%s) instead of %s, %lld (%s)", got.fused ? "fused" : "not fused",
                  (long long)got.rounds, got.why, fused ? "fused" : "not fused", (long long)rounds, why);
}

#define WORTH_IT "there is more to hide than it costs"
#define TOO_LITTLE "there is too little to hide"
#define CHECK_CHOICE(c, fused, rounds, why) check_choice(c, fused, rounds, why, __LINE__)

TEST(panels)
{
    choice_t c;
    open_choice(&c, find_kernel(TWI_ISA_AVX512BF16, TWI_LANE_BF16), 32, 2048, 4096);
    CHECK_CHOICE(&c, true, 1, WORTH_IT);
    c.args.panels = 3; /* as the product has */
    CHECK_CHOICE(&c, true, 1, WORTH_IT);
    c.args.panels = 4;
    CHECK_CHOICE(&c, false, 1, TOO_LITTLE);
}

TEST(passes)
{
    choice_t c;
    open_choice(&c, find_kernel(TWI_ISA_AMX, TWI_LANE_BF16), 64, 1024, 4096);
    CHECK_CHOICE(&c, true, 1, WORTH_IT);
    c.args.apart = 32;
    CHECK_CHOICE(&c, false, 1, TOO_LITTLE);
    open_choice(&c, c.plan.kernel, 256, 1024, 4096); /* both passes take longer than the right matrix */
    c.args.apart = 128;
    CHECK_CHOICE(&c, true, 1, WORTH_IT);
    c.args.apart = 8; /* now the second does not */
    CHECK_CHOICE(&c, false, 1, TOO_LITTLE);
}

/* fp32 lanes: conversions of the right matrix are never hidden. */
TEST(conversions)
{
    choice_t c;
    open_choice(&c, find_kernel(TWI_ISA_AVX512, TWI_LANE_F32), 128, 1024, 4096);
    CHECK_CHOICE(&c, true, 1, WORTH_IT);
    c.args.apart = 64;
    CHECK_CHOICE(&c, false, 1, TOO_LITTLE);
}

TEST(waits)
{
    choice_t c;
    open_choice(&c, find_kernel(TWI_ISA_AVX512BF16, TWI_LANE_BF16), 64, 512, 64);
    CHECK_CHOICE(&c, true, 1, WORTH_IT);
    c.args.waits = 2;
    CHECK_CHOICE(&c, false, 1, TOO_LITTLE);
    c.args.waits = 1;
    c.args.size = 4;
    CHECK_CHOICE(&c, false, 1, TOO_LITTLE);
}

TEST(nothing)
{
    choice_t c;
    open_choice(&c, find_kernel(TWI_ISA_PORTABLE, TWI_LANE_F32), 0, 16, 16);
    CHECK_CHOICE(&c, false, 1, "a rank's rows do not fill a tile");
    open_choice(&c, c.plan.kernel, 16, 16, 0);
    CHECK_CHOICE(&c, false, 1, TOO_LITTLE);
    open_choice(&c, c.plan.kernel, 6, 16, 16);
    CHECK_CHOICE(&c, false, 1, "a rank's rows do not fill a tile");
    c.args.size = 1;
    CHECK_CHOICE(&c, true, 1, "there is one rank");
}

TEST(rounds)
{
    choice_t c;
    open_choice(&c, find_kernel(TWI_ISA_PORTABLE, TWI_LANE_F32), 1024, 1024, 4096);
    c.args.slots_bytes = (size_t)c.args.bytes * 2;
    CHECK_CHOICE(&c, true, 1, WORTH_IT);
    c.args.wish = 3;
    CHECK_CHOICE(&c, true, 3, "asked for");
    c.args.wish = TW_ROUNDS_UNFUSED;
    CHECK_CHOICE(&c, false, 1, "asked for");
    c.args.slots_bytes -= 1;
    CHECK_CHOICE(&c, false, 2, "asked for");
    c.args.wish = 1;
    CHECK_CHOICE(&c, true, 2, "as many as the slots need");
    c.args.wish = TW_ROUNDS_AUTO;
    CHECK_CHOICE(&c, true, 2, "the slots hold no more of it at a time");
}

/* Rows that are multiplied together: those of the plan, fewer if workers would have nothing to do, but not too few. */
TEST(heights)
{
    choice_t c;
    twi_ops_t ops = {.n_workers = 1};
    const twi_op_t op = {.ops = &ops};
    open_choice(&c, find_kernel(TWI_ISA_AMX, TWI_LANE_BF16), 2048, 256, 128);
    c.plan.blocks.stack = 1024;
    CHECK_EQ(twi_products_height(&op, &c.plan, 2048), 1024);
    ops.n_workers = 2; /* 8 items: 2 chunks of columns and 4 strips */
    CHECK_EQ(twi_products_height(&op, &c.plan, 2048), 512);
    ops.n_workers = 8;
    CHECK_EQ(twi_products_height(&op, &c.plan, 2048), TWI_STRIP_ROWS);
    c.problem.n = 4096;
    CHECK_EQ(twi_products_height(&op, &c.plan, 2048), 1024);
    c.problem.n = 128;
    c.plan.blocks.stack = 128;
    CHECK_EQ(twi_products_height(&op, &c.plan, 2048), 128);
}

/* Chunks of columns: one for a worker alone; 16 items a worker if they are wide, else four, and none too narrow. */
TEST(chunks)
{
    static const struct {
        int workers;
        int64_t strips, rounds, n, chunks, cols;
    } cases[] = {
        {1, 8, 1, 4096, 1, 4096},  {4, 8, 1, 4096, 8, 512}, {8, 8, 1, 4096, 16, 256}, {8, 2, 1, 4096, 16, 256},
        {4, 64, 1, 4096, 1, 4096}, {4, 2, 1, 1024, 8, 128}, {4, 1, 1, 4096, 16, 256}, {4, 1, 1, 200, 4, 64},
        {2, 2, 4, 4096, 4, 1024},  {64, 1, 1, 64, 1, 64},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        choice_t c;
        twi_ops_t ops = {.n_workers = cases[i].workers};
        twi_op_memory_t memory = {0};
        twi_op_t op = {.ops = &ops, .memory = &memory};
        twi_buffer_t panels = {0};
        open_choice(&c, find_kernel(TWI_ISA_AMX, TWI_LANE_BF16), 2048, 32, cases[i].n);
        twi_products_t products = {.plan = &c.plan, .panels = &panels};
        CHECK_OK(twi_products_create(&op, &products, cases[i].strips, cases[i].rounds, cases[i].n));
        CHECK_EQ(products.n_chunks, cases[i].chunks);
        CHECK_EQ(products.chunk_cols, cases[i].cols);
        twi_buffer_drop(&panels);
        twi_op_memory_drop(&memory);
    }
}
