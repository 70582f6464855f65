# SPDX-License-Identifier: Apache-2.0
"""Whether PyTorch has to see a call; calls/module.c asks the same."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

modes = torch._C._len_torch_dispatch_stack
tracing = torch._C._is_tracing
transforms = torch._C._functorch.peek_interpreter_stack
_grad_enabled = torch.is_grad_enabled

TENSORS = frozenset((Tensor, torch.nn.Parameter))
"""Types without a mind of their own."""


def watching() -> bool:
    """
    Whether it has to see every call, whatever the tensors are: a dispatch mode is active, torch.jit.trace, a
    transform of torch.func, or derivatives go forward.
    """
    return modes() or tracing() or transforms() is not None or forward_ad._current_level >= 0


def watched(*arguments: Any) -> bool:
    """Whether PyTorch has to see a call with these arguments, of which some may be no tensors."""
    if watching():
        return True
    grad = _grad_enabled()
    for t in arguments:
        if type(t) in TENSORS:
            if grad and t.requires_grad or t.is_neg():
                return True
        elif isinstance(t, Tensor):
            return True
    return False


def refuse_tangents(*tensors: Any) -> None:
    """PyTorch would leave them out without a word: its operators in Python have derivatives that go backward only."""
    if forward_ad._current_level < 0:
        return
    for t in tensors:
        if isinstance(t, Tensor) and forward_ad.unpack_dual(t).tangent is not None:
            raise RuntimeError("tilewire's operators have no forward-mode derivatives (forward_ad, torch.func.jvp)")
