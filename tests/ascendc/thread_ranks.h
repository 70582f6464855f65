// SPDX-License-Identifier: Apache-2.0
#ifndef TILEWIRE_TESTS_THREAD_RANKS_H
#define TILEWIRE_TESTS_THREAD_RANKS_H
// Ranks for the C++ tests: as threads of this process, which meet through an allgather callback, or as
// processes under a launcher. Also CHECK, which notes a failure and goes on.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <tilewire/tilewire.h>

namespace test
{

inline std::atomic<int> g_failures{0};

#define CHECK(cond)                                                                     \
    do {                                                                                \
        if (!(cond)) {                                                                  \
            std::fprintf(stderr, "# %s:%d: not true: %s\n", __FILE__, __LINE__, #cond); \
            test::g_failures++;                                                         \
        }                                                                               \
    } while (0)

// An allgather between threads. All ranks pass the same number of bytes.
class Exchange
{
  public:
    explicit Exchange(int size) : size_(size) {}

    int Gather(int rank, const void *in, void *out, size_t bytes)
    {
        std::unique_lock<std::mutex> lock(mutex_);
        const unsigned round = round_;
        incoming_.resize(static_cast<size_t>(size_) * bytes);
        std::memcpy(incoming_.data() + static_cast<size_t>(rank) * bytes, in, bytes);
        if (++arrived_ == size_) {
            arrived_ = 0;
            round_++;
            result_ = incoming_;
            changed_.notify_all();
        } else if (!changed_.wait_for(lock, std::chrono::seconds(30), [&] { return round_ != round; })) {
            return -1;
        }
        std::memcpy(out, result_.data(), static_cast<size_t>(size_) * bytes);
        return 0;
    }

  private:
    const int size_;
    std::mutex mutex_;
    std::condition_variable changed_;
    int arrived_ = 0;
    unsigned round_ = 0;
    std::vector<char> incoming_;
    std::vector<char> result_;
};

struct Seat {
    Exchange *exchange;
    int rank;
};

inline int GatherCallback(void *user, const void *in, void *out, size_t bytes)
{
    const Seat *seat = static_cast<const Seat *>(user);
    return seat->exchange->Gather(seat->rank, in, out, bytes);
}

inline tw_comm_t *MakeComm(const tw_comm_args_t &args)
{
    tw_comm_t *comm = nullptr;
    if (tw_comm_create(&args, &comm) != TW_OK) {
        std::fprintf(stderr, "# rank %d: %s\n", args.rank, tw_last_error());
        g_failures++;
        return nullptr;
    }
    return comm;
}

using Body = std::function<void(tw_comm_t *comm)>;

inline void ThreadRank(Exchange *exchange, int rank, int size, const char *name, const Body &body)
{
    Seat seat = {exchange, rank};
    tw_comm_args_t args = TW_COMM_ARGS_INIT;
    args.rank = rank;
    args.size = size;
    args.name = name;
    args.allgather = GatherCallback;
    args.allgather_user = &seat;
    args.transport = TW_TRANSPORT_THREADS;
    args.timeout_ns = args.enter_timeout_ns = 20ull * 1000 * 1000 * 1000;
    tw_comm_t *comm = MakeComm(args);
    if (comm != nullptr) {
        body(comm);
        tw_comm_destroy(comm);
    }
}

// Runs body on `size` ranks that are threads.
inline void RunThreads(int size, const Body &body)
{
    Exchange exchange(size);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; rank++) {
        threads.emplace_back([&, rank] { ThreadRank(&exchange, rank, size, "veneer", body); });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
}

// Runs body on the rank that a launcher made of this process.
inline void RunLaunched(const Body &body)
{
    tw_comm_args_t args = TW_COMM_ARGS_INIT;
    args.address = "env://";
    args.transport = TW_TRANSPORT_SHM;
    tw_comm_t *comm = MakeComm(args);
    if (comm != nullptr) {
        body(comm);
        tw_comm_destroy(comm);
    }
}

} // namespace test

#endif
