# SPDX-License-Identifier: Apache-2.0
"""One case of tilewire.bench: its operands, its result in fp64, and the call that is made."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor

from . import ops
from .comm import Communicator
from .weights import pack_weight

OPERATORS = ("mm_reduce_scatter", "mm_all_reduce", "all_gather_mm")
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "a8w8": torch.int8}

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


def arguments(case: Case, mine: Operands, comm: Communicator) -> "tuple[Callable[..., Any], tuple, dict[str, Any]]":
    """The operator, and what a user gives it: packed weights, and scales by name."""
    options: "dict[str, Any]" = {"gather_output": False} if case.op == "all_gather_mm" else {}
    if case.type == "a8w8":
        if case.op == "mm_all_reduce":
            options |= {"dequant_scale": mine.columns, "pertoken_scale": mine.rows}
        else:
            options |= {"x1_scale": mine.rows, "x2_scale": mine.columns, "out_dtype": result_type(case)}
    return getattr(ops, case.op), (mine.x, pack_weight(mine.w), comm), options


def first(result: Any) -> Tensor:
    """The product, where there are several results."""
    return result[0] if isinstance(result, tuple) else result
