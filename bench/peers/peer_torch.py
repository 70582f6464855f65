# SPDX-License-Identifier: Apache-2.0
"""torch beside `tilewire bench gemm --peers`, one line in and one line out.

case DTYPE M K N THREADS COPIES   prepares a product        ok plain|transposed, or: none REASON
run                               computes it once          nanoseconds, above 0

The weight is a contiguous (k,n) matrix or the transpose of a contiguous (n,k) one, whichever was
faster when the case was prepared. With several copies of it each run uses the next one.
"""
import os
import sys
import time

answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # what libraries print must not be taken for an answer

try:
    import torch
except (ImportError, OSError) as error:
    print("none", " ".join(str(error).split())[:150], file=answers)
    sys.exit(1)

TRIES = 3
TRY_NS = 2_000_000_000  # that a layout is tried for, at least once


def random_matrix(dtype, rows, columns):
    if dtype == torch.int8:
        return torch.randint(-128, 128, (rows, columns), dtype=torch.int8)
    return (torch.rand(rows, columns) * 2 - 1).to(dtype)


def make_weight(name, k, n):
    """The (k,n) weight; int8 weights of float products are dequantised beforehand."""
    if name == "int8":
        return random_matrix(torch.int8, k, n)
    dtype = torch.bfloat16 if name.startswith("bf16") else torch.float16
    if not name.endswith("w8"):
        return random_matrix(dtype, k, n)
    scale = (torch.rand(1, n) + 1) * 2.0**-8
    return (random_matrix(torch.int8, k, n).float() * scale).to(dtype)


class Case:
    def __init__(self, name, m, k, n, threads, copies):
        torch.set_num_threads(threads)
        weight = make_weight(name, k, n)
        self.threads = threads
        self.multiply = torch._int_mm if name == "int8" else torch.mm
        self.x1 = random_matrix(weight.dtype, m, k)
        self.y = torch.empty(m, n, dtype=torch.int32 if name == "int8" else weight.dtype)
        self.turn = 0
        self.weights = [weight]
        plain = self.try_out()
        self.weights = [weight.t().contiguous().t()]
        transposed = self.try_out()
        self.layout = "transposed" if transposed < plain else "plain"
        if self.layout == "plain":
            self.weights = [weight]
        while len(self.weights) < copies:
            first = self.weights[0]
            self.weights.append(first.t().clone().t() if self.layout == "transposed" else first.clone())

    def once(self):
        weight = self.weights[self.turn]
        self.turn = (self.turn + 1) % len(self.weights)
        start = time.perf_counter_ns()
        self.multiply(self.x1, weight, out=self.y)
        return time.perf_counter_ns() - start

    def try_out(self):
        durations = [self.once()]
        while len(durations) <= TRIES and sum(durations) < TRY_NS:
            durations.append(self.once())
        return min(durations)

    def run(self):
        if self.threads > 1:
            self.once()  # its threads are awake again
        duration = self.once()
        if self.threads > 1:
            time.sleep(0.03)  # until they no longer spin on the cores that we share
        return duration


def prepare(words):
    try:
        return Case(words[1], *(int(word) for word in words[2:]))
    except (RuntimeError, NotImplementedError) as error:
        return " ".join(str(error).split())[:150]


def main():
    torch.manual_seed(1)
    print(f"torch {torch.__version__.split('+')[0]}", file=answers)
    case = None
    with torch.inference_mode():
        for line in sys.stdin:
            words = line.split()
            if words[0] == "case":
                case = None  # its memory first
                case = prepare(words)
                print(f"ok {case.layout}" if isinstance(case, Case) else f"none {case}", file=answers)
            else:
                print(case.run(), file=answers)


main()
