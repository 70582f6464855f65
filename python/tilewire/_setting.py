# SPDX-License-Identifier: Apache-2.0
"""Settings of this package in the environment; those of the C library are its own."""

from __future__ import annotations

import os


def bytes_setting(name: str, default: int) -> int:
    """A number of bytes such as 512M."""
    given = os.environ.get(name, "")
    text = given.strip().upper()
    if not text:
        return default
    scale = {"K": 10, "M": 20, "G": 30}.get(text[-1], 0)
    try:
        return int(text[:-1] if scale else text) << scale
    except ValueError:
        raise RuntimeError(f"{name} is {given!r}; it must be a number of bytes such as 512M") from None
