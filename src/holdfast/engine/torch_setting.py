"""Which setting a measured cost belongs to: a profile taken on another disk or processor is worth nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from holdfast.policy.profile import profile_key


def setting_key(folder: str, tracked: Iterable[Any], state_bytes: int) -> str:
    """A short name for this machine, this file system and this state."""
    return profile_key(
        hardware=_hardware(),
        storage=_storage(folder),
        world_size=1,
        dtype=_dtype(tracked),
        state_bytes=state_bytes,
    )


def setting_before_the_first_save(folder: str, tracked: Iterable[Any], world_size: int) -> str:
    """The same before the state's size is known, which optimizers make up in their first step: by the weights
    and by which optimizers there are."""
    tracked = list(tracked)
    modules = [item.module for item in tracked if isinstance(getattr(item, "module", None), torch.nn.Module)]
    weights = sum(tensor.nbytes for module in modules for tensor in module.parameters())
    optimizers = sorted(type(item.optimizer).__name__ for item in tracked if hasattr(item, "optimizer"))
    return profile_key(
        hardware=_hardware(),
        storage=_storage(folder),
        world_size=world_size,
        dtype=" ".join([_dtype(tracked), *optimizers]),
        state_bytes=weights,
    )


def _hardware() -> str:
    if torch.accelerator.is_available():
        name = str(torch.get_device_module().get_device_name())
    else:
        name = _processor()
    return f"{name} × {os.cpu_count()} cores, {torch.get_num_threads()} threads"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )


def _storage(folder: str) -> str:
    """The mounted file system below the folder: its source and type."""
    place = os.path.realpath(folder)
    best = ("", "unknown")
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return best[1]
    for line in mounts:
        source, point, kind = line.split(" ")[:3]
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):
            best = (point, f"{source} {kind}")
    return best[1]


def _dtype(tracked: Iterable[Any]) -> str:
    for item in tracked:
        module = getattr(item, "module", None)
        if isinstance(module, torch.nn.Module):
            for parameter in module.parameters():
                return str(parameter.dtype)
    return "none"
