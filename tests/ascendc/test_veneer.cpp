// SPDX-License-Identifier: Apache-2.0
// The AscendC veneer and its launcher: names, blocks, SyncAll, and what misuse from a kernel gives.
#include <atomic>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include <ascendc/launch.h>

#include "harness/test.h"

namespace
{

struct Tiling {
    Mc2InitTiling init;
    Mc2CcTiling allReduce;
    Mc2CcTiling allGather;
    Mc2CcTiling alltoAll;
    Mc2CcTiling alltoAllV;
    Mc2CcTiling batchWrite;
};

constexpr HcclServerConfig kOnAiv = {CoreType::ON_AIV, 0};
constexpr HcclServerConfig kOnAic1 = {CoreType::ON_AIC, 1};

Tiling MakeTiling()
{
    Tiling tiling;
    const struct {
        Mc2CcTiling *out;
        HcclCMDType type;
    } rows[] = {
        {&tiling.allReduce, HCCL_CMD_ALLREDUCE},    {&tiling.allGather, HCCL_CMD_ALLGATHER},
        {&tiling.alltoAll, HCCL_CMD_ALLTOALL},      {&tiling.alltoAllV, HCCL_CMD_ALLTOALLV},
        {&tiling.batchWrite, HCCL_CMD_BATCH_WRITE},
    };
    for (const auto &row : rows) {
        Mc2CcTilingConfig config("veneer", row.type, "");
        CHECK_EQ(config.GetTiling(tiling.init), 0);
        CHECK_EQ(config.GetTiling(*row.out), 0);
    }
    return tiling;
}

GM_ADDR Bytes(void *p)
{
    return static_cast<GM_ADDR>(p);
}
GM_ADDR Bytes(std::vector<std::int32_t> &v)
{
    return Bytes(v.data());
}

template <typename Object> void InitForAllReduce(Object &hccl, const Tiling &tiling)
{
    hccl.InitV2(AscendC::GetHcclContext<0>(), &tiling);
    CHECK_EQ(hccl.SetCcTilingV2(offsetof(Tiling, allReduce)), HCCL_SUCCESS);
}

template <bool commit = false, typename Object>
HcclHandle AllReduceInts(Object &hccl, std::vector<std::int32_t> &data, std::uint8_t repeat = 1)
{
    return hccl.template AllReduce<commit>(Bytes(data), Bytes(data), data.size() / repeat, HCCL_DATA_TYPE_INT32,
                                           HCCL_REDUCE_SUM, repeat);
}

template <typename Kernel> void LaunchOk(const AscendC::LaunchConfig &config, Kernel kernel)
{
    const int result = AscendC::Launch(config, kernel);
    CHECK_STR(AscendC::LaunchError().c_str(), "");
    CHECK_EQ(result, 0);
}

// A vector whose sum over `size` ranks is ExpectSum.
std::vector<std::int32_t> Contribution(tw_comm_t *comm, std::size_t n)
{
    std::vector<std::int32_t> data(n);
    std::iota(data.begin(), data.end(), 1000 * tw_comm_rank(comm));
    return data;
}

void ExpectSum(tw_comm_t *comm, const std::vector<std::int32_t> &data)
{
    const int size = tw_comm_size(comm);
    for (std::size_t i = 0; i < data.size(); i++) {
        CHECK_EQ(data[i], size * static_cast<int>(i) + 1000 * size * (size - 1) / 2);
    }
}

} // namespace

// ---- Without ranks --------------------------------------------------------------------------------

TEST(names)
{
    static_assert(std::is_same_v<AscendC::Hccl<>, Hccl<>>, "one class, two names");
    static_assert(std::is_same_v<AscendC::HcclDataType, HcclDataType>, "one enum, two names");
    static_assert(std::is_same_v<HcclHandle, std::int8_t> && std::is_same_v<GM_ADDR, std::uint8_t *>, "types");
    static_assert(!std::is_copy_constructible_v<Hccl<>>, "an object belongs to its core");
    static_assert(AscendC::HCCL_DATA_TYPE_BFP16 == 11 && HcclReduceOp::HCCL_REDUCE_MIN == 3, "values");
    Hccl a;
    Hccl<HcclServerType::HCCL_SERVER_TYPE_AICPU, kOnAiv> b;
    CHECK_EQ(a.GetRankId(), UINT32_MAX);
    CHECK_EQ(b.GetRankDim(), UINT32_MAX);
}

TEST(before_init)
{
    std::vector<std::int32_t> data(4);
    Hccl hccl;
    CHECK_EQ(hccl.SetCcTilingV2(64), HCCL_FAILED);
    CHECK_EQ(AllReduceInts<true>(hccl, data), INVALID_HANDLE_ID);
    CHECK_EQ(hccl.AllGather(Bytes(data), Bytes(data), 1, HCCL_DATA_TYPE_INT32, 0), INVALID_HANDLE_ID);
    CHECK_EQ(hccl.AlltoAll(Bytes(data), Bytes(data), 1, HCCL_DATA_TYPE_INT32), INVALID_HANDLE_ID);
    CHECK_EQ(hccl.Wait(0), HCCL_FAILED);
    CHECK_EQ(hccl.Query(0), HCCL_FAILED);
    CHECK(hccl.GetWindowsInAddr(0) == nullptr && hccl.GetWindowsOutAddr(0) == nullptr);
    hccl.Commit(0);
    hccl.Finalize();
}

TEST(null_context)
{
    const Tiling tiling = MakeTiling();
    CHECK(AscendC::GetHcclContext<0>() == nullptr);
    Hccl hccl;
    hccl.InitV2(nullptr, &tiling);
    CHECK_EQ(hccl.SetCcTilingV2(offsetof(Tiling, allReduce)), HCCL_FAILED);
    std::vector<std::int32_t> data(4);
    CHECK_EQ(AllReduceInts(hccl, data), INVALID_HANDLE_ID);
}

TEST(tiling_config)
{
    Mc2InitTiling init;
    Mc2CcTiling cc;
    Mc2CcTilingConfig config(std::string(127, 'g'), HCCL_CMD_ALLREDUCE, std::string(127, 'a'), HCCL_REDUCE_MAX);
    CHECK_EQ(config.GetTiling(init), 0);
    CHECK_EQ(config.GetTiling(cc), 0);
    CHECK_EQ(config.SetGroupName(std::string(128, 'g')), 0);
    CHECK(config.GetTiling(init) != 0 && config.GetTiling(cc) != 0);
    CHECK_EQ(config.SetGroupName("g"), 0);
    CHECK_EQ(config.SetAlgConfig(std::string(128, 'a')), 0);
    CHECK(config.GetTiling(cc) != 0);
    CHECK_EQ(config.SetAlgConfig("AllReduce=level0:doublering"), 0);
    CHECK_EQ(config.SetSkipLocalRankCopy(2), 0);
    CHECK(config.GetTiling(cc) != 0);
    CHECK_EQ(config.SetSkipLocalRankCopy(1), 0);
    CHECK_EQ(config.SetSkipBufferWindowCopy(2), 0);
    CHECK_EQ(config.GetTiling(cc), 0);
}

// ---- The launcher ---------------------------------------------------------------------------------

TEST(blocks)
{
    std::atomic<unsigned> aiv{0}, aic{0};
    LaunchOk({3, 2, {}}, [&] {
        CHECK_EQ(GetBlockNum(), ASCEND_IS_AIV ? 3 : 2);
        CHECK(AscendC::GetHcclContext<0>() == nullptr);
        (AscendC::g_coreType == AIV ? aiv : aic) |= 1u << AscendC::GetBlockIdx();
    });
    CHECK_EQ(aiv, 7);
    CHECK_EQ(aic, 3);
    CHECK_EQ(AscendC::g_coreType, AIV);
    CHECK_EQ(GetBlockIdx(), 0);
}

TEST(exception)
{
    CHECK(AscendC::Launch({2, 0, {}}, [] {
              if (GetBlockIdx() == 1) {
                  throw std::runtime_error("tile 7 is bad");
              }
              SyncAll();
          }) != 0);
    CHECK_CONTAINS(AscendC::LaunchError().c_str(), "tile 7 is bad");
    CHECK(AscendC::Launch({1, 0, {}}, [] { throw 5; }) != 0);
    LaunchOk({1, 0, {}}, [] {});
}

TEST(sync_all_phases)
{
    constexpr unsigned n = 4, phases = 50;
    std::atomic<unsigned> count{0};
    LaunchOk({n, 0, {}}, [&] {
        for (unsigned phase = 1; phase <= phases; phase++) {
            count++;
            SyncAll<true>();
            CHECK_EQ(count.load(), n * phase);
            SyncAll<true>();
        }
    });
}

TEST(sync_all_core_types)
{
    std::atomic<unsigned> aiv{0}, all{0};
    LaunchOk({2, 2, {}}, [&] {
        if ASCEND_IS_AIV {
            aiv++;
        }
        SyncAll<true>(); // an AIC block passes through
        if ASCEND_IS_AIV {
            CHECK_EQ(aiv.load(), 2);
        }
        all++;
        SyncAll<false>();
        CHECK_EQ(all.load(), 4);
    });
}

TEST(sync_all_early_return)
{
    std::atomic<unsigned> through{0};
    LaunchOk({4, 1, {}}, [&] {
        if (ASCEND_IS_AIC || GetBlockIdx() == 2) {
            return;
        }
        SyncAll<true>();
        if (GetBlockIdx() == 0) {
            return;
        }
        SyncAll<false>();
        through++;
    });
    CHECK_EQ(through, 2);
}

TEST(sync_all_deadline)
{
    std::atomic<bool> released{false};
    AscendC::LaunchConfig config;
    config.aivBlocks = 2;
    config.syncTimeout = std::chrono::milliseconds(20);
    const int result = AscendC::Launch(config, [&] {
        if (GetBlockIdx() == 1) {
            SyncAll();
            released = true;
        }
        while (!released) {
            std::this_thread::yield();
        }
        SyncAll(); // broken: stops nobody
    });
    CHECK(result != 0);
    CHECK_CONTAINS(AscendC::LaunchError().c_str(), "SyncAll");
}

TEST(sync_all_outside)
{
    SyncAll();
    SyncAll<false>();
}

TEST_RANKS(bad_group, "1")(tw_comm_t *comm)
{
    CHECK(AscendC::Launch({1, 0, {comm, nullptr}}, [] {}) != 0);
    CHECK(!AscendC::LaunchError().empty());
    LaunchOk({1, 0, {comm}}, [] {});
}

// ---- Who posts ------------------------------------------------------------------------------------

TEST_RANKS(several_aiv_blocks, "1,3")(tw_comm_t *comm)
{
    const Tiling tiling = MakeTiling();
    std::vector<std::int32_t> data = Contribution(comm, 60);
    LaunchOk({4, 0, {comm}}, [&] {
        Hccl hccl;
        InitForAllReduce(hccl, tiling);
        CHECK_EQ(hccl.GetRankId(), tw_comm_rank(comm));
        CHECK_EQ(hccl.GetRankDim(), tw_comm_size(comm));
        const HcclHandle handle = AllReduceInts<true>(hccl, data, 3);
        CHECK_EQ(handle, 0);
        for (int i = 0; i < 3; i++) {
            CHECK_EQ(hccl.Wait(handle), 0);
        }
        SyncAll();
        CHECK_EQ(hccl.Query(handle), 3);
        SyncAll();
        hccl.Finalize();
    });
    ExpectSum(comm, data);
}

template <typename Object> void BothTypesCall(tw_comm_t *comm)
{
    const Tiling tiling = MakeTiling();
    std::vector<std::int32_t> data = Contribution(comm, 40);
    LaunchOk({2, 2, {comm}}, [&] {
        Object hccl;
        InitForAllReduce(hccl, tiling);
        const HcclHandle handle = AllReduceInts<true>(hccl, data);
        CHECK_EQ(handle, 0);
        CHECK_EQ(hccl.Wait(handle), 0);
        CHECK_EQ(hccl.Wait(handle), HCCL_FAILED); // one round only
        SyncAll<false>();
        hccl.Finalize();
    });
    ExpectSum(comm, data);
}

TEST_RANKS(config_on_aiv, "2")(tw_comm_t *comm)
{
    BothTypesCall<Hccl<HCCL_SERVER_TYPE_AICPU, kOnAiv>>(comm);
}

TEST_RANKS(config_on_aic_block_1, "2")(tw_comm_t *comm)
{
    BothTypesCall<Hccl<HCCL_SERVER_TYPE_AICPU, kOnAic1>>(comm);
}

TEST_RANKS(no_config_first_type_owns, "2")(tw_comm_t *comm)
{
    const Tiling tiling = MakeTiling();
    std::vector<std::int32_t> data = Contribution(comm, 8), other(8);
    LaunchOk({1, 1, {comm}}, [&] {
        Hccl hccl;
        InitForAllReduce(hccl, tiling);
        HcclHandle handle = INVALID_HANDLE_ID;
        if ASCEND_IS_AIV {
            handle = AllReduceInts<true>(hccl, data);
            CHECK_EQ(handle, 0);
        }
        SyncAll<false>();
        if ASCEND_IS_AIC {
            CHECK_EQ(AllReduceInts<true>(hccl, other), INVALID_HANDLE_ID);
        } else {
            CHECK_EQ(hccl.Wait(handle), 0);
        }
        SyncAll<false>();
        hccl.Finalize();
    });
    ExpectSum(comm, data);
}

// ---- The life of a task ---------------------------------------------------------------------------

TEST_RANKS(wait_without_commit, "2")(tw_comm_t *comm)
{
    const Tiling tiling = MakeTiling();
    std::vector<std::int32_t> data = Contribution(comm, 10);
    LaunchOk({1, 0, {comm}}, [&] {
        Hccl hccl;
        InitForAllReduce(hccl, tiling);
        const HcclHandle handle = AllReduceInts(hccl, data, 2);
        CHECK_EQ(handle, 0);
        CHECK_EQ(hccl.Wait(handle), HCCL_FAILED);
        hccl.Commit(handle);
        CHECK_EQ(hccl.Wait(handle), 0);
        CHECK_EQ(hccl.Wait(handle), HCCL_FAILED);
        hccl.Commit(handle);
        hccl.Commit(handle);                      // one too many, ignored
        hccl.Commit(static_cast<HcclHandle>(62)); // no such task, ignored
        CHECK_EQ(hccl.Wait(handle), 0);
        CHECK_EQ(hccl.Query(handle), 2);
        CHECK_EQ(hccl.Wait(static_cast<HcclHandle>(1)), HCCL_FAILED);
        CHECK_EQ(hccl.Query(static_cast<HcclHandle>(-1)), HCCL_FAILED);
        hccl.Finalize();
    });
    ExpectSum(comm, data);
}

TEST_RANKS(no_cc_tiling, "1")(tw_comm_t *comm)
{
    const Tiling tiling = MakeTiling();
    std::vector<std::int32_t> data(4);
    LaunchOk({1, 0, {comm}}, [&] {
        Hccl hccl;
        hccl.InitV2(AscendC::GetHcclContext<0>(), &tiling);
        CHECK_EQ(AllReduceInts(hccl, data), INVALID_HANDLE_ID);
        CHECK_EQ(hccl.SetCcTilingV2(offsetof(Tiling, allGather)), HCCL_SUCCESS);
        CHECK_EQ(AllReduceInts(hccl, data), INVALID_HANDLE_ID);
        CHECK_EQ(hccl.SetCcTilingV2(offsetof(Tiling, allReduce)), HCCL_SUCCESS);
        CHECK_EQ(AllReduceInts(hccl, data), 0);
        hccl.Finalize();
    });
}

TEST_RANKS(handles_run_out, "2")(tw_comm_t *comm)
{
    const Tiling tiling = MakeTiling();
    std::vector<std::vector<std::int32_t>> data(63, Contribution(comm, 5));
    std::vector<std::int32_t> extra(5);
    LaunchOk({1, 0, {comm}}, [&] {
        Hccl hccl;
        InitForAllReduce(hccl, tiling);
        for (int i = 0; i < 63; i++) {
            CHECK_EQ(AllReduceInts<true>(hccl, data[static_cast<std::size_t>(i)]), i);
        }
        CHECK_EQ(AllReduceInts<true>(hccl, extra), INVALID_HANDLE_ID);
        for (int i = 0; i < 63; i++) {
            CHECK_EQ(hccl.Wait(static_cast<HcclHandle>(i)), 0);
        }
        hccl.Finalize();
    });
    for (const auto &one : data) {
        ExpectSum(comm, one);
    }
}

TEST_RANKS(launch_twice, "2")(tw_comm_t *comm)
{
    const Tiling tiling = MakeTiling();
    for (int launch = 0; launch < 2; launch++) {
        std::vector<std::int32_t> data = Contribution(comm, 9);
        LaunchOk({2, 0, {comm}}, [&] {
            Hccl hccl;
            InitForAllReduce(hccl, tiling);
            CHECK_EQ(hccl.Wait(AllReduceInts<true>(hccl, data)), 0);
            SyncAll();
            hccl.Finalize();
        });
        ExpectSum(comm, data);
    }
    CHECK_OK(tw_comm_barrier(comm));
}

TEST_RANKS(old_init_pair, "2")(tw_comm_t *comm)
{
    std::vector<std::int32_t> data = Contribution(comm, 9);
    LaunchOk({1, 0, {comm}}, [&] {
        Hccl hccl;
        hccl.Init(AscendC::GetHcclContext<0>());
        CHECK_EQ(hccl.Wait(AllReduceInts<true>(hccl, data)), 0);
        hccl.Finalize();
    });
    ExpectSum(comm, data);
}

// ---- The other collectives, through the veneer ----------------------------------------------------

TEST_RANKS(gather_and_exchange, "3")(tw_comm_t *comm)
{
    const Tiling tiling = MakeTiling();
    const int rank = tw_comm_rank(comm), size = tw_comm_size(comm);
    const auto n = static_cast<std::size_t>(size);
    std::vector<std::int32_t> own = {rank, -rank}, gathered(2 * n), send(n), recv(n), ragged(n * n), received(n * n);
    std::vector<std::uint64_t> sendCounts(n), recvCounts(n), sendAt(n), recvAt(n);
    for (std::size_t q = 0; q < n; q++) {
        send[q] = 10 * rank + static_cast<int>(q);
        sendCounts[q] = q; // rank q gets q elements from everybody
        sendAt[q] = recvAt[q] = q * n;
        recvCounts[q] = static_cast<std::uint64_t>(rank);
        ragged[q * n] = ragged[q * n + 1] = 100 * rank + static_cast<int>(q);
    }
    LaunchOk({2, 0, {comm}}, [&] {
        Hccl hccl;
        hccl.InitV2(AscendC::GetHcclContext<0>(), &tiling);
        CHECK_EQ(hccl.SetCcTilingV2(offsetof(Tiling, allGather)), HCCL_SUCCESS);
        CHECK_EQ(hccl.SetCcTilingV2(offsetof(Tiling, alltoAll)), HCCL_SUCCESS);
        CHECK_EQ(hccl.SetCcTilingV2(offsetof(Tiling, alltoAllV)), HCCL_SUCCESS);
        const auto type = HcclDataType::HCCL_DATA_TYPE_INT32;
        const HcclHandle a = hccl.AllGather<true>(Bytes(own), Bytes(gathered), 1, type, 2, 2);
        const HcclHandle b = hccl.AlltoAll<true>(Bytes(send), Bytes(recv), 1, type);
        const HcclHandle c = hccl.AlltoAllV<true>(Bytes(ragged), sendCounts.data(), sendAt.data(), type,
                                                  Bytes(received), recvCounts.data(), recvAt.data(), type);
        CHECK(a == 0 && b == 1 && c == 2);
        CHECK(hccl.Wait(a) == 0 && hccl.Wait(a) == 0 && hccl.Wait(b) == 0 && hccl.Wait(c) == 0);
        SyncAll();
        hccl.Finalize();
    });
    for (int q = 0; q < size; q++) {
        const auto at = static_cast<std::size_t>(q);
        CHECK_EQ(gathered[2 * at], q);
        CHECK_EQ(gathered[2 * at + 1], -q);
        CHECK_EQ(recv[at], 10 * q + rank);
        CHECK_EQ(received[at * n], rank > 0 ? 100 * q + rank : 0);
        CHECK_EQ(received[at * n + 1], rank > 1 ? 100 * q + rank : 0);
    }
}

TEST_RANKS(batch_write, "2")(tw_comm_t *comm)
{
    const Tiling tiling = MakeTiling();
    const int rank = tw_comm_rank(comm);
    std::vector<std::int32_t> mine = {rank + 50, rank + 60}, ready(1);
    LaunchOk({1, 0, {comm}}, [&] {
        Hccl hccl;
        InitForAllReduce(hccl, tiling);
        CHECK_EQ(hccl.SetCcTilingV2(offsetof(Tiling, batchWrite)), HCCL_SUCCESS);
        const auto peer = static_cast<std::uint32_t>(1 - rank);
        CHECK(hccl.GetWindowsInAddr(2) == nullptr);
        BatchWriteItem item = {reinterpret_cast<std::uint64_t>(mine.data()),
                               reinterpret_cast<std::uint64_t>(hccl.GetWindowsInAddr(peer) + 64), 2,
                               HCCL_DATA_TYPE_INT32, peer};
        const HcclHandle handle = hccl.BatchWrite(Bytes(&item), 1);
        CHECK(handle >= 0);
        hccl.QueueBarrier(0);
        CHECK_EQ(hccl.Wait(handle), 0);
        CHECK_EQ(hccl.Wait(AllReduceInts<true>(hccl, ready)), 0);
        std::int32_t got[2];
        std::memcpy(got, hccl.GetWindowsInAddr(static_cast<std::uint32_t>(rank)) + 64, sizeof got);
        CHECK_EQ(got[0], 51 - rank);
        CHECK_EQ(got[1], 61 - rank);
        hccl.Finalize();
    });
}

TEST_RANKS(two_groups, "2")(tw_comm_t *comm)
{
    const Tiling tiling = MakeTiling();
    tw_comm_t *second = nullptr;
    CHECK_OK(tw_comm_split(comm, 0, 0, nullptr, &second));
    std::vector<std::int32_t> data = Contribution(comm, 6), other = Contribution(comm, 6);
    LaunchOk({1, 0, {comm, second}}, [&] {
        Hccl a, b;
        InitForAllReduce(a, tiling);
        b.InitV2(AscendC::GetHcclContext<1>(), &tiling);
        CHECK_EQ(b.SetCcTilingV2(offsetof(Tiling, allReduce)), HCCL_SUCCESS);
        const HcclHandle first = AllReduceInts<true>(a, data);
        b.InterHcclGroupSync(0, first);
        CHECK_EQ(b.Wait(AllReduceInts<true>(b, other)), 0);
        CHECK_EQ(a.Query(first), 1);
        a.Finalize();
        b.Finalize();
    });
    ExpectSum(comm, data);
    ExpectSum(comm, other);
    tw_comm_destroy(second);
}
