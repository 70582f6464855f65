# SPDX-License-Identifier: Apache-2.0
"""Cases: a product's limits, which apply under TILEWIRE_PROFILE alone."""
import torch
import torch_npu

HALF = torch.float16


def raises(text: str, function, *args, **kwargs) -> None:
    try:
        function(*args, **kwargs)
    except RuntimeError as error:
        assert text in str(error), f"{text!r} is not in {error}"
        return
    raise AssertionError(f"nothing was raised, expected {text!r}")


def test_world_sizes() -> None:
    x, w = torch.ones(6, 256, dtype=HALF).npu(), torch.ones(256, 8, dtype=HALF).npu()
    for function in (torch_npu.npu_mm_reduce_scatter_base, torch_npu.npu_all_gather_base_mm):
        for size in (1, 3):
            raises("world_size should be in [2, 4, 8, 16, 32], but the actual value is ", function, x, w, "name", size)
        raises("hcom 'name' is not a communicator", function, x, w, "name", 2)


def test_formats() -> None:
    """Weights in the vendor's format: floats not under a2, also where such a call without it was made before."""
    import os

    x, w = torch.ones(2, 256, dtype=HALF).npu(), torch.ones(256, 64, dtype=HALF).npu()
    nz = torch_npu.npu_format_cast(w, 29)
    text = "profile a2: x2 is FRACTAL_NZ" if os.environ["TILEWIRE_PROFILE"] == "a2" else "hcom 'name' is not"
    raises("hcom 'name' is not", torch_npu.npu_mm_all_reduce_base, x, w, "name")
    raises(text, torch_npu.npu_mm_all_reduce_base, x, nz, "name")
    for function in (torch_npu.npu_mm_reduce_scatter_base, torch_npu.npu_all_gather_base_mm):
        raises("hcom 'name' is not", function, x, w, "name", 2)
        raises(text, function, x, nz, "name", 2)
    scale = torch.ones(64, dtype=HALF).npu()
    raises("hcom 'name' is not", torch_npu.npu_mm_all_reduce_base, x,
           torch_npu.npu_format_cast(w.to(torch.int8), 29), "name", antiquant_scale=scale)


def test_range_of_k() -> None:
    for k in (255, 65535):
        x, w = torch.ones(2, k, dtype=HALF).npu(), torch.ones(k, 8, dtype=HALF).npu()
        for function in (torch_npu.npu_mm_reduce_scatter_base, torch_npu.npu_all_gather_base_mm):
            raises("The k-axis should be in range[256, 65535), but it is: ", function, x, w, "name", 2)
