// SPDX-License-Identifier: Apache-2.0
#ifndef TILEWIRE_ASCENDC_KERNEL_OPERATOR_H
#define TILEWIRE_ASCENDC_KERNEL_OPERATOR_H
// The one include of a kernel (C++17 or later): the kernel-side HCCL API and the few AscendC words around
// it, on top of tilewire/hccl.h. Header-only; link with -ltilewire and threads. A kernel is an ordinary
// function that launch.h runs on several threads, its global memory is ordinary memory.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hccl_client.h"
#include "hccl_tiling.h"
#include "hccl_types.h"
#include "kernel_block.h"

#define __global__
#define __aicore__
#define __gm__

#define ASCEND_IS_AIV (AscendC::g_coreType == AscendC::AIV)
#define ASCEND_IS_AIC (AscendC::g_coreType == AscendC::AIC)

// Names the struct that GET_TILING_DATA reads.
#define REGISTER_TILING_DEFAULT(TilingStruct)                                                            \
    using AscendcDefaultTiling [[maybe_unused]] = TilingStruct;                                          \
    static_assert(std::is_trivially_copyable_v<TilingStruct> && std::is_standard_layout_v<TilingStruct>, \
                  "a tiling struct is copied as bytes and read by offset")

// Declares a local copy `name` of the tiling data at `tilingGM`.
#define GET_TILING_DATA_WITH_STRUCT(TilingStruct, name, tilingGM) \
    TilingStruct name;                                            \
    std::memcpy(&name, tilingGM, sizeof(TilingStruct))
#define GET_TILING_DATA(name, tilingGM) GET_TILING_DATA_WITH_STRUCT(AscendcDefaultTiling, name, tilingGM)

using namespace AscendC::veneer; // kernels write Hccl, AIV, GM_ADDR ... unqualified

#endif
