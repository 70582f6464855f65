# SPDX-License-Identifier: Apache-2.0
"""Name and number of the devices come from the environment."""
import torch
import torch_npu


def test_name() -> None:
    assert torch_npu.npu.get_device_name(0) == "Ascend910_9382"


def test_count() -> None:
    assert torch.npu.device_count() == 16
    assert torch.ones(1).npu(15).device == torch.device("npu:15")
