# SPDX-License-Identifier: Apache-2.0
"""Gradients through the fused operators on two ranks, against autograd of the same arithmetic on one tensor set."""
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch_npu

W, M, K, N, E = 2, 8, 64, 16, 2
SEND = [[1, 3, 2, 2], [4, 0, 1, 3]]  # rows from each rank to each expert of each rank
RECV = [[SEND[s][r * E + j] for s in range(W) for j in range(E)] for r in range(W)]


def leaves(shape: tuple[int, ...], seed: int) -> list[torch.Tensor]:
    """One tensor a rank, known to all ranks."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).bfloat16().double().requires_grad_() for _ in range(W)]


def mine(all_ranks: list[torch.Tensor], rank: int) -> torch.Tensor:
    return all_ranks[rank].detach().bfloat16().npu().requires_grad_()


def same(grad: torch.Tensor, reference: torch.Tensor) -> None:
    error = (grad.cpu().double() - reference).abs().max().item()
    assert error <= 2.0**-6 * reference.abs().max().item(), error


def products(rank: int, hcom: str) -> None:
    xs, ws, bs = leaves((M, K), 1), leaves((K, N), 2), leaves((N,), 3)
    factor = leaves((W * M, N), 4)
    total = sum(x @ w + b for x, w, b in zip(xs, ws, bs))
    rows = torch.cat(xs)
    losses = {"reduce": sum((total * f[:M]).sum() for f in factor), "scatter": (total * factor[0][:M]).sum(),
              "gather": sum(((rows @ w + b) * f).sum() for w, b, f in zip(ws, bs, factor))}
    for name, loss in losses.items():
        inputs = (xs[rank], ws[rank], bs[rank])
        references = torch.autograd.grad(loss, inputs, retain_graph=True)
        x, w, b = (mine(t, rank) for t in (xs, ws, bs))
        own = factor[rank].detach().bfloat16().npu()
        if name == "reduce":
            y = torch_npu.npu_mm_all_reduce_base(x, w, hcom, bias=b) * own[:M]
        elif name == "scatter":
            part = factor[0].detach().bfloat16().npu()[rank * M // W:(rank + 1) * M // W]
            y = torch_npu.npu_mm_reduce_scatter_base(x, w, hcom, W, bias=b) * part
        else:
            y = torch_npu.npu_all_gather_base_mm(x, w, hcom, W, bias=b)[0] * own
        y.float().sum().backward()
        for leaf, reference in zip((x, w, b), references):
            same(leaf.grad, reference)


def twice(rank: int, hcom: str) -> None:
    """There are no second derivatives, which is said."""
    calls = [
        lambda x, w: torch_npu.npu_mm_all_reduce_base(x, w, hcom),
        lambda x, w: torch_npu.npu_mm_reduce_scatter_base(x, w, hcom, W),
        lambda x, w: torch_npu.npu_all_gather_base_mm(x, w, hcom, W)[0],
    ]
    for call in calls:
        x, w = (mine(t, rank) for t in (leaves((M, K), 1), leaves((K, N), 2)))
        grad, = torch.autograd.grad(call(x, w).float().square().sum(), x, create_graph=True)
        try:
            grad.float().square().sum().backward()
        except RuntimeError as error:
            assert "differentiate twice" in str(error), error
        else:
            raise AssertionError("a second derivative without a word")


def experts(rank: int, hcom: str, transposed: bool) -> None:
    xs, ups = leaves((8, K), 5), leaves((E, K, N), 6)
    downs, shared = leaves((E, N, K), 7), leaves((K, N), 8)
    outputs = []
    for x, own in zip(xs, range(W)):
        blocks = x.split(SEND[own])
        places = [(d, j) for d in range(W) for j in range(E)]
        y = torch.cat([b @ ups[d][j] @ downs[d][j] for b, (d, j) in zip(blocks, places)])
        outputs.append(y.sum() + (x @ shared[own]).sum())
    references = torch.autograd.grad(sum(outputs), (xs[rank], ups[rank], downs[rank], shared[rank]))
    x, up, down, other = (mine(t, rank) for t in (xs, ups, downs, shared))
    flip = (lambda t: t.transpose(1, 2).contiguous()) if transposed else (lambda t: t)
    inner, mm_y, _ = torch_npu.npu_alltoallv_gmm(x, flip(up), hcom, W, SEND[rank], RECV[rank], mm_x=x, mm_weight=other,
                                                 trans_gmm_weight=transposed)
    y, _ = torch_npu.npu_gmm_alltoallv(inner, flip(down), hcom, W, RECV[rank], SEND[rank],
                                       trans_gmm_weight=transposed)
    (y.float().sum() + mm_y.float().sum()).backward()
    for leaf, reference in zip((x, up, down, other), references):
        same(leaf.grad, reference)


def rank_main(rank: int, store: str) -> None:
    torch.npu.set_device(rank)
    dist.init_process_group("hccl", rank=rank, world_size=W, init_method=f"file://{store}")
    hcom = dist.group.WORLD._get_backend(torch.device("npu")).get_hccl_comm_name(rank)
    products(rank, hcom)
    twice(rank, hcom)
    experts(rank, hcom, False)
    experts(rank, hcom, True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_main, args=(f"{folder}/store",), nprocs=W)
    print("gradients done")
