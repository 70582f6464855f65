# SPDX-License-Identifier: Apache-2.0
"""torch and gloo beside one rank of `tilewire bench OPERATOR --peers`, one line in and one line out.

Arguments: THREADS RANK SIZE FILE; the ranks find each other by FILE. With SIZE 0 only torch is looked for.

case OP DTYPE QUANT M K N EXPERTS SEND RECV SM SK SN   prepares an operator    ok, or: none REASON
gloo                                                   product and collective  nanoseconds, above 0
mm                                                     the product alone, with a packed weight

SEND and RECV are the counts of the grouped operators, comma separated, or -; SM,SK,SN is the shared
expert, or 0. Weights of torch.mm are contiguous (k,n) matrices or transposes of contiguous (n,k) ones,
whichever was faster in a trial; int8 weights of float products are dequantised before.
"""
import os
import sys
import time
import warnings

answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # what libraries print must not be taken for an answer

try:
    import torch
    import torch.distributed as dist
except (ImportError, OSError) as error:
    print("none", " ".join(str(error).split())[:150], file=answers)
    sys.exit(1)

TRIES = 3
warnings.filterwarnings("ignore")


def random_matrix(dtype, rows, columns):
    if dtype == torch.int8:
        return torch.randint(-128, 128, (rows, columns), dtype=torch.int8)
    return (torch.rand(rows, columns) * 2 - 1).to(dtype)


def duration(call):
    start = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - start


class Product:
    """y = x times one weight, of floats by torch.mm, of int8 by torch._int_mm and scales."""

    def __init__(self, dtype, quant, k, n):
        self.int8 = quant.startswith("a8w8")
        self.dtype = dtype
        self.weight = random_matrix(torch.int8 if self.int8 else dtype, k, n)
        self.scale = (torch.rand(1, n) + 1) * 2.0**-16 if self.int8 else None
        self.packed = None

    def run(self, x, y):
        if not x.shape[0]:
            return
        if self.int8:
            torch.mul(torch._int_mm(x, self.weight), self.scale, out=self.wide)
            y.copy_(self.wide)
        else:
            torch.mm(x, self.weight, out=y)

    def run_packed(self, x, y):
        if self.packed is None or not x.shape[0]:
            self.run(x, y)
        else:
            torch.ops.mkldnn._linear_pointwise(x, self.packed, None, "none", [], "")

    def prepare(self, x, y):
        """Chooses the layout, and packs the weight if that is faster."""
        self.wide = torch.empty(y.shape) if self.int8 else None
        if not x.shape[0]:
            return
        plain = self.weight
        plain_time = min(duration(lambda: self.run(x, y)) for _ in range(1 + TRIES))
        self.weight = plain.t().contiguous().t()
        best = min(duration(lambda: self.run(x, y)) for _ in range(1 + TRIES))
        if plain_time < best:
            self.weight, best = plain, plain_time
        if not self.int8:
            self.pack(x, y, best)

    def pack(self, x, y, unpacked_time):
        try:
            dense = self.weight.t().contiguous().to_mkldnn()
            self.packed = torch.ops.mkldnn._reorder_linear_weight(dense, x.shape[0])
            packed_time = min(duration(lambda: self.run_packed(x, y)) for _ in range(1 + TRIES))
        except (RuntimeError, NotImplementedError, AttributeError):
            packed_time = unpacked_time
        if packed_time >= unpacked_time:
            self.packed = None


class Matrix:
    """mm_reduce_scatter, mm_all_reduce, all_gather_mm."""

    def __init__(self, op, dtype, quant, m, k, n, size):
        self.op = op
        self.x = random_matrix(torch.int8 if quant.startswith("a8w8") else dtype, m, k)
        gathers = op == "all_gather_mm"
        self.left = torch.empty(m * size, k, dtype=self.x.dtype) if gathers else self.x
        self.y = torch.empty(self.left.shape[0], n, dtype=dtype)
        self.out = torch.empty(m // size, n, dtype=dtype) if op == "mm_reduce_scatter" else None
        self.product = Product(dtype, quant, k, n)
        if gathers:
            self.communicate()
        self.product.prepare(self.left, self.y)
        if not gathers:
            self.communicate()

    def communicate(self):
        if self.op == "all_gather_mm":
            dist.all_gather_into_tensor(self.left, self.x)
        elif self.op == "mm_all_reduce":
            dist.all_reduce(self.y)
        else:
            dist.reduce_scatter_tensor(self.out, self.y)

    def multiply(self, packed):
        (self.product.run_packed if packed else self.product.run)(self.left, self.y)

    def run(self):
        if self.op == "all_gather_mm":
            self.communicate()
            self.multiply(False)
        else:
            self.multiply(False)
            self.communicate()


class Experts:
    """gmm_alltoallv and alltoallv_gmm, with the shared expert."""

    def __init__(self, op, dtype, k, n, experts, send, recv, shared):
        self.gathers = op == "alltoallv_gmm"
        self.e = experts
        self.send, self.recv = send, recv
        mine = recv if self.gathers else send
        self.blocks = mine  # of the product, rank by rank
        self.groups = [sum(mine[j::experts]) for j in range(experts)]
        self.x = random_matrix(dtype, sum(send), k)
        self.left = torch.empty(sum(recv), k, dtype=dtype) if self.gathers else self.x
        self.came = torch.empty(sum(recv), k if self.gathers else n, dtype=dtype)
        self.y = torch.empty(sum(self.groups), n, dtype=dtype)
        self.products = [Product(dtype, "none", k, n) for _ in range(experts)]
        self.shared = None
        if shared[0]:
            self.shared_x = random_matrix(dtype, shared[0], shared[1])
            self.shared_y = torch.empty(shared[0], shared[2], dtype=dtype)
            self.shared = Product(dtype, "none", shared[1], shared[2])
            self.shared.prepare(self.shared_x, self.shared_y)
        for product, x, y in zip(self.products, self.left.split(self.groups), self.y.split(self.groups)):
            product.prepare(x, y)
        self.communicate()

    def by_peer(self, counts):
        return [sum(counts[i : i + self.e]) for i in range(0, len(counts), self.e)]

    def reorder(self, rows, to_ranks):
        """Between the order of experts and that of ranks."""
        ranks = len(self.blocks) // self.e
        by_expert = [(r, j) for j in range(self.e) for r in range(ranks)]
        by_rank = [(r, j) for r in range(ranks) for j in range(self.e)]
        order = by_expert if to_ranks else by_rank
        parts = dict(zip(order, rows.split([self.blocks[r * self.e + j] for r, j in order])))
        return torch.cat([parts[block] for block in (by_rank if to_ranks else by_expert)])

    def communicate(self):
        sent = self.x if self.gathers else self.reorder(self.y, True)
        dist.all_to_all_single(self.came, sent, self.by_peer(self.recv), self.by_peer(self.send))
        if self.gathers:
            self.left = self.reorder(self.came, False)

    def multiply(self, packed):
        for product, x, y in zip(self.products, self.left.split(self.groups), self.y.split(self.groups)):
            (product.run_packed if packed else product.run)(x, y)
        if self.shared is not None:
            (self.shared.run_packed if packed else self.shared.run)(self.shared_x, self.shared_y)

    def run(self):
        if self.gathers:
            self.communicate()
            self.multiply(False)
        else:
            self.multiply(False)
            self.communicate()


def prepare(words, size):
    op, dtype, quant = words[1], {"bf16": torch.bfloat16, "fp16": torch.float16}[words[2]], words[3]
    m, k, n, experts = (int(word) for word in words[4:8])
    try:
        if words[8] == "-":
            return Matrix(op, dtype, quant, m, k, n, size)
        send, recv = ([int(count) for count in word.split(",")] for word in words[8:10])
        return Experts(op, dtype, k, n, experts, send, recv, [int(word) for word in words[10:13]])
    except (RuntimeError, NotImplementedError, ValueError) as error:
        return " ".join(str(error).split())[:150]


def main():
    threads, rank, size, path = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.manual_seed(1 + rank)
    torch.set_num_threads(threads)
    print(f"torch {torch.__version__.split('+')[0]}", file=answers)
    if size == 0:
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
    case = None
    with torch.inference_mode():
        for line in sys.stdin:
            words = line.split()
            if words[0] == "case":
                case = None  # its memory first
                case = prepare(words, size)
                print(f"none {case}" if isinstance(case, str) else "ok", file=answers)
                continue
            taken = duration(case.run if words[0] == "gloo" else lambda: case.multiply(True))
            if threads > 1:
                time.sleep(0.03)  # until its threads no longer spin on the cores that we share
            print(taken, file=answers)
    dist.destroy_process_group()  # or its threads abort the process that leaves


main()
