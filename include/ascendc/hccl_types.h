// SPDX-License-Identifier: Apache-2.0
#ifndef TILEWIRE_ASCENDC_HCCL_TYPES_H
#define TILEWIRE_ASCENDC_HCCL_TYPES_H
// The types and enumerators of the kernel-side HCCL API, under the names kernels use. Everything a
// kernel may write unqualified lives in the inline namespace AscendC::veneer, which kernel_operator.h
// opens to the global namespace; AscendC::X names the same thing.
#include <cstdint>

#include <tilewire/hccl.h>

namespace AscendC
{
inline namespace veneer
{

using GM_ADDR = std::uint8_t *; // += moves bytes

using HcclHandle = std::int8_t;
constexpr HcclHandle INVALID_HANDLE_ID = -1;

constexpr std::int32_t HCCL_SUCCESS = TW_HCCL_SUCCESS;
constexpr std::int32_t HCCL_FAILED = TW_HCCL_FAILED;

enum HcclDataType : std::uint32_t {
    HCCL_DATA_TYPE_INT8 = TW_HCCL_INT8,
    HCCL_DATA_TYPE_INT16 = TW_HCCL_INT16,
    HCCL_DATA_TYPE_INT32 = TW_HCCL_INT32,
    HCCL_DATA_TYPE_FP16 = TW_HCCL_FP16,
    HCCL_DATA_TYPE_FP32 = TW_HCCL_FP32,
    HCCL_DATA_TYPE_INT64 = TW_HCCL_INT64,
    HCCL_DATA_TYPE_UINT64 = TW_HCCL_UINT64,
    HCCL_DATA_TYPE_UINT8 = TW_HCCL_UINT8,
    HCCL_DATA_TYPE_UINT16 = TW_HCCL_UINT16,
    HCCL_DATA_TYPE_UINT32 = TW_HCCL_UINT32,
    HCCL_DATA_TYPE_FP64 = TW_HCCL_FP64,
    HCCL_DATA_TYPE_BFP16 = TW_HCCL_BFP16,
    HCCL_DATA_TYPE_INT128 = TW_HCCL_INT128,
    HCCL_DATA_TYPE_HIF8 = TW_HCCL_HIF8,
    HCCL_DATA_TYPE_FP8E4M3 = TW_HCCL_FP8E4M3,
    HCCL_DATA_TYPE_FP8E5M2 = TW_HCCL_FP8E5M2,
    HCCL_DATA_TYPE_FP8E8M0 = TW_HCCL_FP8E8M0,
    HCCL_DATA_TYPE_RESERVED = TW_HCCL_TYPE_RESERVED,
};

enum HcclReduceOp : std::uint32_t {
    HCCL_REDUCE_SUM = TW_HCCL_SUM,
    HCCL_REDUCE_PROD = TW_HCCL_PROD,
    HCCL_REDUCE_MAX = TW_HCCL_MAX,
    HCCL_REDUCE_MIN = TW_HCCL_MIN,
    HCCL_REDUCE_RESERVED = TW_HCCL_REDUCE_RESERVED,
};

enum HcclCMDType : std::uint32_t {
    HCCL_CMD_INVALID = 0,
    HCCL_CMD_BROADCAST = 1,
    HCCL_CMD_ALLREDUCE = 2,
    HCCL_CMD_REDUCE = 3,
    HCCL_CMD_SEND = 4,
    HCCL_CMD_RECEIVE = 5,
    HCCL_CMD_ALLGATHER = 6,
    HCCL_CMD_REDUCE_SCATTER = 7,
    HCCL_CMD_ALLTOALLV = 8,
    HCCL_CMD_ALLTOALLVC = 9,
    HCCL_CMD_ALLTOALL = 10,
    HCCL_CMD_GATHER = 11,
    HCCL_CMD_SCATTER = 12,
    HCCL_CMD_BATCH_SEND_RECV = 13,
    HCCL_CMD_BATCH_PUT = 14,
    HCCL_CMD_BATCH_GET = 15,
    HCCL_CMD_ALLGATHER_V = 16,
    HCCL_CMD_REDUCE_SCATTER_V = 17,
    HCCL_CMD_BATCH_WRITE = 18,
    HCCL_CMD_HALF_ALLTOALLV = 20,
    HCCL_CMD_ALL = 21,
    HCCL_CMD_FINALIZE = 100,
    HCCL_CMD_INTER_GROUP_SYNC = 101,
    HCCL_CMD_INIT = 102,
    HCCL_CMD_BARRIER = 103,
};

static_assert(HCCL_CMD_ALLREDUCE == std::uint32_t{TW_HCCL_CMD_ALLREDUCE}, "enumerators must agree");
static_assert(HCCL_CMD_ALLGATHER == std::uint32_t{TW_HCCL_CMD_ALLGATHER}, "enumerators must agree");
static_assert(HCCL_CMD_REDUCE_SCATTER == std::uint32_t{TW_HCCL_CMD_REDUCE_SCATTER}, "enumerators must agree");
static_assert(HCCL_CMD_ALLTOALLV == std::uint32_t{TW_HCCL_CMD_ALLTOALLV}, "enumerators must agree");
static_assert(HCCL_CMD_ALLTOALL == std::uint32_t{TW_HCCL_CMD_ALLTOALL}, "enumerators must agree");
static_assert(HCCL_CMD_BATCH_WRITE == std::uint32_t{TW_HCCL_CMD_BATCH_WRITE}, "enumerators must agree");

// Both servers are the same engine here; only the name is kept.
enum HcclServerType : std::uint32_t {
    HCCL_SERVER_TYPE_AICPU = 0,
    HCCL_SERVER_TYPE_CCU = 5,
    HCCL_SERVER_TYPE_END = 6,
};

enum class CoreType : std::uint8_t { DEFAULT, ON_AIV, ON_AIC };
enum class ScopeType : std::uint8_t { ALL, QUEUE, BLOCK, INVALID_TYPE };

// Which core posts the tasks of an Hccl object. DEFAULT: block `blockId` of the type that prepares first.
struct HcclServerConfig {
    CoreType type;
    std::int64_t blockId;
};
inline constexpr HcclServerConfig DEFAULT_CFG = {CoreType::DEFAULT, 0};

// One entry of a BatchWrite: `count` elements from our memory into a window of another rank.
struct BatchWriteItem {
    std::uint64_t localBuf;
    std::uint64_t remoteBuf;
    std::uint64_t count;
    std::uint32_t dataType;
    std::uint32_t remoteRankId;
};
static_assert(sizeof(BatchWriteItem) == sizeof(tw_hccl_batch_item_t), "one layout");

} // namespace veneer
} // namespace AscendC

#endif
