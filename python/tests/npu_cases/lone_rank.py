# SPDX-License-Identifier: Apache-2.0
"""Two ranks, of which the second fails in its own way between calls: what the first one's call says."""
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch_npu


def rank_main(rank: int, how: str, store: str, results: mp.Queue) -> None:
    torch.npu.set_device(rank)
    dist.init_process_group("hccl", rank=rank, world_size=2, init_method=f"file://{store}")
    hcom = dist.distributed_c10d._get_default_group()._get_backend(torch.device("npu")).get_hccl_comm_name(rank)
    x, w = torch.ones(4, 64, dtype=torch.float16).npu(), torch.ones(64, 8, dtype=torch.float16).npu()
    torch_npu.npu_mm_all_reduce_base(x, w, hcom)
    if rank == 1:
        wrong = {"argument": (x, w.float()), "exception": (None, w), "shape": (x, w[:, :4].contiguous())}
        torch_npu.npu_mm_all_reduce_base(*wrong[how], hcom)
        return
    try:
        torch_npu.npu_mm_all_reduce_base(x, w, hcom)
        results.put("no error")
    except RuntimeError as error:
        results.put(str(error))


def main(how: str) -> None:
    context = mp.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=rank_main, args=(r, how, f"{folder}/store", results)) for r in range(2)]
        for process in ranks:
            process.start()
        result = results.get()
        for process in ranks:
            process.join()
    assert [process.exitcode for process in ranks] == [0, 1], ranks
    print(f"RESULT {result}")  # after the ranks: the second one's traceback goes to the same pipe


if __name__ == "__main__":
    main(sys.argv[1])
