# SPDX-License-Identifier: Apache-2.0
"""Two ranks of backend hccl use every collective on npu tensors, subgroups, DTensor and queues."""
import tempfile
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch_npu

HALF = torch.float16


def simple(rank: int) -> None:
    x = torch.full((4,), rank + 1.0).npu()
    dist.all_reduce(x)
    assert x.tolist() == [3.0] * 4
    gathered = torch.empty(8, device="npu")
    dist.all_gather_into_tensor(gathered, torch.full((4,), float(rank)).npu())
    assert gathered.tolist() == [0.0] * 4 + [1.0] * 4
    parts = [torch.empty(4, device="npu") for _ in range(2)]
    dist.all_gather(parts, x)
    mine = torch.empty(2, device="npu")
    dist.reduce_scatter_tensor(mine, torch.arange(4.0).npu())
    assert mine.tolist() == [[0.0, 2.0], [4.0, 6.0]][rank]
    dist.broadcast(mine, 0)
    assert mine.tolist() == [0.0, 2.0]
    (dist.send if rank == 0 else dist.recv)(mine, 1 - rank)
    objects = [None, None]
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": 0}, {"rank": 1}]
    work = dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=True)
    work.wait()
    dist.barrier()


def uneven(rank: int) -> None:
    """Split sizes come as numpy arrays in such scripts."""
    sizes = [[2, 2], [1, 2]]
    out = torch.empty(3 + rank, device="npu")
    given = torch.arange(float(sum(sizes[rank]))).npu()
    dist.all_to_all_single(out, given, np.array([sizes[0][rank], sizes[1][rank]]), np.array(sizes[rank]))
    assert out.tolist() == [[0.0, 1.0, 0.0], [2.0, 3.0, 1.0, 2.0]][rank]
    outs = [torch.empty(1, device="npu") for _ in range(2)]
    dist.all_to_all(outs, [torch.tensor([10.0 * rank + p]).npu() for p in range(2)])
    assert [o.item() for o in outs] == [rank, 10.0 + rank]


def groups(rank: int) -> None:
    """Two groups at once, each with its own communicator."""
    other = dist.new_group([0, 1])
    names = [g._get_backend(torch.device("npu")).get_hccl_comm_name(rank) for g in (dist.group.WORLD, other)]
    assert len(set(names)) == 2
    x, w = torch.ones(2, 64, dtype=HALF).npu(), torch.ones(64, 4, dtype=HALF).npu()
    for hcom in names * 2:
        assert torch_npu.npu_mm_all_reduce_base(x, w, hcom)[0, 0].item() == 128


def mesh() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    both = init_device_mesh("npu", (2,))
    whole = torch.arange(8.0).npu().view(4, 2)
    part = distribute_tensor(whole, both, [Shard(0)])
    assert part.to_local().shape == (2, 2)
    assert torch.equal(part.redistribute(both, [Replicate()]).to_local(), whole)
    assert (part @ part.t()).full_tensor().sum().item() == 400


def rank_main(rank: int, store: str, queue: mp.Queue) -> None:
    torch.npu.set_device(rank)
    dist.init_process_group("hccl", rank=rank, world_size=2, init_method=f"file://{store}")
    simple(rank)
    uneven(rank)
    groups(rank)
    mesh()
    queue.put((rank, torch.full((1000,), float(rank)), torch.full((3,), float(rank)).npu()))
    dist.barrier()


def main() -> None:
    context = mp.get_context("spawn")
    queue = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=rank_main, args=(r, f"{folder}/store", queue)) for r in range(2)]
        for process in ranks:
            process.start()
        while queue.empty():
            time.sleep(0.01)
        time.sleep(1.0)  # a reader that is late: the ranks are done by now
        results = sorted((queue.get() for _ in ranks), key=lambda r: r[0])
        for process in ranks:
            process.join()
            assert process.exitcode == 0, process.exitcode
    for rank, host, device in results:
        assert host.sum().item() == 1000 * rank and device.device == torch.device("npu", rank)
    print("collectives done")


if __name__ == "__main__":
    main()
