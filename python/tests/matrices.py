# SPDX-License-Identifier: Apache-2.0
"""Random matrices that every rank, and every run, can make again."""

from __future__ import annotations

import torch


def randn(seed: int, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
