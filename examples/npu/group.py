# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of an example and gives each the name of its communicator."""
import argparse
import tempfile
from typing import Any, Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch_npu  # noqa: F401  (registers the device npu and backend hccl)


def _rank_main(rank: int, body: Callable, ranks: int, store: str, options: argparse.Namespace) -> None:
    torch.npu.set_device(rank)
    torch.manual_seed(rank)
    dist.init_process_group(backend="hccl", rank=rank, world_size=ranks, init_method=f"file://{store}")
    group = dist.distributed_c10d._get_default_group()
    hcom = group._get_backend(torch.device("npu")).get_hccl_comm_name(rank)
    body(rank, ranks, hcom, options)
    dist.barrier(device_ids=[rank])
    dist.destroy_process_group()


def launch(body: Callable[[int, int, str, argparse.Namespace], None], description: str, **choices: Any) -> None:
    """Runs body(rank, ranks, hcom, options) on --ranks processes; choices are further options and their defaults."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--graph", action="store_true", help="compile the call with torchair's backend")
    for name, default in choices.items():
        parser.add_argument(f"--{name}", default=default, type=type(default))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (body, options.ranks, f"{folder}/store", options)
        mp.spawn(_rank_main, args=arguments, nprocs=options.ranks)


def maybe_compiled(function: Callable, options: argparse.Namespace) -> Callable:
    """The function itself, or with --graph compiled."""
    if not options.graph:
        return function
    import torchair

    return torch.compile(function, backend=torchair.get_npu_backend(), dynamic=True, fullgraph=True)
