// SPDX-License-Identifier: Apache-2.0
#ifndef TILEWIRE_ASCENDC_KERNEL_BLOCK_H
#define TILEWIRE_ASCENDC_KERNEL_BLOCK_H
// What a kernel asks about the core it runs on: core type, block number, contexts, SyncAll. A core is a
// thread, and all of this is thread-local; launch.h sets it. A thread that no launcher started is the
// only block of type AIV, has no context, and its SyncAll returns at once.
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "hccl_types.h"

namespace AscendC
{
namespace detail
{

// A barrier whose members may leave for good. Broken by the first deadline that passes; from then on it
// stops nobody, so that every block gets to its end and the launch can report the failure.
class BlockBarrier
{
  public:
    explicit BlockBarrier(std::uint32_t members, std::chrono::milliseconds timeout)
        : members_(members), timeout_(timeout)
    {
    }

    void Arrive()
    {
        std::unique_lock<std::mutex> lock(mutex_);
        const std::uint64_t generation = generation_;
        arrived_++;
        OpenIfComplete();
        const auto opened = [&] { return broken_ || generation_ != generation; };
        if (!opened_.wait_until(lock, std::chrono::steady_clock::now() + timeout_, opened)) {
            broken_ = true;
            opened_.notify_all();
        }
    }

    void Leave()
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        members_--;
        OpenIfComplete();
    }

    bool Broken()
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        return broken_;
    }

  private:
    void OpenIfComplete()
    {
        if (arrived_ > 0 && arrived_ >= members_) {
            arrived_ = 0;
            generation_++;
            opened_.notify_all();
        }
    }

    std::mutex mutex_;
    std::condition_variable opened_;
    std::uint32_t members_;
    std::uint32_t arrived_ = 0;
    std::uint64_t generation_ = 0;
    bool broken_ = false;
    const std::chrono::milliseconds timeout_;
};

struct Block {
    std::uint32_t index = 0;
    std::uint32_t count = 1;
    tw_hccl_context_t *const *contexts = nullptr;
    std::uint32_t contextCount = 0;
    BlockBarrier *aivBarrier = nullptr;
    BlockBarrier *allBarrier = nullptr;
};
inline thread_local Block g_block;

} // namespace detail

inline namespace veneer
{

constexpr std::int32_t AIC = 1;
constexpr std::int32_t AIV = 2;
inline thread_local std::int32_t g_coreType = AIV;

// The number of this core among those of its type, and how many there are.
inline std::int64_t GetBlockIdx()
{
    return detail::g_block.index;
}
inline std::int64_t GetBlockNum()
{
    return detail::g_block.count;
}

// The context of group `index` of this launch, null if there is no such group.
template <std::uint32_t index> GM_ADDR GetHcclContext()
{
    const detail::Block &block = detail::g_block;
    return index < block.contextCount ? reinterpret_cast<GM_ADDR>(block.contexts[index]) : nullptr;
}

// Returns when every AIV block of the launch (false: every block) that has not ended has called it.
template <bool isAIVOnly = true> void SyncAll()
{
    detail::BlockBarrier *barrier = isAIVOnly ? detail::g_block.aivBarrier : detail::g_block.allBarrier;
    if (barrier != nullptr && !(isAIVOnly && g_coreType == AIC)) {
        barrier->Arrive();
    }
}

} // namespace veneer
} // namespace AscendC

#endif
