// SPDX-License-Identifier: Apache-2.0
// A matrix product whose tiles are all-reduced while the next ones are computed: one Prepare with
// `repeat` for all tiles, then compute a tile, Commit it, go on; Wait only when everything is computed.
//
//     tilewire run -n 4 build/examples/all_reduce_overlap
#include <vector>

#include "example_host.h"

struct AllReduceOverlapData {
    Mc2InitTiling init;
    Mc2CcTiling allReduce;
    uint32_t rows;     // of A and of the result
    uint32_t depth;    // columns of A, length of b
    uint32_t tileRows; // rows in one round; divides rows
};

// x holds A (rows x depth) and then b (depth); y = A b, summed over the ranks.
extern "C" __global__ __aicore__ void all_reduce_overlap(GM_ADDR x, GM_ADDR y, GM_ADDR, GM_ADDR tilingGM)
{
    REGISTER_TILING_DEFAULT(AllReduceOverlapData);
    GET_TILING_DATA(t, tilingGM);
    const float *a = reinterpret_cast<const float *>(x);
    const float *b = a + static_cast<uint64_t>(t.rows) * t.depth;
    float *c = reinterpret_cast<float *>(y);
    const auto tiles = static_cast<uint8_t>(t.rows / t.tileRows);

    Hccl hccl;
    hccl.InitV2(AscendC::GetHcclContext<0>(), &t);
    if (hccl.SetCcTilingV2(offsetof(AllReduceOverlapData, allReduce)) != HCCL_SUCCESS) {
        return;
    }
    const HcclHandle handle = hccl.AllReduce(y, y, t.tileRows, HCCL_DATA_TYPE_FP32, HCCL_REDUCE_SUM, tiles);

    const auto blocks = static_cast<uint32_t>(GetBlockNum());
    for (uint32_t tile = 0; tile < tiles; tile++) {
        for (auto i = static_cast<uint32_t>(GetBlockIdx()); i < t.tileRows; i += blocks) {
            const uint64_t row = static_cast<uint64_t>(tile) * t.tileRows + i;
            float sum = 0;
            for (uint32_t k = 0; k < t.depth; k++) {
                sum += a[row * t.depth + k] * b[k];
            }
            c[row] = sum;
        }
        AscendC::SyncAll<true>(); // every block has finished its part of the tile
        hccl.Commit(handle);
    }
    for (uint32_t tile = 0; tile < tiles; tile++) {
        hccl.Wait(handle);
    }
    AscendC::SyncAll<true>();
    hccl.Finalize();
}

namespace
{

constexpr uint32_t kRows = 1024, kDepth = 256, kTileRows = 128;

float A(uint64_t rank, uint64_t row, uint64_t k)
{
    return static_cast<float>((row + rank + k) % 7);
}
float B(uint64_t rank, uint64_t k)
{
    return static_cast<float>((k + 3 * rank) % 5) - 2;
}

float Expected(uint64_t ranks, uint64_t row)
{
    float sum = 0; // small integers: exact in any order
    for (uint64_t rank = 0; rank < ranks; rank++) {
        for (uint64_t k = 0; k < kDepth; k++) {
            sum += A(rank, row, k) * B(rank, k);
        }
    }
    return sum;
}

bool Run(example::World &world)
{
    AllReduceOverlapData tiling = {};
    Mc2CcTilingConfig config(world.Name(), HCCL_CMD_ALLREDUCE, "AllReduce=level0:doublering", HCCL_REDUCE_SUM);
    if (config.GetTiling(tiling.init) != 0 || config.GetTiling(tiling.allReduce) != 0) {
        return false;
    }
    tiling.rows = kRows;
    tiling.depth = kDepth;
    tiling.tileRows = kTileRows;

    const auto rank = static_cast<uint64_t>(world.Rank());
    std::vector<float> x, y(kRows);
    for (uint64_t row = 0; row < kRows; row++) {
        for (uint64_t k = 0; k < kDepth; k++) {
            x.push_back(A(rank, row, k));
        }
    }
    for (uint64_t k = 0; k < kDepth; k++) {
        x.push_back(B(rank, k));
    }
    bool right = example::RunKernel(world, 2, all_reduce_overlap, x.data(), y.data(), tiling);
    for (uint64_t row = 0; row < kRows; row++) {
        right = right && y[row] == Expected(static_cast<uint64_t>(world.Size()), row);
    }
    return world.Report("y = sum of A b", y, right);
}

} // namespace

int main()
{
    example::World world;
    if (world.Rank() == 0) {
        std::printf("all_reduce_overlap: %d ranks, 2 blocks each, %u tiles of %u rows\n", world.Size(),
                    kRows / kTileRows, kTileRows);
        std::printf("  input    each rank has its own A (%u x %u) and b (%u)\n", kRows, kDepth, kDepth);
        std::printf(
            "  formula  y = sum over ranks of A b, the same on all; a tile travels while the next is computed\n");
    }
    return Run(world) ? 0 : 1;
}
