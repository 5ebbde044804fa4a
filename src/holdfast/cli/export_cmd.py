"""`holdfast export`: a checkpoint in other people's formats. Reads verified bytes, overwrites nothing."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from holdfast.checkpoints.find import Found, committed
from holdfast.checkpoints.read import Loaded, read_files, require_manifest
from holdfast.cli.exit_codes import DAMAGED, OK
from holdfast.cli.json_output import add_json_option, print_json
from holdfast.cli.progress_bar import ProgressBar
from holdfast.cli.run_folder import add_run_argument, choose, open_run
from holdfast.cli.stored_state import StoredTensor, layout_of, leaves_of, read_layouts, tracked_in
from holdfast.cli.terminal import clean
from holdfast.cli.watched_store import WatchedStore
from holdfast.cli.whole_output import new_file, new_folder, require_new
from holdfast.errors import CorruptCheckpoint, NoValidCheckpoint, RestoreError, SetupError, StoreError
from holdfast.stores.directory import DirectoryStore
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
    parser.add_argument("--model", metavar="NAME", help="which model, where several were tracked")
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    target = Path(options.to)
    kind = options.format or _FORMATS.get(target.suffix)
    if kind is None:
        raise SetupError(f"cannot tell a format from {target.name!r}", hint="say --format")
    require_new(target)
    store = open_run(options.run_folder)
    loaded, passed_over = _load(store, options.step, None if kind == "dcp" else options.model or "")
    size = _write(loaded, kind, target)
    _tell(options, loaded, kind, target, size, passed_over)
    return DAMAGED if passed_over else OK


def _load(store: DirectoryStore, which: str | None, model: str | None) -> tuple[Loaded, list[str]]:
    """The checkpoint asked for, or the newest that is whole; and what was passed over on the way there."""
    passed_over: list[str] = []
    for found in [choose(store, which)] if which is not None else committed(store):
        try:
            wanted = None if model is None else [_weights_file(store, found, model)]
            return Loaded(found, _read(store, found, wanted)), passed_over
        except (CorruptCheckpoint, StoreError) as error:
            if which is not None:
                raise
            passed_over.append(f"{found.name}: {error.message}")
    if not passed_over:
        raise RestoreError(f"there is no checkpoint in {store.where} yet")
    raise NoValidCheckpoint(f"no checkpoint in {store.where} is whole:\n  " + "\n  ".join(passed_over))


def _read(store: DirectoryStore, found: Found, wanted: list[str] | None) -> dict[str, memoryview]:
    records = [r for r in require_manifest(found).files if wanted is None or r.name in wanted]
    with ProgressBar("reading", sum(record.size for record in records)) as bar:
        return read_files(WatchedStore(store, bar.add), found, wanted)


def _weights_file(store: DirectoryStore, found: Found, model: str) -> str:
    """The file of the model called so; without a name, of the only one or the one called "model"."""
    layouts = read_layouts(store, found)
    roles = {record.name: record.role for record in require_manifest(found).files}
    files = {
        key: file
        for file, layout in layouts.items()
        if roles[file] == "weights"
        for key in tracked_in(file, layout)
    }
    name = model or (next(iter(files)) if len(files) == 1 else "model")
    if name not in files:
        raise SetupError(
            f"{found.name} holds no model {name!r}",
            hint=f"it holds {', '.join(files) or 'none'}; use --model",
        )
    return files[name]


def _write(loaded: Loaded, kind: str, target: Path) -> int:
    values = loaded.manifest.values
    if kind == "dcp":
        from holdfast.cli.torch_export import write_dcp

        with new_folder(target) as folder:
            write_dcp(loaded.files, values, folder)
        return sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    (image,) = loaded.files.values()
    with new_file(target) as file:
        if kind == "safetensors":
            # The image is such a file already.
            file.write(image)
        else:
            from holdfast.cli.torch_export import write_torch_file

            write_torch_file(image, values, file)
    return target.stat().st_size


def _tied(loaded: Loaded) -> list[tuple[str, str]]:
    """Tensors that share another one's bytes; a safetensors file holds those once, under one name."""
    layouts = {file: layout_of(image) for file, image in loaded.files.items()}
    first: dict[tuple[str, int, int], str] = {}
    tied = []
    for leaf in leaves_of(loaded.found, layouts).values():
        if isinstance(leaf.value, StoredTensor) and leaf.value.nbytes:
            place = (leaf.value.file, leaf.value.start, leaf.value.stop)
            if place in first:
                tied.append((leaf.label, first[place]))
            first.setdefault(place, leaf.label)
    return tied


def _tell(
    options: argparse.Namespace, loaded: Loaded, kind: str, target: Path, size: int, passed_over: list[str]
) -> None:
    for line in passed_over:
        print(f"holdfast: passed over {clean(line)}", file=sys.stderr)
    tied = _tied(loaded) if kind == "safetensors" else []
    if options.json:
        print_json(
            {
                "run": options.run_folder,
                "name": str(loaded.found.name),
                "step": loaded.found.step,
                "format": kind,
                "to": target,
                "bytes": size,
                "tied": [{"tensor": name, "same_as": original} for name, original in tied],
                "passed_over": passed_over,
            }
        )
    else:
        what = "everything" if kind == "dcp" else "the weights"
        print(f"wrote {what} of step {loaded.found.step} to {clean(target)} ({kind}, {format_bytes(size)})")
        for name, original in tied:
            print(f"  {clean(name)} is tied to {clean(original)}, and stored under that name only")
