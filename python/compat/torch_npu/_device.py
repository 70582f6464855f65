# SPDX-License-Identifier: Apache-2.0
"""Registers the device npu with PyTorch; once in a process."""
from typing import Any

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from . import _autocast, _kernels, _lingering, _storage
from . import npu as _module


def _single_threaded_backward() -> None:
    """Lets backward run in the calling thread: PyTorch has worker threads for one device of a Python backend."""
    run = torch.autograd.graph._engine_run_backward

    def run_here(*args: Any, **kwargs: Any) -> Any:
        with torch.autograd.set_multithreading_enabled(False):
            return run(*args, **kwargs)

    torch.autograd.graph._engine_run_backward = run_here
    torch.autograd._engine_run_backward = run_here


def _streams_need_no_record() -> None:
    """Lets record_stream of npu tensors take streams of torch.npu: memory is in use until the call returns."""
    record = torch.Tensor.record_stream

    def record_stream(self: torch.Tensor, stream: Any) -> None:
        if self.device.type != "npu":
            record(self, stream)

    torch.Tensor.record_stream = record_stream


def register() -> None:
    """Makes npu:N a device of PyTorch."""
    _setup_privateuseone_for_python_backend(rename="npu", backend_module=_module)
    _kernels.register()
    _autocast.register()
    _single_threaded_backward()
    _streams_need_no_record()
    _storage.register()
    _lingering.register()
