// SPDX-License-Identifier: Apache-2.0
#ifndef TILEWIRE_ASCENDC_LAUNCH_H
#define TILEWIRE_ASCENDC_LAUNCH_H
// Runs a kernel on this rank: one thread for each AIV and AIC block, all calling the same function. A
// launch owns its contexts, made before the first block starts and destroyed after the last has ended.
// Every rank of the communicators launches; the thread that calls Launch waits.
#include <chrono>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernel_operator.h"

namespace AscendC
{

struct LaunchConfig {
    std::uint32_t aivBlocks = 1;
    std::uint32_t aicBlocks = 0;
    std::vector<tw_comm_t *> comms = {};                              // GetHcclContext<i> is the context of comms[i]
    std::chrono::milliseconds syncTimeout = std::chrono::minutes(40); // longest stay in a SyncAll
};

// Why the last Launch of this thread failed; empty after a success.
inline std::string &LaunchError()
{
    static thread_local std::string text;
    return text;
}

namespace detail
{

class LaunchRun
{
  public:
    LaunchRun(const LaunchConfig &config, const std::function<void()> &kernel)
        : config_(config), kernel_(kernel), contexts_(config.comms.size()),
          aivBarrier_(config.aivBlocks, config.syncTimeout),
          allBarrier_(config.aivBlocks + config.aicBlocks, config.syncTimeout)
    {
    }

    int Run()
    {
        const auto groups = static_cast<std::uint32_t>(config_.comms.size());
        if (groups > 0 && tw_hccl_contexts_create(config_.comms.data(), groups, contexts_.data()) != TW_OK) {
            Fail(tw_last_error());
        } else {
            StartAll();
            for (std::thread &thread : threads_) {
                thread.join();
            }
            if (groups > 0) {
                tw_hccl_contexts_destroy(contexts_.data(), groups);
            }
        }
        if (aivBarrier_.Broken() || allBarrier_.Broken()) {
            Fail("a block waited in SyncAll longer than syncTimeout");
        }
        LaunchError() = error_;
        return error_.empty() ? 0 : -1;
    }

  private:
    void StartAll()
    {
        const std::uint32_t total = config_.aivBlocks + config_.aicBlocks;
        threads_.reserve(total);
        for (std::uint32_t i = 0; i < total; i++) {
            const bool isAiv = i < config_.aivBlocks;
            try {
                threads_.emplace_back([this, i, isAiv] { RunBlock(i, isAiv); });
            } catch (const std::exception &e) {
                Fail(std::string("cannot start a block: ") + e.what());
                Leave(isAiv);
            }
        }
    }

    void RunBlock(std::uint32_t i, bool isAiv)
    {
        g_coreType = isAiv ? AIV : AIC;
        g_block.index = isAiv ? i : i - config_.aivBlocks;
        g_block.count = isAiv ? config_.aivBlocks : config_.aicBlocks;
        g_block.contexts = contexts_.data();
        g_block.contextCount = static_cast<std::uint32_t>(contexts_.size());
        g_block.aivBarrier = &aivBarrier_;
        g_block.allBarrier = &allBarrier_;
        try {
            kernel_();
        } catch (const std::exception &e) {
            Fail(std::string("a block threw: ") + e.what());
        } catch (...) {
            Fail("a block threw something that is not a std::exception");
        }
        Leave(isAiv);
    }

    void Leave(bool isAiv)
    {
        if (isAiv) {
            aivBarrier_.Leave();
        }
        allBarrier_.Leave();
    }

    void Fail(const std::string &text)
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (error_.empty()) {
            error_ = text.empty() ? "unknown error" : text;
        }
    }

    const LaunchConfig &config_;
    const std::function<void()> &kernel_;
    std::vector<tw_hccl_context_t *> contexts_;
    BlockBarrier aivBarrier_;
    BlockBarrier allBarrier_;
    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::string error_;
};

} // namespace detail

// Calls kernel(args...) on every block and returns when all have ended: 0, or -1 with LaunchError() set
// when the contexts could not be made, a block threw, or a SyncAll ran out of time.
template <typename Kernel, typename... Args>
int Launch(const LaunchConfig &config, Kernel &&kernel, const Args &...args)
{
    const std::function<void()> call = [&] { kernel(args...); };
    return detail::LaunchRun(config, call).Run();
}

} // namespace AscendC

#endif
