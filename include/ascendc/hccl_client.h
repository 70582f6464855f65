// SPDX-License-Identifier: Apache-2.0
#ifndef TILEWIRE_ASCENDC_HCCL_CLIENT_H
#define TILEWIRE_ASCENDC_HCCL_CLIENT_H
// The class a kernel talks to: one object a core, a thin cover of tw_hccl_t. The engine's object is made
// by InitV2 (or Init) for the calling core and freed by the destructor. Until then handles are -1,
// numbers are what the API says for "not initialised", and Commit and Finalize do nothing.
#include <type_traits>

#include "hccl_tiling.h"
#include "kernel_block.h"

namespace AscendC
{
inline namespace veneer
{

template <HcclServerType serverType = HcclServerType::HCCL_SERVER_TYPE_AICPU, const auto &config = DEFAULT_CFG>
class Hccl
{
    static_assert(serverType < HcclServerType::HCCL_SERVER_TYPE_END, "no such server");
    static_assert(std::is_same_v<decltype(config), const HcclServerConfig &>, "config is an HcclServerConfig");

  public:
    Hccl() = default;
    ~Hccl()
    {
        tw_hccl_destroy(hccl_);
    }
    Hccl(const Hccl &) = delete;
    Hccl &operator=(const Hccl &) = delete;

    void InitV2(GM_ADDR context, const void *initTiling)
    {
        if (Create()) {
            (void)tw_hccl_init_v2(hccl_, Context(context), initTiling);
        }
    }
    std::int32_t SetCcTilingV2(std::uint64_t offset)
    {
        return hccl_ != nullptr ? tw_hccl_set_cc_tiling_v2(hccl_, offset) : HCCL_FAILED;
    }

    // The older pair.
    void Init(GM_ADDR context, const void *initTiling = nullptr)
    {
        if (Create()) {
            (void)tw_hccl_init(hccl_, Context(context), initTiling);
        }
    }
    std::int32_t SetCcTiling(const void *ccTiling)
    {
        return hccl_ != nullptr ? tw_hccl_set_cc_tiling(hccl_, ccTiling) : HCCL_FAILED;
    }

    template <bool commit = false>
    HcclHandle AllReduce(GM_ADDR sendBuf, GM_ADDR recvBuf, std::uint64_t count, HcclDataType dataType, HcclReduceOp op,
                         std::uint8_t repeat = 1)
    {
        return hccl_ != nullptr
                   ? tw_hccl_all_reduce(hccl_, sendBuf, recvBuf, count, dataType, op, repeat, Flags<commit>())
                   : INVALID_HANDLE_ID;
    }

    template <bool commit = false>
    HcclHandle AllGather(GM_ADDR sendBuf, GM_ADDR recvBuf, std::uint64_t sendCount, HcclDataType dataType,
                         std::uint64_t strideCount, std::uint8_t repeat = 1)
    {
        return hccl_ != nullptr ? tw_hccl_all_gather(hccl_, sendBuf, recvBuf, sendCount, dataType, strideCount, repeat,
                                                     Flags<commit>())
                                : INVALID_HANDLE_ID;
    }

    template <bool commit = false>
    HcclHandle ReduceScatter(GM_ADDR sendBuf, GM_ADDR recvBuf, std::uint64_t recvCount, HcclDataType dataType,
                             HcclReduceOp op, std::uint64_t strideCount, std::uint8_t repeat = 1)
    {
        return hccl_ != nullptr ? tw_hccl_reduce_scatter(hccl_, sendBuf, recvBuf, recvCount, dataType, op, strideCount,
                                                         repeat, Flags<commit>())
                                : INVALID_HANDLE_ID;
    }

    template <bool commit = false>
    HcclHandle AlltoAll(GM_ADDR sendBuf, GM_ADDR recvBuf, std::uint64_t dataCount, HcclDataType dataType,
                        std::uint64_t strideCount = 0, std::uint8_t repeat = 1)
    {
        return hccl_ != nullptr ? tw_hccl_alltoall(hccl_, sendBuf, recvBuf, dataCount, dataType, strideCount, repeat,
                                                   Flags<commit>())
                                : INVALID_HANDLE_ID;
    }

    // The four arrays hold one uint64_t a rank.
    template <bool commit = false>
    HcclHandle AlltoAllV(GM_ADDR sendBuf, const void *sendCounts, const void *sdispls, HcclDataType sendType,
                         GM_ADDR recvBuf, const void *recvCounts, const void *rdispls, HcclDataType recvType,
                         std::uint8_t repeat = 1)
    {
        return hccl_ != nullptr
                   ? tw_hccl_alltoallv(hccl_, sendBuf, Counts(sendCounts), Counts(sdispls), sendType, recvBuf,
                                       Counts(recvCounts), Counts(rdispls), recvType, repeat, Flags<commit>())
                   : INVALID_HANDLE_ID;
    }

    // `batchWriteInfo` is an array of BatchWriteItem, or of tw_hccl_batch_item_a3_t if the communicator has profile a3.
    // Committed at once whatever `commit` says.
    template <bool commit = false>
    HcclHandle BatchWrite(GM_ADDR batchWriteInfo, std::uint32_t itemNum, std::uint16_t queueID = 0)
    {
        return hccl_ != nullptr ? tw_hccl_batch_write(hccl_, batchWriteInfo, itemNum, queueID) : INVALID_HANDLE_ID;
    }

    // Batches run in the order of their preparation, whatever their queue: the order is there already.
    template <ScopeType type = ScopeType::ALL> void QueueBarrier(std::uint16_t queueID)
    {
        (void)queueID;
    }

    void Commit(HcclHandle handleId)
    {
        if (hccl_ != nullptr) {
            tw_hccl_commit(hccl_, handleId);
        }
    }
    std::int32_t Wait(HcclHandle handleId)
    {
        return hccl_ != nullptr ? tw_hccl_wait(hccl_, handleId) : HCCL_FAILED;
    }
    std::int32_t Query(HcclHandle handleId)
    {
        return hccl_ != nullptr ? tw_hccl_query(hccl_, handleId) : HCCL_FAILED;
    }
    void InterHcclGroupSync(std::int8_t srcGroupID, HcclHandle srcHandleID)
    {
        if (hccl_ != nullptr) {
            (void)tw_hccl_inter_group_sync(hccl_, srcGroupID, srcHandleID);
        }
    }
    template <bool sync = true> void Finalize()
    {
        if (hccl_ != nullptr) {
            (void)tw_hccl_finalize(hccl_, sync);
        }
    }

    GM_ADDR GetWindowsInAddr(std::uint32_t rankId)
    {
        return hccl_ != nullptr ? static_cast<GM_ADDR>(tw_hccl_window_in(hccl_, rankId)) : nullptr;
    }
    GM_ADDR GetWindowsOutAddr(std::uint32_t rankId)
    {
        return hccl_ != nullptr ? static_cast<GM_ADDR>(tw_hccl_window_out(hccl_, rankId)) : nullptr;
    }
    std::uint32_t GetRankId()
    {
        return hccl_ != nullptr ? tw_hccl_rank_id(hccl_) : UINT32_MAX;
    }
    std::uint32_t GetRankDim()
    {
        return hccl_ != nullptr ? tw_hccl_rank_dim(hccl_) : UINT32_MAX;
    }
    std::uint16_t GetQueueNum()
    {
        return hccl_ != nullptr ? tw_hccl_queue_num(hccl_) : std::uint16_t{0};
    }

  private:
    template <bool commit> static constexpr std::uint32_t Flags()
    {
        return commit ? TW_HCCL_COMMIT : 0;
    }

    static tw_hccl_context_t *Context(GM_ADDR context)
    {
        return reinterpret_cast<tw_hccl_context_t *>(context);
    }
    static const std::uint64_t *Counts(const void *array)
    {
        return static_cast<const std::uint64_t *>(array);
    }

    static constexpr tw_hccl_core_type_t PosterType()
    {
        return config.type == CoreType::ON_AIV   ? TW_HCCL_CORE_AIV
               : config.type == CoreType::ON_AIC ? TW_HCCL_CORE_AIC
                                                 : TW_HCCL_CORE_DEFAULT;
    }

    bool Create()
    {
        if (hccl_ == nullptr) {
            const tw_hccl_core_t core = {g_coreType == AIC ? TW_HCCL_CORE_AIC : TW_HCCL_CORE_AIV,
                                         static_cast<std::uint32_t>(GetBlockIdx()), PosterType(),
                                         static_cast<std::uint32_t>(config.blockId)};
            if (tw_hccl_create(&core, &hccl_) != TW_OK) {
                hccl_ = nullptr;
            }
        }
        return hccl_ != nullptr;
    }

    tw_hccl_t *hccl_ = nullptr;
};

} // namespace veneer
} // namespace AscendC

#endif
