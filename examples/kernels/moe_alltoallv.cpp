// SPDX-License-Identifier: Apache-2.0
// A mixture of experts with one expert a rank: the ranks tell each other how many tokens they send, send
// the tokens to their experts, the experts work, and the tokens go back to where they came from.
//
//     tilewire run -n 4 build/examples/moe_alltoallv
#include <vector>

#include "example_host.h"

namespace
{

constexpr uint32_t kMaxRanks = 64;
constexpr uint64_t kWidth = 16; // floats of a token

} // namespace

struct MoeData {
    Mc2InitTiling init;
    Mc2CcTiling alltoAll;
    Mc2CcTiling alltoAllV;
    uint64_t sendTokens[kMaxRanks]; // how many of our tokens, which are sorted by expert, go to each
};

// What one rank's expert does to a value.
static float Expert(uint32_t rank, float value)
{
    return static_cast<float>(rank + 1) * value;
}

// From tokens for or from each rank to counts and displacements in elements. Returns the total.
static uint64_t Layout(const uint64_t *tokens, uint32_t ranks, uint64_t *counts, uint64_t *displs)
{
    uint64_t total = 0;
    for (uint32_t q = 0; q < ranks; q++) {
        counts[q] = tokens[q] * kWidth;
        displs[q] = total;
        total += counts[q];
    }
    return total;
}

// x: our tokens; y: the same tokens, each changed by its expert. The workspace first holds a count from
// every rank, then the tokens for our expert.
extern "C" __global__ __aicore__ void moe_alltoallv(GM_ADDR x, GM_ADDR y, GM_ADDR workspace, GM_ADDR tilingGM)
{
    REGISTER_TILING_DEFAULT(MoeData);
    GET_TILING_DATA(t, tilingGM);
    GM_ADDR inbox = workspace + kMaxRanks * sizeof(uint64_t);
    GM_ADDR sendTokens = tilingGM + offsetof(MoeData, sendTokens);
    const uint64_t *recvTokens = reinterpret_cast<const uint64_t *>(workspace);
    const auto type = HcclDataType::HCCL_DATA_TYPE_FP32;

    Hccl hccl;
    hccl.InitV2(AscendC::GetHcclContext<0>(), &t);
    if (hccl.SetCcTilingV2(offsetof(MoeData, alltoAll)) != HCCL_SUCCESS ||
        hccl.SetCcTilingV2(offsetof(MoeData, alltoAllV)) != HCCL_SUCCESS) {
        return;
    }
    const uint32_t ranks = hccl.GetRankDim();
    hccl.Wait(hccl.AlltoAll<true>(sendTokens, workspace, 1, HcclDataType::HCCL_DATA_TYPE_UINT64));

    uint64_t sendCounts[kMaxRanks], sendAt[kMaxRanks], recvCounts[kMaxRanks], recvAt[kMaxRanks];
    Layout(t.sendTokens, ranks, sendCounts, sendAt);
    const uint64_t received = Layout(recvTokens, ranks, recvCounts, recvAt);
    hccl.Wait(hccl.AlltoAllV<true>(x, sendCounts, sendAt, type, inbox, recvCounts, recvAt, type));

    float *values = reinterpret_cast<float *>(inbox);
    for (auto i = static_cast<uint64_t>(GetBlockIdx()); i < received; i += static_cast<uint64_t>(GetBlockNum())) {
        values[i] = Expert(hccl.GetRankId(), values[i]);
    }
    AscendC::SyncAll<true>(); // the way back starts when every block has done its part
    hccl.Wait(hccl.AlltoAllV<true>(inbox, recvCounts, recvAt, type, y, sendCounts, sendAt, type));
    AscendC::SyncAll<true>();
    hccl.Finalize();
}

namespace
{

// Uneven on purpose, and nothing at all for some.
uint64_t TokensFor(uint32_t rank, uint32_t expert)
{
    return (3 * rank + 5 * expert) % 4 * 7;
}

uint64_t TokensAt(uint32_t expert, uint32_t ranks)
{
    uint64_t total = 0;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        total += TokensFor(rank, expert);
    }
    return total;
}

bool FillTiling(const example::World &world, MoeData *tiling)
{
    Mc2CcTilingConfig all(world.Name(), HCCL_CMD_ALLTOALL, "AlltoAll=level0:fullmesh;level1:pairwise");
    Mc2CcTilingConfig allV(world.Name(), HCCL_CMD_ALLTOALLV, "AlltoAll=level0:fullmesh;level1:pairwise");
    for (uint32_t q = 0; q < static_cast<uint32_t>(world.Size()); q++) {
        tiling->sendTokens[q] = TokensFor(static_cast<uint32_t>(world.Rank()), q);
    }
    return all.GetTiling(tiling->init) == 0 && all.GetTiling(tiling->alltoAll) == 0 &&
           allV.GetTiling(tiling->alltoAllV) == 0;
}

bool Run(example::World &world)
{
    const auto rank = static_cast<uint32_t>(world.Rank()), ranks = static_cast<uint32_t>(world.Size());
    MoeData tiling = {};
    if (ranks > kMaxRanks || !FillTiling(world, &tiling)) {
        return false;
    }
    std::vector<float> x, expected;
    for (uint32_t expert = 0; expert < ranks; expert++) {
        for (uint64_t i = 0; i < TokensFor(rank, expert) * kWidth; i++) {
            x.push_back(static_cast<float>(1000 * rank + x.size() + 1));
            expected.push_back(Expert(expert, x.back()));
        }
    }
    x.resize(x.size() + 1); // never empty
    expected.resize(x.size());
    std::vector<float> y(x.size());
    std::vector<uint64_t> workspace(kMaxRanks + TokensAt(rank, ranks) * kWidth / 2 + 1);

    const AscendC::LaunchConfig config = {2, 0, {world.Comm()}};
    const int result =
        AscendC::Launch(config, moe_alltoallv, reinterpret_cast<GM_ADDR>(x.data()), reinterpret_cast<GM_ADDR>(y.data()),
                        reinterpret_cast<GM_ADDR>(workspace.data()), reinterpret_cast<GM_ADDR>(&tiling));
    return world.Report("tokens come back", y, result == 0 && y == expected);
}

} // namespace

int main()
{
    example::World world;
    if (world.Rank() == 0) {
        std::printf("moe_alltoallv: %d ranks, one expert each, tokens of %u floats\n", world.Size(),
                    static_cast<unsigned>(kWidth));
        std::printf("  input    x = 1000 * rank + 1, + 2, ..., sorted by expert; 0 to 21 tokens for each\n");
        std::printf("  formula  y = x * (expert + 1), computed by the expert's rank and sent back\n");
    }
    return Run(world) ? 0 : 1;
}
