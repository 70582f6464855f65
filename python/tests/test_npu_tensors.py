# SPDX-License-Identifier: Apache-2.0
"""The device npu: copies, views, printing, autograd, files, torch.npu."""
import npu_suite
import pytest


@pytest.mark.parametrize("name", npu_suite.names("tensors.py"))
def test_tensors(name: str) -> None:
    npu_suite.check("tensors.py", name)


@pytest.mark.parametrize("name", npu_suite.names("products.py"))
def test_products(name: str) -> None:
    npu_suite.check("products.py", name)


@pytest.mark.parametrize("name", npu_suite.names("environment.py"))
def test_environment(name: str) -> None:
    npu_suite.check("environment.py", name, TILEWIRE_NPU_NAME="Ascend910_9382", TILEWIRE_NPU_COUNT="16")
