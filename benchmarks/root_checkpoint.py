"""Root checkpointing, as most scripts do it: rank 0 writes the state to the shared store, all others wait.

To restart, rank 0 reads it and sends it to everybody, tensor by tensor.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from shared_store import SharedFile, Wire


def save_root(state: dict[str, Any], path: Path, wire: Wire) -> None:
    """Durable when it returns, on all ranks."""
    if dist.get_rank() == 0:
        part = path.with_suffix(".part")
        with SharedFile(part, "wb", wire) as file:
            torch.save(state, file)
            os.fsync(file.fileno())
        part.rename(path)
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    dist.barrier()


def load_root(path: Path, wire: Wire) -> dict[str, Any]:
    """The same state on every rank."""
    tensors: list[Tensor] = []
    plan: list[Any] = [None, None]
    if dist.get_rank() == 0:
        with SharedFile(path, "rb", wire) as file:
            tree = _without_tensors(torch.load(file), tensors)
        plan = [tree, [(t.shape, t.dtype) for t in tensors]]
    dist.broadcast_object_list(plan)
    tree, kinds = plan
    tensors = tensors or [torch.empty(shape, dtype=dtype) for shape, dtype in kinds]
    for tensor in tensors:
        dist.broadcast(tensor, 0)
    state: dict[str, Any] = _with_tensors(tree, tensors)
    return state


class _Place(int):
    """Where a tensor was."""


def _without_tensors(tree: Any, tensors: list[Tensor]) -> Any:
    if isinstance(tree, Tensor):
        tensors.append(tree)
        return _Place(len(tensors) - 1)
    if isinstance(tree, dict):
        return {key: _without_tensors(child, tensors) for key, child in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)([_without_tensors(child, tensors) for child in tree])
    return tree


def _with_tensors(tree: Any, tensors: list[Tensor]) -> Any:
    if isinstance(tree, _Place):
        return tensors[tree]
    if isinstance(tree, dict):
        return {key: _with_tensors(child, tensors) for key, child in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)([_with_tensors(child, tensors) for child in tree])
    return tree
