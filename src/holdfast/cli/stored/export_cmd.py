"""`holdfast export`: a checkpoint in other people's formats. Reads verified bytes, overwrites nothing."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.checkpoints.find import Found, committed
from holdfast.checkpoints.read import read_files, require_manifest
from holdfast.cli.opened_run import (
    OTHER_COPIES,
    add_run_argument,
    choose,
    no_checkpoint_yet,
    open_run,
)
from holdfast.cli.read_only_store import WatchedStore
from holdfast.cli.render import ProgressBar, add_json_option
from holdfast.cli.result import DAMAGED, OK, Block, Result
from holdfast.cli.stored.whole_output import new_file, new_folder, require_new
from holdfast.contents.dcp import is_dcp
from holdfast.contents.state import read_state
from holdfast.contents.weights import (
    Weights,
    choose_model,
    is_plain,
    safetensors_file,
    weights_in_dcp,
    weights_of,
)
from holdfast.errors import CorruptCheckpoint, NoValidCheckpoint, SetupError, StoreError
from holdfast.stores.base import Store
from holdfast.units import format_bytes

_FORMATS = {".safetensors": "safetensors", ".pt": "torch", ".pth": "torch", ".bin": "torch", "": "dcp"}


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "export",
        help="weights as safetensors or torch file, or everything as DCP",
        description="Weights go to one file (safetensors, torch); the whole checkpoint goes to a folder that "
        "torch.distributed.checkpoint reads (dcp). Only safetensors needs no torch.",
    )
    add_run_argument(parser)
    parser.add_argument("--to", required=True, metavar="PATH", help="a new file, or for dcp a new folder")
    parser.add_argument(
        "--format", choices=["safetensors", "torch", "dcp"], help="default: from the ending of PATH"
    )
    parser.add_argument("--step", metavar="N", help="step or name; default: the newest that is whole")
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="which model, where there are several; in a state that DCP saved, its key: app.model",
    )
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> Result:
    target = Path(options.to)
    kind = options.format or _FORMATS.get(target.suffix)
    if kind is None:
        raise SetupError(f"cannot tell a format from {target.name!r}", hint="say --format")
    require_new(target)
    store = open_run(options.run_folder)
    content, passed_over = _load(store, options.step, kind, options.model)
    size = _write(content, kind, target)
    found = content.found
    said = {
        "run": options.run_folder,
        "name": str(found.name),
        "step": found.step,
        "format": kind,
        "to": target,
        "bytes": size,
        "tied": [{"tensor": name, "same_as": original} for name, original in content.tied],
        "passed_over": passed_over,
    }
    notes = [f"holdfast: passed over {line}" for line in passed_over]
    return Result(said, _text(content, kind, target, size), DAMAGED if passed_over else OK, notes)


@dataclass(frozen=True)
class _Content:
    """What will be written: the parts of a safetensors file, one model's state, or all states by name."""

    found: Found
    what: Any
    tied: Sequence[tuple[str, str]] = ()


def _load(store: Store, which: str | None, kind: str, model: str | None) -> tuple[_Content, list[str]]:
    """The checkpoint asked for, or the newest that is whole; and what was passed over on the way there."""
    passed_over: list[str] = []
    for found in [choose(store, which)] if which is not None else committed(store):
        try:
            with ProgressBar("reading", require_manifest(found).total_bytes) as bar:
                return _read(WatchedStore(store, bar.add), found, kind, model), passed_over
        except (CorruptCheckpoint, StoreError) as error:
            if which is not None:
                raise
            passed_over.append(f"{found.name}: {error.message}")
    if not passed_over:
        raise no_checkpoint_yet(store)
    raise NoValidCheckpoint(
        f"no checkpoint in {store.where} is whole:\n  " + "\n  ".join(passed_over), hint=OTHER_COPIES
    )


def _read(store: Store, found: Found, kind: str, model: str | None) -> _Content:
    manifest = require_manifest(found)
    if kind == "dcp":
        from holdfast.cli.stored.torch_export import read_states

        return _Content(found, read_states(store, found))
    if is_dcp(manifest):
        weights, key, file = weights_in_dcp(manifest, found, model), "", ""
    else:
        state = read_state(store, found)
        key = choose_model(state, found, model)
        weights, file = weights_of(state, key), state.models[key]
    if kind == "safetensors":
        return _Content(found, _file_parts(store, found, weights, file), weights.tied)
    from holdfast.cli.stored.torch_export import read_model, read_weights

    if is_dcp(manifest):
        return _Content(found, read_weights(store, found, weights))
    return _Content(found, read_model(store, found, key, file))


def _file_parts(store: Store, found: Found, weights: Weights, file: str) -> list[memoryview]:
    # Where one process saved it, the image is such a file already.
    return (
        [read_files(store, found, [file])[file]]
        if is_plain(found)
        else safetensors_file(store, found, weights)
    )


def _write(content: _Content, kind: str, target: Path) -> int:
    if kind == "dcp":
        from holdfast.cli.stored.torch_export import write_dcp

        with new_folder(target) as folder:
            write_dcp(content.what, folder)
        return sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    with new_file(target) as file:
        if kind == "safetensors":
            for part in content.what:
                file.write(part)
        else:
            from holdfast.cli.stored.torch_export import write_torch_file

            write_torch_file(content.what, file)
    return target.stat().st_size


def _text(content: _Content, kind: str, target: Path, size: int) -> Iterator[Block]:
    what = "everything" if kind == "dcp" else "the weights"
    yield f"wrote {what} of step {content.found.step} to {target} ({kind}, {format_bytes(size)})"
    world = require_manifest(content.found).world
    if world > 1:
        yield f"  put together from {world} ranks; what each of them holds for itself is taken from rank 0"
    for name, original in content.tied:
        yield f"  {name} is tied to {original}, and stored under that name only"
