// SPDX-License-Identifier: Apache-2.0
// The host of the reduce-scatter kernels: seed_main threads|launched BLOCKS [demo]. Runs every kernel on
// 4 ranks with BLOCKS AIV blocks each, and checks every element of every rank: against a sum in ascending
// rank order in fp32, rounded once, and kernel against kernel. Built twice, with and without the kernels
// of the document (TEST_SEED_KERNELS).
#include <cstdlib>
#include <cstring>
#include <vector>

#include <ascendc/launch.h>

#include "half_bits.h"
#include "layout_kernels.h"
#include "reduce_scatter_custom_tiling.h"
#include "thread_ranks.h"

namespace
{

constexpr int kRanks = 4;
constexpr std::size_t kBlock = 300;
constexpr std::size_t kGuard = 64;
constexpr std::uint16_t kUntouched = 0x5a5a;
bool g_demo = false; // plain numbers and a table, for readers

struct Kernel {
    const char *name;
    void (*run)(GM_ADDR x, GM_ADDR y, GM_ADDR workspace, GM_ADDR tiling);
};

#ifdef TEST_SEED_KERNELS
const Kernel kKernels[] = {
    {"document, first kernel: 300 at once", seed_kernel_1},
    {"document, second kernel: 128 + 128 + 44", seed_kernel_2},
    {"own kernel: 3 x 100 by three calls", layout_three_calls},
    {"own kernel: 3 x 100 by repeat 3", layout_repeat_three},
};
#else
const Kernel kKernels[] = {
    {"own kernel: 300 at once", layout_whole},
    {"own kernel: 128 + 128 + 44", layout_tail},
    {"own kernel: 3 x 100 by three calls", layout_three_calls},
    {"own kernel: 3 x 100 by repeat 3", layout_repeat_three},
};
#endif

// Element i of the 1200 of a rank. Five kinds of column: two that tell position and rank apart, one whose
// sum depends on the order of the ranks, one that loses its small terms if partial sums are rounded to
// half, and one of arbitrary halves.
std::uint16_t Input(int rank, std::size_t i)
{
    static const float order[kRanks] = {32768.0f, 3.0f / 1024, -32768.0f, 5.0f / 1024};
    static const float rounding[kRanks] = {2048.0f, 1.0f, 1.0f, 1.0f};
    if (g_demo) {
        return test::FloatToHalf(static_cast<float>(rank + 1) * static_cast<float>(i % 170));
    }
    switch (i % 5) {
    case 0:
        return test::FloatToHalf(static_cast<float>(i));
    case 1:
        return test::FloatToHalf(static_cast<float>(rank + 1) * static_cast<float>(i % 97));
    case 2:
        return test::FloatToHalf(order[rank] * (i % 2 == 0 ? 1.0f : -1.0f));
    case 3:
        return test::FloatToHalf(rounding[rank]);
    default: {
        const std::uint32_t mixed =
            (static_cast<std::uint32_t>(i) * 2654435761u) ^ (static_cast<std::uint32_t>(rank) * 40503u);
        const std::uint32_t bits = mixed >> 12;
        return static_cast<std::uint16_t>((bits & 0x83ff) | ((bits >> 4) % 24 + 1) << 10); // below 2^10
    }
    }
}

std::uint16_t Expected(int rank, std::size_t i)
{
    float sum = 0;
    for (int source = 0; source < kRanks; source++) {
        const float term = test::HalfToFloat(Input(source, static_cast<std::size_t>(rank) * kBlock + i));
        sum = source == 0 ? term : sum + term;
    }
    return test::FloatToHalf(sum);
}

bool FillTiling(tw_comm_t *comm, ReduceScatterCustomTilingData *tiling)
{
    Mc2CcTilingConfig config(tw_comm_name(comm), HcclCMDType::HCCL_CMD_REDUCE_SCATTER,
                             "ReduceScatter=level0:doublering", HcclReduceOp::HCCL_REDUCE_SUM);
    return config.GetTiling(tiling->mc2InitTiling) == 0 && config.GetTiling(tiling->reduceScatterCcTiling) == 0;
}

GM_ADDR Bytes(void *p)
{
    return static_cast<GM_ADDR>(p);
}

std::vector<std::uint16_t> RunKernel(tw_comm_t *comm, const Kernel &kernel, std::uint32_t blocks)
{
    const int rank = tw_comm_rank(comm);
    std::vector<std::uint16_t> x(kRanks * kBlock);
    for (std::size_t i = 0; i < x.size(); i++) {
        x[i] = Input(rank, i);
    }
    const std::vector<std::uint16_t> before = x;
    std::vector<std::uint16_t> y(kBlock + kGuard, kUntouched);
    ReduceScatterCustomTilingData tiling;
    CHECK(FillTiling(comm, &tiling));

    const AscendC::LaunchConfig config = {blocks, 0, {comm}};
    CHECK(AscendC::Launch(config, kernel.run, Bytes(x.data()), Bytes(y.data()), GM_ADDR{nullptr}, Bytes(&tiling)) == 0);
    CHECK(x == before);
    return y;
}

void CheckOutput(const Kernel &kernel, int rank, const std::vector<std::uint16_t> &y)
{
    for (std::size_t i = 0; i < y.size(); i++) {
        const std::uint16_t expected = i < kBlock ? Expected(rank, i) : kUntouched;
        if (y[i] != expected) {
            std::fprintf(stderr, "# %s: rank %d element %zu is %04x, expected %04x\n", kernel.name, rank, i, y[i],
                         expected);
            test::g_failures++;
            return;
        }
    }
}

// Collective: rank 0 prints everybody's first values. Returns whether every rank is right so far.
bool Show(tw_comm_t *comm, const Kernel &kernel, const std::vector<std::uint16_t> &y)
{
    struct Row {
        std::uint16_t first[4];
        int failures;
    };
    Row row = {{y[0], y[1], y[2], y[3]}, test::g_failures};
    void *mine = nullptr;
    CHECK(tw_mem_alloc(comm, sizeof row, &mine) == TW_OK);
    std::memcpy(mine, &row, sizeof row);
    CHECK(tw_comm_barrier(comm) == TW_OK);
    bool right = true;
    for (int rank = 0; rank < kRanks && tw_comm_rank(comm) == 0; rank++) {
        void *peer = nullptr;
        CHECK(tw_mem_peer(comm, mine, rank, &peer) == TW_OK);
        std::memcpy(&row, peer, sizeof row);
        right = right && row.failures == 0;
        if (rank == 0) {
            std::printf("  %s\n", kernel.name);
        }
        std::printf("    rank %d: %g %g %g %g ...\n", rank, test::HalfToFloat(row.first[0]),
                    test::HalfToFloat(row.first[1]), test::HalfToFloat(row.first[2]), test::HalfToFloat(row.first[3]));
    }
    CHECK(tw_comm_barrier(comm) == TW_OK);
    tw_mem_free(comm, mine);
    return right;
}

void RunAll(tw_comm_t *comm, std::uint32_t blocks)
{
    const int rank = tw_comm_rank(comm);
    if (tw_comm_size(comm) != kRanks) {
        std::fprintf(stderr, "# needs %d ranks, has %d\n", kRanks, tw_comm_size(comm));
        test::g_failures++;
        return;
    }
    if (g_demo && rank == 0) {
        std::printf("  input    x[e] = (rank + 1) * (e mod 170), 1200 halves on each of 4 ranks\n"
                    "  formula  y[i] on rank q = sum over ranks of x[300 q + i] = 10 * ((300 q + i) mod 170)\n");
    }
    bool right = true;
    std::vector<std::uint16_t> first;
    for (const Kernel &kernel : kKernels) {
        const std::vector<std::uint16_t> y = RunKernel(comm, kernel, blocks);
        CheckOutput(kernel, rank, y);
        if (first.empty()) {
            first = y;
        }
        CHECK(y == first);
        if (g_demo) {
            right = Show(comm, kernel, y) && right;
        }
    }
    if (g_demo && rank == 0) {
        std::printf("  all 300 elements checked on every rank, all layouts gave the same bits: %s\n",
                    right ? "ok" : "WRONG");
    }
}

} // namespace

int main(int argc, char **argv)
{
    const bool threads = argc > 1 && std::strcmp(argv[1], "threads") == 0;
    const bool launched = argc > 1 && std::strcmp(argv[1], "launched") == 0;
    const int blocks = argc > 2 ? std::atoi(argv[2]) : 0;
    if (!(threads || launched) || blocks < 1) {
        std::fprintf(stderr, "usage: seed_main threads|launched BLOCKS [demo]\n");
        return 2;
    }
    g_demo = argc > 3 && std::strcmp(argv[3], "demo") == 0;
    const test::Body body = [&](tw_comm_t *comm) { RunAll(comm, static_cast<std::uint32_t>(blocks)); };
    if (threads) {
        test::RunThreads(kRanks, body);
    } else {
        test::RunLaunched(body);
    }
    return test::g_failures == 0 ? 0 : 1;
}
