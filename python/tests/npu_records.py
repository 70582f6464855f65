# SPDX-License-Identifier: Apache-2.0
"""Runs scripts through tilewire.npu, records their operators, and compares results with fp64 references."""
from __future__ import annotations

import os
import sys
from pathlib import Path

import programs
import torch
from torch import Tensor

_RECORDER = Path(__file__).resolve().parent / "recorder"
_ROUNDING = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
_SUM_ROUNDING = 2.0**-24


def run(command: list[str], *, record: Path | None = None, **environment: str) -> str:
    """Runs `python -m tilewire.npu command`; its output, or an AssertionError that shows it."""
    base = {**os.environ, **environment}
    if record is not None:
        record.mkdir(parents=True, exist_ok=True)
        base["NPU_TEST_RECORD"] = str(record)
        base["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_RECORDER), base.get("PYTHONPATH")]))
    done = programs.run([sys.executable, "-W", "ignore", "-m", "tilewire.npu", *command], env=base, merged=True)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def records(folder: Path) -> list[list[dict]]:
    """What was recorded: for every call, the record of each rank."""
    files = sorted(folder.glob("call*-rank*.pt"))
    assert files, "no operator was called"
    calls: dict[str, list[dict]] = {}
    for file in files:
        calls.setdefault(file.name.partition("-")[0], []).append(torch.load(file))
    for call in calls.values():
        call.sort(key=lambda r: r["rank"])
        assert [r["rank"] for r in call] == list(range(call[0]["world_size"])), "a rank's record is missing"
    return list(calls.values())


def compare(call: list[dict]) -> None:
    """Compares the results of all ranks of one call with references in fp64."""
    for rank, record in enumerate(call):
        assert record["device"].startswith("npu"), record["device"]
    _COMPARE[call[0]["op"]](call)


def _close(y: Tensor, reference: Tensor, partials: Tensor, norms: Tensor, k: int) -> None:
    """
    Each rank rounds its part and the sum is rounded: half a unit of each. fp32 sums of k products are off
    by k units of fp32 of the operands' norms at most.
    """
    assert y.shape == reference.shape, f"{tuple(y.shape)} is not {tuple(reference.shape)}"
    unit = _ROUNDING[y.dtype]
    bound = unit * 1.01 * (reference.abs() + partials) + (k + 8) * _SUM_ROUNDING * norms + 2.0**-24
    excess = ((y.double() - reference).abs() - bound).max().item() if y.numel() else 0.0
    assert excess <= 0, f"off by {excess} more than rounding explains"


def _weight(args: dict) -> Tensor:
    """The right matrix as the operator defines it, with the roundings that belong to its definition."""
    scale, offset = args.get("antiquant_scale"), args.get("antiquant_offset")
    if scale is None:
        return args["x2"].double()
    rows = args.get("antiquant_group_size") or args["x2"].shape[0]
    spread = (lambda t: t.reshape(-1, t.shape[-1]).repeat_interleave(rows, 0)[: args["x2"].shape[0]])
    if scale.dtype == torch.float16:
        moved = args["x2"].half() if offset is None else args["x2"].half() + spread(offset)
        return (moved * spread(scale)).double()
    moved = args["x2"].float() if offset is None else args["x2"].float() + spread(offset).float()
    return (moved * spread(scale).float()).bfloat16().double()


def _part(args: dict, x: Tensor) -> tuple[Tensor, Tensor]:
    """One rank's part in fp64, and the norms that bound the error of its sums."""
    w = _weight(args)
    rows = x.reshape(-1, x.shape[-1]).double()
    part = rows @ w
    norms = rows.norm(dim=1)[:, None] * w.norm(dim=0)[None, :]
    if args.get("bias") is not None:
        part = part + args["bias"].double()
    if args.get("dequant_scale") is not None:
        factor = _scale(args["dequant_scale"]).reshape(1, -1)
        if args.get("pertoken_scale") is not None:
            factor = factor * args["pertoken_scale"].double()[:, None]
        part, norms = part * factor, norms * factor.abs()
    if args.get("x3") is not None:
        part = part + args["x3"].reshape(part.shape).double()
    return part, norms


def _scale(scale: Tensor) -> Tensor:
    if scale.dtype in (torch.int64, torch.uint64):
        return (scale.to(torch.int64) & 0xFFFFE000).to(torch.int32).view(torch.float32).double()
    return scale.double()


def _summed(call: list[dict], x_name: str) -> tuple[Tensor, Tensor, Tensor, int]:
    parts = [_part(r["args"], r["args"][x_name]) for r in call]
    k = call[0]["args"][x_name].shape[-1]
    return (sum(p for p, _ in parts), sum(p.abs() for p, _ in parts), sum(n for _, n in parts), k)


def _all_reduce(call: list[dict]) -> None:
    total, partials, norms, k = _summed(call, "x1")
    for record in call:
        y = record["result"]
        assert torch.equal(y, call[0]["result"]), "the ranks have different results"
        _close(y.reshape(total.shape), total, partials * 2, norms, k)


def _reduce_scatter(call: list[dict]) -> None:
    total, partials, norms, k = _summed(call, "self")
    rows = total.shape[0] // len(call)
    for rank, record in enumerate(call):
        own = slice(rank * rows, (rank + 1) * rows)
        _close(record["result"], total[own], partials[own], norms[own], k)


def _all_gather(call: list[dict]) -> None:
    gathered = torch.cat([r["args"]["self"] for r in call])
    for record in call:
        y, rows = record["result"]
        assert torch.equal(rows, gathered) or rows.numel() == 0
        reference, norms = _part(record["args"], gathered)
        _close(y, reference, torch.zeros(()), norms, gathered.shape[1])


def _grouped(x: Tensor, args: dict, counts: list[int]) -> tuple[Tensor, Tensor]:
    """Rows, in the order of the experts, times their experts' matrices."""
    weight = args["gmm_weight"].transpose(1, 2) if args.get("trans_gmm_weight") else args["gmm_weight"]
    parts, norms = [], []
    for rows, matrix in zip(x.split(counts), weight):
        low, right = rows.double(), matrix.double()
        parts.append(low @ right)
        norms.append(low.norm(dim=1)[:, None] * right.norm(dim=0)[None, :])
    return torch.cat(parts), torch.cat(norms)


def _blocks(x: Tensor, counts: list[list[int]]) -> list[list[Tensor]]:
    """Cuts rows into blocks: counts[i][j] rows each, j fastest."""
    flat = iter(x.split([c for row in counts for c in row]))
    return [[next(flat) for _ in row] for row in counts]


def _by_rank(counts: list[int], ranks: int) -> list[list[int]]:
    experts = len(counts) // ranks
    return [counts[p * experts:(p + 1) * experts] for p in range(ranks)]


def _transposed(rows: list[list]) -> list[list]:
    return [list(column) for column in zip(*rows)]


def _shared(record: dict, result: Tensor | None) -> None:
    args = record["args"]
    if args.get("mm_x") is None:
        assert result is None
        return
    weight = args["mm_weight"].t() if args.get("trans_mm_weight") else args["mm_weight"]
    reference = args["mm_x"].double() @ weight.double()
    norms = args["mm_x"].double().norm(dim=1)[:, None] * weight.double().norm(dim=0)[None, :]
    _close(result, reference, torch.zeros(()), norms, weight.shape[0])


def _gmm_alltoallv(call: list[dict]) -> None:
    ranks, sent, bounds = len(call), [], []
    for record in call:
        args = record["args"]
        by_expert = _transposed(_by_rank(args["send_counts"], ranks))
        y, norms = _grouped(args["gmm_x"], args, [sum(row) for row in by_expert])
        sent.append(_transposed(_blocks(y, by_expert)))
        bounds.append(_transposed(_blocks(norms, by_expert)))
    for rank, record in enumerate(call):
        result, mm_y = record["result"]
        reference = torch.cat([b for source in sent for b in source[rank]])
        norms = torch.cat([b for source in bounds for b in source[rank]])
        _close(result, reference, torch.zeros(()), norms, record["args"]["gmm_x"].shape[1])
        _shared(record, mm_y)


def _alltoallv_gmm(call: list[dict]) -> None:
    ranks = len(call)
    sent = [_blocks(r["args"]["gmm_x"], _by_rank(r["args"]["send_counts"], ranks)) for r in call]
    for rank, record in enumerate(call):
        result, mm_y, permuted = record["result"]
        by_expert = _transposed([source[rank] for source in sent])
        rows = torch.cat([block for blocks in by_expert for block in blocks])
        counts = [sum(b.shape[0] for b in blocks) for blocks in by_expert]
        reference, norms = _grouped(rows, record["args"], counts)
        _close(result, reference, torch.zeros(()), norms, rows.shape[1])
        assert permuted is None or torch.equal(permuted, rows)
        _shared(record, mm_y)


_COMPARE = {
    "npu_mm_all_reduce_base": _all_reduce,
    "npu_mm_reduce_scatter_base": _reduce_scatter,
    "npu_all_gather_base_mm": _all_gather,
    "npu_gmm_alltoallv": _gmm_alltoallv,
    "npu_alltoallv_gmm": _alltoallv_gmm,
}
