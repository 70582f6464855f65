# SPDX-License-Identifier: Apache-2.0
"""npu_swiglu: silu of the first half of a tensor, times the second; with its derivative."""
from typing import Any

import torch
from torch import Tensor

from ._common import define, host, like, require, same_device


def _halves(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    size = x.shape[dim]
    require(size % 2 == 0, "self must have an even size in dimension ", dim, ", but it is ", size)
    return x.narrow(dim, 0, size // 2), x.narrow(dim, size // 2, size // 2)


def _kernel(self: Tensor, dim: int = -1) -> Tensor:
    gate, value = _halves(host(self), dim)
    return like((torch.nn.functional.silu(gate.float()) * value.float()).to(self.dtype), self)


def _fake(self: Tensor, dim: int = -1) -> Tensor:
    return self.new_empty(_halves(self, dim)[0].shape)


def _backward_kernel(grad_output: Tensor, self: Tensor, dim: int = -1) -> Tensor:
    same_device(grad_output, self=self)
    gate, value = (half.float() for half in _halves(host(self), dim))
    grad = host(grad_output).float()
    sigmoid = torch.sigmoid(gate)
    of_gate = grad * value * sigmoid * (1 + gate * (1 - sigmoid))
    of_value = grad * gate * sigmoid
    return like(torch.cat((of_gate, of_value), dim).to(self.dtype), self)


def _backward_fake(grad_output: Tensor, self: Tensor, dim: int = -1) -> Tensor:
    return self.new_empty(self.shape)


def _save(ctx: Any, inputs: tuple, output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.dim = inputs[1]


def _derivative(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return torch.ops.npu.npu_swiglu_backward(grad, ctx.saved_tensors[0], ctx.dim), None


def register() -> None:
    define("npu_swiglu", _kernel, _fake)
    define("npu_swiglu_backward", _backward_kernel, _backward_fake)
    torch.library.register_autograd("npu::npu_swiglu", _derivative, setup_context=_save)


def npu_swiglu(self: Tensor, dim: int = -1) -> Tensor:
    """silu(a) * b, where a and b are the halves of the tensor along a dimension."""
    return torch.ops.npu.npu_swiglu(self, dim)


def npu_swiglu_backward(grad_output: Tensor, self: Tensor, dim: int = -1) -> Tensor:
    """The gradient of npu_swiglu."""
    return torch.ops.npu.npu_swiglu_backward(grad_output, self, dim)
