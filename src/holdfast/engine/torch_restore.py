"""Restoring without a run: into objects of yours, or just the weights."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from holdfast.capture.torch_inflate import inflate_image
from holdfast.capture.torch_registry import track
from holdfast.checkpoints.find import Found
from holdfast.checkpoints.rank_claims import ALIKE
from holdfast.checkpoints.read import newest_loadable, read_files, require_manifest
from holdfast.clock import SystemClock
from holdfast.engine.torch_restorer import (
    Resumed,
    choose_step,
    restore_newest,
    room_for_image,
    say_rejected,
)
from holdfast.engine.torch_sharded_load import load_sharded
from holdfast.errors import RestoreError, SetupError, StoreNotFound
from holdfast.stores.base import Store
from holdfast.stores.store import CheckpointStore


def restore(path: str | os.PathLike[str], into: Mapping[str, Any], step: int | None = None) -> Resumed:
    """Load the newest whole checkpoint (or that of `step`) into objects, by the names of their tracking.

    >>> holdfast.restore("runs/resnet50", into={"model": model, "optimizer": opt})

    Everything is verified before anything is touched. Names that are not in `into` are left out. Where
    torch.distributed is initialised, each rank gets what is its own.
    """
    restored = restore_newest(_open(path), track(into), SystemClock(), step=step, place=_place())
    if restored is None:
        raise RestoreError(
            f"there is no checkpoint in {os.fspath(path)}", hint="is this the folder of a run?"
        )
    return restored[0]


def load_weights(
    path: str | os.PathLike[str],
    step: int | None = None,
    model: str | None = None,
    *,
    rank: int | None = None,
) -> dict[str, torch.Tensor]:
    """The weights of a model, verified, without building anything: `{name: tensor}`.

    `model` says which one where several were tracked; the default is the only one, or the one called "model".
    `rank` says whose, where ranks held different weights under the same names (stages, experts).
    """
    store = _open(path)
    found = choose_step(store, step)
    if found is None:
        # The newest whole one: every byte of it is read, not only the weights.
        chosen = newest_loadable(
            store, lambda f: (f, _weights(store, f, rank, everything=True)), reject=say_rejected
        )
        if chosen is None:
            raise RestoreError(
                f"there is no checkpoint in {os.fspath(path)}", hint="is this the folder of a run?"
            )
        found, weights = chosen
    else:
        weights = _weights(store, found, rank, everything=False)
    return _pick(weights, model, str(found.name))


def _weights(
    store: Store, found: Found, rank: int | None, *, everything: bool
) -> dict[str, dict[str, torch.Tensor]]:
    manifest = require_manifest(found)
    if rank is not None and not 0 <= rank < manifest.world:
        raise SetupError(f"{found.name} has no rank {rank}", hint=f"{manifest.world} ranks saved it")
    if manifest.world > 1:
        models = [key for key, said in manifest.contains.items() if said.get("role") == "weights"]
        differing = [key for key in models if manifest.contains[key].get(ALIKE) is False]
        if differing and rank is None:
            raise SetupError(
                f"the {manifest.world} ranks that saved {found.name} held different weights of "
                f"{', '.join(map(repr, differing))} under the same names",
                hint="say whose: load_weights(path, rank=0)",
            )
        states = load_sharded(store, found, (), rank or 0, manifest.world, models).states
        return {key: states[key] for key in models}
    # Only the weights files: the optimizer is usually two thirds of a checkpoint.
    names = [record.name for record in manifest.files if record.role == "weights"]
    files = read_files(store, found, None if everything else names, room_for_image)
    return {k: v for f in names for k, v in inflate_image(files[f], manifest.values).items()}


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
    found: Any = OrderedDict((k, v) for k, v in weights[model].items() if isinstance(v, torch.Tensor))
    if (notes := getattr(weights[model], "_metadata", None)) is not None:
        found._metadata = notes  # As in what `state_dict()` gives, for `load_state_dict()`.
    return found  # type: ignore[no-any-return]


def _place() -> tuple[int, int]:
    """Which rank of how many this process is."""
    if not dist.is_available() or not dist.is_initialized():
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def _open(path: str | os.PathLike[str]) -> CheckpointStore:
    if not Path(path).is_dir():
        raise StoreNotFound(f"there is no folder {os.fspath(path)}", hint="is this the path of a run?")
    return CheckpointStore(path)
