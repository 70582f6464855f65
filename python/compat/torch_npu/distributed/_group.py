# SPDX-License-Identifier: Apache-2.0
"""The process group of backend hccl: Gloo's collectives on the memory of npu tensors, and the name by which
the fused operators find their communicator."""
import os
from datetime import timedelta
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist
import torch._C._distributed_c10d as _c10d
from tilewire.comm import Communicator

from .._alias import to_cpu

_NAME_MAX = 127
communicators: "WeakValueDictionary[str, Communicator]" = WeakValueDictionary()
"""Those of the fused operators in this process, by name."""


class Options:
    """Options of the vendor's group; they are kept, and mean nothing here."""

    def __init__(self) -> None:
        self.op_timeout = timedelta(minutes=30)
        self._timeout = self.op_timeout
        self.is_high_priority_stream = False
        self.global_ranks_in_group: list[int] = []
        self.group_id = ""
        self.hccl_config: dict[str, Any] = {}


def _host(value: Any) -> Any:
    """Tensors, and lists of them, as CPU tensors over the same memory."""
    if isinstance(value, torch.Tensor):
        return to_cpu(value.detach()) if value.device.type == "npu" else value
    return [_host(v) for v in value] if isinstance(value, (list, tuple)) else value


def _sizes(splits: Any) -> list[int]:
    return [int(s) for s in splits]


def _last(works: list[Any]) -> Any:
    """The last of several works, when the others are done."""
    for work in works[:-1]:
        work.wait()
    return works[-1]


def _share_cores(ranks: int) -> None:
    """Divides the cores among the ranks of this machine, unless the user has said how many threads to use."""
    if "OMP_NUM_THREADS" not in os.environ and "TILEWIRE_THREADS" not in os.environ:
        local = int(os.environ.get("LOCAL_WORLD_SIZE") or ranks)
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local))


class HcclGroup(dist.ProcessGroup):
    """A process group of npu tensors; also its own backend object."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
        self._given_name: str | None = None
        self._comm: Communicator | None = None
        self._desc = self._name = ""

    # ---- what torch.distributed asks of a group -------------------------------------------------

    def getBackendName(self) -> str:
        return "hccl"

    def name(self) -> str:
        return "hccl"

    @property
    def group_name(self) -> str:
        return self._name

    def getGroupName(self) -> str:
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def setGroupName(self, name: str) -> None:
        self._name = name

    @property
    def group_desc(self) -> str:
        return self._desc

    def getGroupDesc(self) -> str:
        return self._desc

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("npu")]

    def _get_backend(self, device: Any) -> "HcclGroup":
        return self

    @property
    def options(self) -> Any:
        return self._gloo.options

    def shutdown(self) -> None:
        if self._comm is not None:
            self._comm.close()

    def abort(self) -> None:
        if self._comm is not None and self._comm.handle:
            self._comm.abort("the process group was aborted")

    # ---- the communicator of the fused operators ------------------------------------------------

    def get_hccl_comm_name(self, rank: int, *, init_comm: bool = True) -> str:
        """The name that the fused operators take as hcom. Every rank of the group asks for it the first time."""
        if rank < 0:
            raise RuntimeError(f"rank must be >= 0, but it is {rank}")
        if self._comm is None:
            if not init_comm:
                return ""
            self._comm = Communicator.from_group(self, name=self._given_name)
            communicators[self._comm.name] = self._comm
        return self._comm.name

    def _set_hccl_comm_name(self, name: str) -> None:
        """Chooses that name, before it is first asked for."""
        if not isinstance(name, str) or not 0 < len(name.encode()) <= _NAME_MAX:
            raise RuntimeError(f"hccl comm name must have 1 to {_NAME_MAX} bytes, but it is {name!r}")
        known = self._given_name or (self._comm.name if self._comm is not None else name)
        if known != name:
            raise RuntimeError(f"hccl comm name {name!r} cannot be set: the group already has the name {known!r}")
        self._given_name = name

    # ---- collectives ----------------------------------------------------------------------------

    def barrier(self, opts: Any = None) -> Any:
        own = _c10d.BarrierOptions()
        if opts is not None:
            own.timeout = opts.timeout
        return self._gloo.barrier(own)

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        return self._gloo.allreduce(_host(tensors), opts or _c10d.AllreduceOptions())

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        return self._gloo.allreduce_coalesced(_host(tensors), opts or _c10d.AllreduceCoalescedOptions())

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        return self._gloo.broadcast(_host(tensors), opts or _c10d.BroadcastOptions())

    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        return self._gloo.reduce(_host(tensors), opts or _c10d.ReduceOptions())

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        return self._gloo.allgather(_host(output_tensors), _host(input_tensors), opts or _c10d.AllgatherOptions())

    def _allgather_base(self, output: Any, input: Any, opts: Any = None) -> Any:
        return self._gloo._allgather_base(_host(output), _host(input), opts or _c10d.AllgatherOptions())

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return _last([self._allgather_base(o, i, opts) for o, i in zip(outputs, inputs)])

    def allgather_coalesced(self, output_lists: Any, input_list: Any, opts: Any = None) -> Any:
        columns = zip(*output_lists)
        return _last([self.allgather([list(o)], [i], opts) for o, i in zip(columns, input_list)])

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        opts = opts or _c10d.ReduceScatterOptions()
        return self._gloo.reduce_scatter(_host(output_tensors), _host(input_tensors), opts)

    def _reduce_scatter_base(self, output: Any, input: Any, opts: Any = None) -> Any:
        return self._gloo._reduce_scatter_base(_host(output), _host(input), opts or _c10d.ReduceScatterOptions())

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return _last([self._reduce_scatter_base(o, i, opts) for o, i in zip(outputs, inputs)])

    def alltoall_base(self, output: Any, input: Any, output_split_sizes: Any, input_split_sizes: Any,
                      opts: Any = None) -> Any:
        return self._gloo.alltoall_base(_host(output), _host(input), _sizes(output_split_sizes),
                                        _sizes(input_split_sizes), opts or _c10d.AllToAllOptions())

    def alltoall(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        """Gloo has no such call: every pair of ranks sends and receives."""
        outputs, inputs, rank = _host(output_tensors), _host(input_tensors), self._gloo.rank()
        outputs[rank].copy_(inputs[rank])
        peers = [p for p in range(self._gloo.size()) if p != rank]
        works = [self._gloo.send([inputs[p].contiguous()], p, 0) for p in peers]
        works += [self._gloo.recv([outputs[p]], p, 0) for p in peers]
        return _last(works) if works else self._gloo.barrier(_c10d.BarrierOptions())

    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        return self._gloo.gather(_host(output_tensors), _host(input_tensors), opts or _c10d.GatherOptions())

    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        return self._gloo.scatter(_host(output_tensors), _host(input_tensors), opts or _c10d.ScatterOptions())

    def send(self, tensors: Any, dst_rank: int, tag: int) -> Any:
        return self._gloo.send(_host(tensors), dst_rank, tag)

    def recv(self, tensors: Any, src_rank: int, tag: int) -> Any:
        return self._gloo.recv(_host(tensors), src_rank, tag)

    def recv_anysource(self, tensors: Any, tag: int) -> Any:
        return self._gloo.recv_anysource(_host(tensors), tag)

    # names of newer releases of PyTorch
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base


def _create(opts: Any, pg_options: Any = None) -> HcclGroup:
    _share_cores(opts.group_size)
    return HcclGroup(opts.store, opts.group_rank, opts.group_size, opts.timeout)


def register() -> None:
    """Makes hccl a backend of torch.distributed."""
    if "hccl" not in dist.Backend.backend_list:
        dist.Backend.register_backend("hccl", _create, extended_api=True, devices=["npu"])
