"""Restoring without a run: into objects of yours, or just the weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from holdfast.capture.torch_inflate import inflate_image
from holdfast.capture.torch_registry import track
from holdfast.checkpoints.read import Loaded, newest_valid, read_files, require_manifest
from holdfast.clock import SystemClock
from holdfast.engine.torch_restorer import (
    Resumed,
    choose_step,
    huge_pages,
    restore_newest,
    say_rejected,
)
from holdfast.errors import RestoreError, SetupError, StoreNotFound
from holdfast.stores.directory import DirectoryStore


def restore(path: str | os.PathLike[str], into: Mapping[str, Any], step: int | None = None) -> Resumed:
    """Load the newest whole checkpoint (or that of `step`) into objects, by the names of their tracking.

    >>> holdfast.restore("runs/resnet50", into={"model": model, "optimizer": opt})

    Everything is verified before anything is touched. Names that are not in `into` are left out.
    """
    restored = restore_newest(_open(path), track(into), SystemClock(), step=step)
    if restored is None:
        raise RestoreError(
            f"there is no checkpoint in {os.fspath(path)}", hint="is this the folder of a run?"
        )
    return restored[0]


def load_weights(
    path: str | os.PathLike[str], step: int | None = None, model: str | None = None
) -> dict[str, torch.Tensor]:
    """The weights of a model, verified, without building anything: `{name: tensor}`.

    `model` says which one where several were tracked; the default is the only one, or the one called "model".
    """
    store = _open(path)
    found = choose_step(store, step)
    if found is None:
        loaded = newest_valid(store, huge_pages, reject=say_rejected)
        if loaded is None:
            raise RestoreError(
                f"there is no checkpoint in {os.fspath(path)}", hint="is this the folder of a run?"
            )
    else:
        # Only the weights files: the optimizer is usually two thirds of a checkpoint.
        wanted = [record.name for record in require_manifest(found).files if record.role == "weights"]
        loaded = Loaded(found, read_files(store, found, wanted, huge_pages))
    return _pick(_weights(loaded), model, str(loaded.found.name))


def _weights(loaded: Loaded) -> dict[str, dict[str, torch.Tensor]]:
    files = [r.name for r in loaded.manifest.files if r.role == "weights" and r.name in loaded.files]
    return {k: v for f in files for k, v in inflate_image(loaded.files[f], loaded.manifest.values).items()}


def _pick(
    weights: dict[str, dict[str, torch.Tensor]], model: str | None, where: str
) -> dict[str, torch.Tensor]:
    if model is None:
        model = next(iter(weights)) if len(weights) == 1 else "model"
    if model not in weights:
        raise SetupError(
            f"{where} holds no model {model!r}",
            hint=f"it holds {', '.join(map(repr, weights)) or 'none'}; use model=",
        )
    return {name: value for name, value in weights[model].items() if isinstance(value, torch.Tensor)}


def _open(path: str | os.PathLike[str]) -> DirectoryStore:
    if not Path(path).is_dir():
        raise StoreNotFound(f"there is no folder {os.fspath(path)}", hint="is this the path of a run?")
    return DirectoryStore(path)
