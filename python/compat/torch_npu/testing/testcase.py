# SPDX-License-Identifier: Apache-2.0
"""TestCase and run_tests, with the comparisons that such tests rely on."""
import os
import random
import unittest
from typing import Any

import numpy as np
import torch
from torch import Tensor

_SEED = 666
_FLOOR16 = 6e-8
_FLOOR = 1e-9


def set_npu_device() -> None:
    """Makes the device of SET_NPU_DEVICE current, npu:0 without it."""
    wished = os.environ.get("SET_NPU_DEVICE")
    torch.npu.set_device(f"npu:{wished}" if wished else "npu:0")


def _array(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    return torch.as_tensor(value) if isinstance(value, (np.ndarray, np.generic, int, float, bool)) else value


class TestCase(unittest.TestCase):
    """Sets device and seeds, and compares tensors, arrays and numbers."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        set_npu_device()

    def setUp(self) -> None:
        super().setUp()
        seed = int(os.environ.get("SEED") or _SEED)
        torch.manual_seed(seed)
        random.seed(seed)

    def assertRtolEqual(self, x: Any, y: Any, prec: float = 1e-4, prec16: float = 1e-3,
                        auto_trans_dtype: bool = False, message: str | None = None) -> None:
        """Fails when too many elements differ both relatively and absolutely."""
        if isinstance(x, (list, tuple)) and isinstance(y, (list, tuple)):
            self.assertEqual(len(x), len(y))
            for a, b in zip(x, y):
                self.assertRtolEqual(a, b, prec, prec16, auto_trans_dtype, message)
            return
        a, b = _array(x), _array(y)
        if auto_trans_dtype:
            b = b.to(a.dtype)
        if a.shape != b.shape or a.dtype != b.dtype:
            self.fail(message or f"{a.dtype} {list(a.shape)} and {b.dtype} {list(b.shape)} cannot be compared")
        self._compare(a, b, prec, prec16, message)

    def _compare(self, a: Tensor, b: Tensor, prec: float, prec16: float, message: str | None) -> None:
        if a.dtype == torch.bfloat16:
            if not torch.allclose(a.float(), b.float(), rtol=prec16, atol=prec16, equal_nan=True):
                self.fail(message or "bfloat16 results are not close")
            return
        limit, floor = (prec16, _FLOOR16) if a.dtype == torch.float16 else (prec, _FLOOR)
        wide_a, wide_b = a.double(), b.double()
        if not torch.equal(wide_a.isnan(), wide_b.isnan()):
            self.fail(message or "NaN stands in different places")
        known = ~wide_a.isnan() & (wide_a != wide_b)
        difference = (wide_a - wide_b).abs()[known]
        largest = torch.maximum(wide_a.abs(), wide_b.abs())[known] + floor
        relative, absolute = int((difference / largest > limit).sum()), int((difference > limit).sum())
        if min(relative, absolute) > a.numel() * limit:
            self.fail(message or f"{relative} of {a.numel()} elements differ by more than {limit}")

    def assertEqual(self, x: Any, y: Any, prec: Any = None, message: str = "", allow_inf: bool = False,
                    exact_dtype: bool | None = None, **options: Any) -> None:
        """Compares tensors to 1e-5, everything else exactly; a text in third place is the message."""
        if isinstance(prec, str):
            message, prec = prec, None
        if not isinstance(x, Tensor) and not isinstance(y, Tensor):
            super().assertEqual(x, y, message or options.get("msg"))
            return
        a, b = _array(x), _array(y)
        if a.shape != b.shape:
            self.fail(message or f"sizes {list(a.shape)} and {list(b.shape)} differ")
        wide = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
        close = torch.allclose(a.to(wide), b.to(wide), rtol=0, atol=1e-5 if prec is None else prec, equal_nan=True)
        if not close:
            self.fail(message or f"elements differ by up to {(a.to(wide) - b.to(wide)).abs().max()}")


def run_tests() -> None:
    """Runs the tests of the calling file."""
    unittest.main()
