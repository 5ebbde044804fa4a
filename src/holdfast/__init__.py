"""holdfast: automatic checkpointing for deep-learning training."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# At once and not when first used: the package of the same name must not take the function's place.
from holdfast.checkpoints.listing import checkpoints
from holdfast.errors import (
    HoldfastError,
    InternalError,
    RestoreError,
    SaveError,
    SetupError,
    StoreError,
    torch_is_missing,
)

if TYPE_CHECKING:
    from holdfast.checkpoints.retention import Retention
    from holdfast.engine.run import Run
    from holdfast.engine.torch_restore import load_weights, restore
    from holdfast.policy.convergence import ConvergenceSettings
    from holdfast.tiers.words import Tier

__version__ = "0.1.0"

__all__ = [
    "ConvergenceSettings",
    "HoldfastError",
    "InternalError",
    "RestoreError",
    "Retention",
    "Run",
    "SaveError",
    "SetupError",
    "StoreError",
    "Tier",
    "checkpoints",
    "load_weights",
    "restore",
]

# Looked up when first used, so that `holdfast list` on a login node does not import torch.
_LAZY = {
    "ConvergenceSettings": "holdfast.policy.convergence",
    "Retention": "holdfast.checkpoints.retention",
    "Run": "holdfast.engine.run",
    "Tier": "holdfast.tiers.words",
    "load_weights": "holdfast.engine.torch_restore",
    "restore": "holdfast.engine.torch_restore",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    try:
        return getattr(import_module(_LAZY[name]), name)
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        raise torch_is_missing(f"holdfast.{name}") from None


def __dir__() -> list[str]:
    return sorted(__all__)
