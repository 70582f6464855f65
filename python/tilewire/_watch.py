# SPDX-License-Identifier: Apache-2.0
"""Whether PyTorch has to see every call, whatever its tensors are; calls/module.c asks the same."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

modes = torch._C._len_torch_dispatch_stack
tracing = torch._C._is_tracing
transforms = torch._C._functorch.peek_interpreter_stack


def watching() -> bool:
    """A dispatch mode is active, torch.jit.trace, a transform of torch.func, or derivatives go forward."""
    return modes() or tracing() or transforms() is not None or forward_ad._current_level >= 0


def refuse_tangents(*tensors: Any) -> None:
    """PyTorch would leave them out without a word: its operators in Python have derivatives that go backward only."""
    if forward_ad._current_level < 0:
        return
    for t in tensors:
        if isinstance(t, Tensor) and forward_ad.unpack_dual(t).tangent is not None:
            raise RuntimeError("tilewire's operators have no forward-mode derivatives (forward_ad, torch.func.jvp)")
