# SPDX-License-Identifier: Apache-2.0
"""One case of tilewire.bench: its operands, its result in fp64, and the two calls that are compared."""

from __future__ import annotations

import ctypes
from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor

from . import ops
from ._lib import AllGatherMmArgs, MmAllReduceArgs, MmReduceScatterArgs, check, lib
from ._tensor import view
from .comm import Communicator
from .weights import pack_weight

OPERATORS = ("mm_reduce_scatter", "mm_all_reduce", "all_gather_mm")
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "a8w8": torch.int8}

_ARGS: "dict[str, Any]" = {
    "mm_reduce_scatter": MmReduceScatterArgs,
    "mm_all_reduce": MmAllReduceArgs,
    "all_gather_mm": AllGatherMmArgs,
}
_SUMS_EPS = 2.0**-19  # of sums in fp32, of the sum of magnitudes


class Case(NamedTuple):
    """What is run; m, k, n are those of one rank."""

    op: str
    type: str
    m: int
    k: int
    n: int


class Operands(NamedTuple):
    """The tensors of one rank; int8 ones have scales of columns and of rows."""

    x: Tensor
    w: Tensor
    columns: "Tensor | None"
    rows: "Tensor | None"


def operands(case: Case, rank: int) -> Operands:
    """Those of any rank, the same in every process."""
    g = torch.Generator().manual_seed(1000 + rank)
    dtype = TYPES[case.type]
    if dtype is not torch.int8:
        x, w = torch.randn(case.m, case.k, generator=g), torch.randn(case.k, case.n, generator=g)
        return Operands(x.to(dtype), w.to(dtype), None, None)
    x = torch.randint(-128, 128, (case.m, case.k), generator=g, dtype=torch.int8)
    w = torch.randint(-128, 128, (case.k, case.n), generator=g, dtype=torch.int8)
    columns, rows = torch.rand(case.n, generator=g), torch.rand(case.m, generator=g)
    return Operands(x, w, (columns + 0.5) * 1e-4, rows + 0.5)


def result_type(case: Case) -> torch.dtype:
    """int8 products give fp16, as in `tilewire bench --quant a8w8-f32pt`."""
    return torch.float16 if case.type == "a8w8" else TYPES[case.type]


def _product(x: Operands, w: Operands) -> "tuple[Tensor, Tensor]":
    """The rows of x times the weight of w in fp64, and what the sums of magnitudes cannot exceed."""
    rows, columns = x.x.double(), w.w.double()
    y = rows @ columns
    sizes = torch.outer(rows.norm(dim=1), columns.norm(dim=0))
    if x.rows is not None and w.columns is not None:
        scale = x.rows.double()[:, None] * w.columns.double()
        return y * scale, sizes * scale
    return y, sizes


def reference(case: Case, rank: int, size: int) -> "tuple[Tensor, Tensor]":
    """This rank's result in fp64, and how far a right one may be from it."""
    half_ulp = torch.finfo(result_type(case)).eps / 2
    if case.op == "all_gather_mm":
        mine = operands(case, rank)
        parts = [_product(operands(case, r), mine) for r in range(size)]
        y, sizes = torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
        return y, y.abs() * half_ulp + sizes * _SUMS_EPS
    total, bound = 0.0, 0.0
    for r in range(size):
        mine = operands(case, r)
        y, sizes = _product(mine, mine)
        total = total + y
        bound = bound + y.abs() * half_ulp * 1.01 + sizes * _SUMS_EPS
    bound = bound + total.abs() * half_ulp
    if case.op == "mm_all_reduce":
        return total, bound
    share = slice(case.m // size * rank, case.m // size * (rank + 1))
    return total[share], bound[share]


def is_right(y: Tensor, want: Tensor, bound: Tensor) -> bool:
    """Whether a result is as near to the one in fp64 as its type allows."""
    return y.shape == want.shape and bool(((y.double() - want).abs() <= bound + 1e-30).all())


def python_call(case: Case, mine: Operands, comm: Communicator) -> "tuple[Callable[[], Tensor], Any]":
    """The operator as a user calls it, and the packed weight that it takes."""
    weight = pack_weight(mine.w)
    x, rows, columns = mine.x, mine.rows, mine.columns
    if case.op == "mm_all_reduce":
        if columns is None:
            return lambda: ops.mm_all_reduce(x, weight, comm), weight
        return lambda: ops.mm_all_reduce(x, weight, comm, dequant_scale=columns, pertoken_scale=rows), weight
    if case.op == "mm_reduce_scatter":
        if columns is None:
            return lambda: ops.mm_reduce_scatter(x, weight, comm), weight
        options = {"x1_scale": rows, "x2_scale": columns, "out_dtype": result_type(case)}
        return lambda: ops.mm_reduce_scatter(x, weight, comm, **options), weight
    if columns is None:
        return lambda: ops.all_gather_mm(x, weight, comm, gather_output=False)[0], weight
    options = {"x1_scale": rows, "x2_scale": columns, "out_dtype": result_type(case)}
    return lambda: ops.all_gather_mm(x, weight, comm, gather_output=False, **options)[0], weight


class Prepared:
    """The operator as a C program calls it: prepared once, then started and waited for, into one result."""

    def __init__(self, case: Case, mine: Operands, weight: Any, comm: Communicator, y: Tensor) -> None:
        names = ("dequant_scale", "pertoken_scale") if case.op == "mm_all_reduce" else ("x2_scale", "x1_scale")
        given = {"x1": mine.x, "y": y, names[0]: mine.columns, names[1]: mine.rows}
        views = {name: view(t, name) for name, t in given.items() if t is not None}
        args = _ARGS[case.op](weight=weight.handle, **{name: v.address for name, v in views.items()})
        handle = ctypes.c_void_p()
        check(getattr(lib, f"tw_{case.op}_prepare")(comm.live(), ctypes.byref(args), ctypes.byref(handle)))
        self.handle = handle.value or 0
        self.kept = mine, weight, y
        self.start, self.wait = lib.tw_op_start, lib.tw_op_wait

    def __call__(self) -> None:
        """One run."""
        check(self.start(self.handle))
        check(self.wait(self.handle, 0))

    def release(self) -> None:
        """Before the communicator is closed."""
        lib.tw_op_release(self.handle)
