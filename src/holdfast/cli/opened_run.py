"""From what a user types to a run and one of its checkpoints. Reads only; never creates a folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from holdfast.checkpoints.find import Found, committed
from holdfast.cli.render import clean, plural
from holdfast.errors import NoValidCheckpoint, RestoreError, SetupError, StoreNotFound
from holdfast.format.manifest import Manifest
from holdfast.format.names import parse_checkpoint_name
from holdfast.stores.base import Store
from holdfast.stores.identity import RECORD as IDENTITY
from holdfast.stores.locations import is_bucket, open_store
from holdfast.stores.os_errors import store_errors
from holdfast.stores.place import CKPT
from holdfast.stores.store import CheckpointStore

NEWEST = "newest"
# What contents/dcp.py calls DCP_KEY, which imports NumPy: `holdfast list` does without. A test compares them.
DCP_KEY = "dcp"
OTHER_COPIES = "holdfast verify --all-tiers --repair RUN puts right what another tier still has"


def add_run_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", metavar="RUN", help="the folder given to holdfast.Run, or a tier of it")


def open_run(path: str) -> CheckpointStore:
    """The store of a run, in a folder or a bucket; StoreNotFound says what is there instead."""
    return _open_bucket(path) if is_bucket(path) else open_folder(path, "")


def open_folder(path: str, what: str) -> CheckpointStore:
    """The run's own folder, where `what` is; a copy in a bucket has only checkpoints."""
    if is_bucket(path):
        raise SetupError(
            f"{what} is in the run's own folder, and {path} is a bucket",
            hint="give the folder that was given to holdfast.Run",
        )
    with store_errors("look", path):
        return _open(Path(path), path)


def _open_bucket(path: str) -> CheckpointStore:
    store = open_store(path)
    try:
        _ = store.uuid
    except StoreNotFound as error:
        # Without its identity it can still be read. A bucket that does not exist says so itself.
        if not store.names():
            raise StoreNotFound(f"there is no run at {path}", hint="give the address of a run") from error
    return store


def _open(folder: Path, path: str) -> CheckpointStore:
    if not folder.is_dir():
        raise StoreNotFound(f"there is no folder {path}", hint="give the path of a run")
    if not _is_run(folder):
        inside = sorted(child.name for child in folder.iterdir() if child.is_dir() and _is_run(child))
        hint = f"it contains {plural(len(inside), 'run')}: {', '.join(inside[:5])}" if inside else None
        raise StoreNotFound(f"{path} is not the folder of a run", hint=hint or "give the path of a run")
    return CheckpointStore(folder)


def _is_run(folder: Path) -> bool:
    # A damaged run may have lost either; both together are what an unrelated folder lacks.
    return (folder / IDENTITY).exists() or (folder / CKPT).is_dir()


def no_checkpoint_yet(store: Store) -> RestoreError:
    return RestoreError(
        f"there is no checkpoint in {store.where} yet",
        hint="holdfast verify --all-tiers RUN also looks into the run's other tiers",
    )


def choose(store: Store, which: str | None) -> Found:
    """One checkpoint by step or by name; the newest readable one if none is asked for."""
    everything = committed(store)
    if not everything:
        raise no_checkpoint_yet(store)
    if which is None or which == NEWEST:
        for found in everything:
            if found.manifest is not None:
                return found
        raise NoValidCheckpoint(
            f"none of the {plural(len(everything), 'checkpoint')} in {store.where} is readable",
            hint=OTHER_COPIES,
        )
    name = parse_checkpoint_name(which)
    # Python refuses to read thousands of digits, and no step has more than twelve.
    step = int(which) if which.isdecimal() and len(which) <= 12 else None
    for found in everything:
        if found.name == name or found.step == step:
            return found
    steps = ", ".join(str(step) for step in sorted({found.step for found in everything}))
    raise RestoreError(
        f"no checkpoint {clean(which, 60)!r} in {store.where}", hint=f"there are the steps {steps}"
    )


def ranks_of(manifest: Manifest) -> int:
    """How many ranks wrote a checkpoint."""
    # DCP's ranks commit through one of them, and each that held anything wrote one file.
    return max(len(manifest.files), 1) if DCP_KEY in manifest.values else manifest.world
