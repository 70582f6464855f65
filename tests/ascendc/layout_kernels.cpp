// SPDX-License-Identifier: Apache-2.0
// Our own reduce-scatter kernels, 300 halves a rank in four layouts that must give the same bits: at
// once; two tiles of 128 by repeat and a tail of 44; three tiles of 100 by three calls; and by repeat 3.
#include "layout_kernels.h"

#include "reduce_scatter_custom_tiling.h"

namespace
{

constexpr std::uint64_t kBlock = 300; // elements for each rank, and the distance between their blocks

struct Piece {
    std::uint64_t start;
    std::uint64_t count;
    std::uint8_t repeat;
};

template <std::size_t n> void ReduceScatterPieces(GM_ADDR x, GM_ADDR y, GM_ADDR tilingGM, const Piece (&pieces)[n])
{
    REGISTER_TILING_DEFAULT(ReduceScatterCustomTilingData);
    GET_TILING_DATA(tiling, tilingGM);
    Hccl hccl;
    hccl.InitV2(AscendC::GetHcclContext<0>(), &tiling);
    if (hccl.SetCcTilingV2(offsetof(ReduceScatterCustomTilingData, reduceScatterCcTiling)) != HCCL_SUCCESS) {
        return;
    }
    HcclHandle handles[n];
    for (std::size_t i = 0; i < n; i++) {
        const std::uint64_t at = pieces[i].start * sizeof(std::uint16_t);
        handles[i] = hccl.ReduceScatter<true>(x + at, y + at, pieces[i].count, HCCL_DATA_TYPE_FP16, HCCL_REDUCE_SUM,
                                              kBlock, pieces[i].repeat);
    }
    for (std::size_t i = 0; i < n; i++) {
        for (unsigned round = 0; round < pieces[i].repeat; round++) {
            hccl.Wait(handles[i]);
        }
    }
    AscendC::SyncAll<true>();
    hccl.Finalize();
}

} // namespace

extern "C" __global__ __aicore__ void layout_whole(GM_ADDR x, GM_ADDR y, GM_ADDR, GM_ADDR tiling)
{
    ReduceScatterPieces(x, y, tiling, {Piece{0, 300, 1}});
}

extern "C" __global__ __aicore__ void layout_tail(GM_ADDR x, GM_ADDR y, GM_ADDR, GM_ADDR tiling)
{
    ReduceScatterPieces(x, y, tiling, {Piece{0, 128, 2}, Piece{256, 44, 1}});
}

extern "C" __global__ __aicore__ void layout_three_calls(GM_ADDR x, GM_ADDR y, GM_ADDR, GM_ADDR tiling)
{
    ReduceScatterPieces(x, y, tiling, {Piece{0, 100, 1}, Piece{100, 100, 1}, Piece{200, 100, 1}});
}

extern "C" __global__ __aicore__ void layout_repeat_three(GM_ADDR x, GM_ADDR y, GM_ADDR, GM_ADDR tiling)
{
    ReduceScatterPieces(x, y, tiling, {Piece{0, 100, 3}});
}
