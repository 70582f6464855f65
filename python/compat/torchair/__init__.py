# SPDX-License-Identifier: Apache-2.0
"""torchair for machines without an NPU: torch.compile traces the graph, and it runs as it was traced."""
import functools
from typing import Any, Callable

import torch
from torch._dynamo import register_backend

from ._config import CompilerConfig

__all__ = ["CompilerConfig", "get_compiler", "get_npu_backend"]


def _npu_backend(gm: torch.fx.GraphModule, example_inputs: list[Any], compiler_config: CompilerConfig | None = None,
                 decompositions: dict[Any, Callable] | None = None, **options: Any) -> Callable:
    return gm.forward


def get_npu_backend(*, compiler_config: CompilerConfig | None = None,
                    custom_decompositions: dict[Any, Callable] | None = None) -> Callable:
    """A backend for torch.compile."""
    if compiler_config is not None and not isinstance(compiler_config, CompilerConfig):
        raise RuntimeError(f"compiler_config must be a torchair.CompilerConfig, but it is {compiler_config!r}")
    return functools.partial(_npu_backend, compiler_config=compiler_config or CompilerConfig(),
                             decompositions=custom_decompositions or {})


def get_compiler(compiler_config: CompilerConfig | None = None) -> Callable:
    """A compiler of graphs: they run as they are."""
    return functools.partial(_npu_backend, compiler_config=compiler_config or CompilerConfig())


register_backend(_npu_backend, name="npu")
