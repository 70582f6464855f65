# SPDX-License-Identifier: Apache-2.0
"""Memory of the devices, which is the host's: the process as a whole is counted, for every device alike."""
import os
import resource
from typing import Any

_PAGE = os.sysconf("SC_PAGE_SIZE")


def memory_allocated(device: Any = None) -> int:
    """Bytes of the process that are in memory now."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * _PAGE


def max_memory_allocated(device: Any = None) -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


memory_reserved = memory_allocated
max_memory_reserved = max_memory_allocated


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free and total bytes of the host."""
    return os.sysconf("SC_AVPHYS_PAGES") * _PAGE, os.sysconf("SC_PHYS_PAGES") * _PAGE


def memory_stats(device: Any = None) -> dict[str, int]:
    return {"allocated_bytes.all.current": memory_allocated(), "allocated_bytes.all.peak": max_memory_allocated(),
            "reserved_bytes.all.current": memory_reserved(), "reserved_bytes.all.peak": max_memory_reserved()}


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    return "\n".join(f"{name}: {value}" for name, value in memory_stats().items())


def empty_cache() -> None:
    """Freed memory goes back to the host at once."""


def reset_peak_memory_stats(device: Any = None) -> None:
    """The host's peak cannot be reset."""


reset_max_memory_allocated = reset_peak_memory_stats
