// SPDX-License-Identifier: Apache-2.0
#ifndef TILEWIRE_EXAMPLES_EXAMPLE_HOST_H
#define TILEWIRE_EXAMPLES_EXAMPLE_HOST_H
// What the hosts of the example kernels share: joining the other ranks, and a table of everybody's
// results that rank 0 prints. The table travels through symmetric memory.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <ascendc/launch.h>

namespace example
{

inline void Require(tw_status_t status, const char *what)
{
    if (status != TW_OK) {
        std::fprintf(stderr, "%s: %s\n", what, tw_last_error());
        std::exit(1);
    }
}

// A communicator of all ranks that `tilewire run` (or torchrun, mpirun, srun) started.
class World
{
  public:
    World() : comm_(nullptr)
    {
        const tw_comm_args_t args = TW_COMM_ARGS_INIT;
        Require(tw_comm_create(&args, &comm_), "tw_comm_create");
    }
    ~World()
    {
        tw_comm_destroy(comm_);
    }
    World(const World &) = delete;
    World &operator=(const World &) = delete;

    tw_comm_t *Comm() const
    {
        return comm_;
    }
    int Rank() const
    {
        return tw_comm_rank(comm_);
    }
    int Size() const
    {
        return tw_comm_size(comm_);
    }
    const char *Name() const
    {
        return tw_comm_name(comm_);
    }

    // Collective. Rank 0 prints the first values of every rank; returns whether all ranks are right.
    bool Report(const char *label, const std::vector<float> &y, bool right)
    {
        struct Row {
            float first[3];
            int right;
        };
        void *mine = nullptr;
        Require(tw_mem_alloc(comm_, sizeof(Row), &mine), "tw_mem_alloc");
        Row row = {{0, 0, 0}, right};
        std::copy_n(y.begin(), std::min<std::size_t>(3, y.size()), row.first);
        *static_cast<Row *>(mine) = row;
        Require(tw_comm_barrier(comm_), "tw_comm_barrier");

        bool all = true;
        for (int rank = 0; rank < Size(); rank++) {
            void *peer = nullptr;
            Require(tw_mem_peer(comm_, mine, rank, &peer), "tw_mem_peer");
            const Row theirs = *static_cast<const Row *>(peer);
            all = all && theirs.right != 0;
            if (Rank() == 0) {
                std::printf("  %-22s rank %d: %g %g %g ...  %s\n", rank == 0 ? label : "", rank,
                            static_cast<double>(theirs.first[0]), static_cast<double>(theirs.first[1]),
                            static_cast<double>(theirs.first[2]), theirs.right != 0 ? "ok" : "WRONG");
            }
        }
        Require(tw_comm_barrier(comm_), "tw_comm_barrier");
        tw_mem_free(comm_, mine);
        return all;
    }

  private:
    tw_comm_t *comm_;
};

// Runs the kernel on `blocks` AIV blocks of this rank.
template <typename Kernel, typename Tiling>
bool RunKernel(const World &world, std::uint32_t blocks, Kernel kernel, void *x, void *y, Tiling &tiling)
{
    const AscendC::LaunchConfig config = {blocks, 0, {world.Comm()}};
    const GM_ADDR none = nullptr;
    if (AscendC::Launch(config, kernel, static_cast<GM_ADDR>(x), static_cast<GM_ADDR>(y), none,
                        reinterpret_cast<GM_ADDR>(&tiling)) != 0) {
        std::fprintf(stderr, "rank %d: %s\n", world.Rank(), AscendC::LaunchError().c_str());
        return false;
    }
    return true;
}

} // namespace example

#endif
