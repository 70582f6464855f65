// SPDX-License-Identifier: Apache-2.0
// One reduce-scatter in four layouts that give the same result: the whole block at once, tiles by
// `repeat` with a shorter tail, and equal tiles by several calls or by one call with `repeat`.
//
//     tilewire run -n 4 build/examples/reduce_scatter_tiles
#include <vector>

#include "example_host.h"

struct ReduceScatterTilesData {
    Mc2InitTiling init;
    Mc2CcTiling reduceScatter;
    uint64_t blockLen; // elements that each rank ends up with
    uint64_t tileLen;  // elements that one round carries
    uint32_t tileNum;  // whole tiles in a block; what is left is the tail
    uint32_t oneCall;  // 1: one call with repeat; 0: one call a tile
};

extern "C" __global__ __aicore__ void reduce_scatter_tiles(GM_ADDR x, GM_ADDR y, GM_ADDR, GM_ADDR tilingGM)
{
    REGISTER_TILING_DEFAULT(ReduceScatterTilesData);
    GET_TILING_DATA_WITH_STRUCT(ReduceScatterTilesData, t, tilingGM);

    Hccl hccl;
    hccl.InitV2(AscendC::GetHcclContext<0>(), &t);
    if (hccl.SetCcTilingV2(offsetof(ReduceScatterTilesData, reduceScatter)) != HCCL_SUCCESS) {
        return;
    }
    // Blocks for neighbouring ranks lie blockLen apart however small the tiles are: that is the stride.
    const auto post = [&](uint64_t start, uint64_t count, uint32_t repeat) {
        const uint64_t at = start * sizeof(float);
        return hccl.ReduceScatter<true>(x + at, y + at, count, HCCL_DATA_TYPE_FP32, HCCL_REDUCE_SUM, t.blockLen,
                                        static_cast<uint8_t>(repeat));
    };
    constexpr uint32_t maxCalls = 8;
    HcclHandle handles[maxCalls + 1];
    uint32_t posted = 0;
    if (t.oneCall != 0) {
        handles[posted++] = post(0, t.tileLen, t.tileNum);
    } else {
        for (uint32_t i = 0; i < t.tileNum && i < maxCalls; i++) {
            handles[posted++] = post(i * t.tileLen, t.tileLen, 1);
        }
    }
    const uint32_t tiled = posted;
    const uint64_t done = t.tileLen * t.tileNum;
    if (done < t.blockLen) {
        handles[posted++] = post(done, t.blockLen - done, 1);
    }
    for (uint32_t i = 0; i < posted; i++) {
        const uint32_t rounds = t.oneCall != 0 && i < tiled ? t.tileNum : 1;
        for (uint32_t round = 0; round < rounds; round++) {
            hccl.Wait(handles[i]);
        }
    }
    AscendC::SyncAll<true>(); // no block may finalize while another still waits
    hccl.Finalize();
}

namespace
{

constexpr uint64_t kBlock = 300;

struct Layout {
    const char *label;
    uint64_t tileLen;
    uint32_t tileNum;
    uint32_t oneCall;
};

bool RunLayout(example::World &world, const Layout &layout)
{
    const auto ranks = static_cast<uint64_t>(world.Size());
    const auto rank = static_cast<uint64_t>(world.Rank());
    ReduceScatterTilesData tiling = {};
    Mc2CcTilingConfig config(world.Name(), HCCL_CMD_REDUCE_SCATTER, "ReduceScatter=level0:fullmesh", HCCL_REDUCE_SUM);
    if (config.GetTiling(tiling.init) != 0 || config.GetTiling(tiling.reduceScatter) != 0) {
        return false;
    }
    tiling.blockLen = kBlock;
    tiling.tileLen = layout.tileLen;
    tiling.tileNum = layout.tileNum;
    tiling.oneCall = layout.oneCall;

    std::vector<float> x(kBlock * ranks), y(kBlock);
    for (uint64_t e = 0; e < x.size(); e++) {
        x[e] = static_cast<float>((rank + 1) * e);
    }
    bool right = example::RunKernel(world, 4, reduce_scatter_tiles, x.data(), y.data(), tiling);
    for (uint64_t i = 0; i < kBlock; i++) {
        right = right && y[i] == static_cast<float>(ranks * (ranks + 1) / 2 * (kBlock * rank + i));
    }
    return world.Report(layout.label, y, right);
}

} // namespace

int main()
{
    const Layout layouts[] = {
        {"whole: 300", kBlock, 1, 1},
        {"tiles: 128 + 128 + 44", 128, 2, 1},
        {"3 x 100, three calls", 100, 3, 0},
        {"3 x 100, repeat 3", 100, 3, 1},
    };
    example::World world;
    if (world.Rank() == 0) {
        std::printf("reduce_scatter_tiles: %d ranks, 4 blocks each\n", world.Size());
        std::printf("  input    x[e] = (rank + 1) * e for %llu e\n",
                    static_cast<unsigned long long>(kBlock) * static_cast<unsigned>(world.Size()));
        std::printf("  formula  y[i] on rank q = sum over ranks of x[300 q + i] = %d * (300 q + i)\n",
                    world.Size() * (world.Size() + 1) / 2);
    }
    bool right = true;
    for (const Layout &layout : layouts) {
        right = RunLayout(world, layout) && right;
    }
    return right ? 0 : 1;
}
