// SPDX-License-Identifier: Apache-2.0
#ifndef TILEWIRE_ASCENDC_HCCL_TILING_H
#define TILEWIRE_ASCENDC_HCCL_TILING_H
// The host's part: the two opaque structs of a kernel's tiling data, and the builder that fills them.
// A tiling struct starts with its Mc2InitTiling and holds one Mc2CcTiling for each kind of collective.
#include <string>
#include <type_traits>

#include "hccl_types.h"

namespace AscendC
{
inline namespace veneer
{

struct Mc2InitTiling {
    tw_hccl_init_tiling_t data;
};
struct Mc2CcTiling {
    tw_hccl_cc_tiling_t data;
};
static_assert(sizeof(Mc2InitTiling) == 64 && sizeof(Mc2CcTiling) == 280, "sizes are part of the API");
static_assert(std::is_trivial_v<Mc2InitTiling> && std::is_trivial_v<Mc2CcTiling>, "copied as bytes");

// Every member returns 0 on success; the setters check nothing, GetTiling checks it all.
class Mc2CcTilingConfig
{
  public:
    Mc2CcTilingConfig(const std::string &groupName, std::uint32_t opType, const std::string &algConfig,
                      std::uint32_t reduceType = 0, std::uint8_t dstDataType = 0, std::uint8_t srcDataType = 0,
                      std::uint8_t commEngine = 0)
        : groupName_(groupName), algConfig_(algConfig)
    {
        args_.op_type = opType;
        args_.comm_engine = commEngine;
        (void)SetReduceType(reduceType, dstDataType, srcDataType);
    }

    std::uint32_t SetOpType(std::uint32_t opType)
    {
        return Set(args_.op_type, opType);
    }
    std::uint32_t SetGroupName(const std::string &groupName)
    {
        return Set(groupName_, groupName);
    }
    std::uint32_t SetAlgConfig(const std::string &algConfig)
    {
        return Set(algConfig_, algConfig);
    }
    std::uint32_t SetReduceType(std::uint32_t reduceType, std::uint8_t dstDataType = 0, std::uint8_t srcDataType = 0)
    {
        args_.reduce_type = reduceType;
        args_.dst_type = dstDataType;
        return Set(args_.src_type, srcDataType);
    }
    std::uint32_t SetStepSize(std::uint8_t stepSize)
    {
        return Set(args_.step_size, stepSize);
    }
    std::uint32_t SetSkipLocalRankCopy(std::uint8_t skip)
    {
        return Set(args_.skip_local_rank_copy, skip);
    }
    std::uint32_t SetSkipBufferWindowCopy(std::uint8_t skip)
    {
        return Set(args_.skip_buffer_window_copy, skip);
    }
    std::uint32_t SetDebugMode(std::uint8_t debugMode)
    {
        return Set(args_.debug_mode, debugMode);
    }
    std::uint32_t SetQueueNum(std::uint16_t queueNum)
    {
        return Set(args_.queue_num, queueNum);
    }
    std::uint32_t SetCommBlockNum(std::uint16_t blockNum)
    {
        return Set(args_.comm_block_num, blockNum);
    }
    std::uint32_t SetCommEngine(std::uint8_t commEngine)
    {
        return Set(args_.comm_engine, commEngine);
    }

    std::uint32_t GetTiling(Mc2InitTiling &tiling)
    {
        return Build(&tiling.data, nullptr);
    }
    std::uint32_t GetTiling(Mc2CcTiling &tiling)
    {
        return Build(nullptr, &tiling.data);
    }

  private:
    template <typename T> static std::uint32_t Set(T &field, const T &value)
    {
        field = value;
        return 0;
    }

    std::uint32_t Build(tw_hccl_init_tiling_t *init, tw_hccl_cc_tiling_t *cc)
    {
        args_.group_name = groupName_.c_str();
        args_.alg_config = algConfig_.c_str();
        return tw_hccl_tiling(&args_, init, cc) == TW_OK ? 0 : 1;
    }

    std::string groupName_;
    std::string algConfig_;
    tw_hccl_tiling_args_t args_ = TW_HCCL_TILING_ARGS_INIT;
};

} // namespace veneer
} // namespace AscendC

#endif
