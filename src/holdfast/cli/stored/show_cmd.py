"""`holdfast show`: everything one checkpoint says about itself, and what the run has measured so far."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from holdfast.checkpoints.find import Found, committed
from holdfast.checkpoints.read import require_manifest
from holdfast.cli.opened_run import add_run_argument, choose, open_folder, open_run, ranks_of
from holdfast.cli.render import add_json_option, age, plural, when
from holdfast.cli.result import Block, FactList, Result, Table
from holdfast.cli.stored.list_cmd import summary
from holdfast.cli.stored.saving_costs import SavingCosts, measure
from holdfast.clock import SystemClock
from holdfast.contents.state import StoredState, read_state
from holdfast.errors import CorruptCheckpoint, StoreError
from holdfast.format.manifest import Manifest
from holdfast.stores.base import Store
from holdfast.stores.place import CKPT
from holdfast.units import format_bytes

_FILES_SHOWN = 20


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("show", help="everything one checkpoint says about itself")
    add_run_argument(parser)
    parser.add_argument("which", nargs="?", metavar="STEP|NAME", help="default: the newest readable one")
    parser.add_argument("--policy", action="store_true", help="what saving has cost, and when the run saves")
    parser.add_argument("--tensors", action="store_true", help="every tensor with its type and shape")
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> Result:
    store = open_run(options.run_folder)
    found = choose(store, options.which)
    state, notes = _state(store, found, needed=options.tensors)
    tensors = _tensors(state) if state and options.tensors else None
    contains = _contains(require_manifest(found), state)
    costs = None
    if options.policy:
        costs = measure(open_folder(options.run_folder, "what saving has cost"), found)
    newer = [one for one in committed(store) if one.name > found.name and one.manifest is None]
    if options.which is None and newer:
        notes = [*notes, f"holdfast: {newer[0].name} is newer but unreadable: {newer[0].problem}"]
    said = _described(store, found, contains, tensors, costs)
    return Result(said, _text(store, found, contains, tensors, costs), notes=notes)


def _state(store: Store, found: Found, *, needed: bool) -> tuple[StoredState | None, list[str]]:
    """Where a manifest knows only rank 0's part, the ranks' records tell the rest."""
    if not needed and require_manifest(found).world == 1:
        return None, []
    try:
        return read_state(store, found), []
    except (CorruptCheckpoint, StoreError) as error:
        if needed:
            raise
        return None, [f"holdfast: sizes are those of rank 0 only: {error.message}"]


def _contains(manifest: Manifest, state: StoredState | None) -> dict[str, Any]:
    """What a manifest says about each tracked object; with several ranks, over all of them."""
    contains = dict(manifest.contains)
    if state is None or manifest.world == 1:
        return contains
    tensors, sizes = Counter[str](), Counter[str]()
    for path, _, tensor in state.tensors():
        tensors[path[0]] += 1
        sizes[path[0]] += tensor.nbytes
    for key, part in contains.items():
        if isinstance(part, dict):
            contains[key] = {**part, "tensors": tensors[key], "bytes": sizes[key]}
    return contains


def _tensors(state: StoredState) -> list[dict[str, Any]]:
    return [
        {
            "path": label,
            "type": tensor.kind,
            "shape": list(tensor.shape),
            "bytes": tensor.nbytes,
            "file": ", ".join(tensor.files),
        }
        for _, label, tensor in state.tensors()
    ]


def _described(
    store: Store,
    found: Found,
    contains: dict[str, Any],
    tensors: list[dict[str, Any]] | None,
    costs: SavingCosts | None,
) -> dict[str, Any]:
    manifest = require_manifest(found)
    place = _place(store, found)
    said: dict[str, Any] = {
        "run": store.where,
        **summary(found),
        "progress": manifest.progress,
        "contains": contains,
        "files": [
            {"name": file.name, "role": file.role, "bytes": file.size, "path": f"{place}/{file.name}"}
            for file in manifest.files
        ],
        "notes": manifest.notes,
        "parent": manifest.parent.name if manifest.parent else None,
        "environment": manifest.environment,
        "manifest_sha256": found.sha256,
    }
    said |= {} if tensors is None else {"tensors": tensors}
    return said | ({} if costs is None else {"policy": costs})


def _place(store: Store, found: Found) -> str:
    return f"{store.where.rstrip('/')}/{CKPT}/{found.name}"


def _text(
    store: Store,
    found: Found,
    contains: dict[str, Any],
    tensors: list[dict[str, Any]] | None,
    costs: SavingCosts | None,
) -> Iterator[Block]:
    manifest = require_manifest(found)
    ago = age(manifest.created, SystemClock().wall())
    epoch = manifest.progress.get("epoch")
    # Whoever saves through another framework's loop does not tell us of its epochs.
    epochs = "" if epoch is None else f", {epoch} epoch{'' if epoch == 1 else 's'} completed"
    finished = " (training was complete)" if manifest.progress.get("complete") is True else ""
    ranks = ranks_of(manifest)
    # The environment is an open record of the writer: any of it may be missing or of another kind.
    versions = manifest.environment.get("versions")
    yield FactList(
        [
            ("checkpoint", str(found.name)),
            ("step", f"{found.step:,}{epochs}{finished}"),
            ("saved", when(manifest.created) + (f", {ago}" if ago else "")),
            ("ranks", f"{ranks:,}, which saved it together" if ranks > 1 else ""),
            ("why", manifest.reason),
            ("kept", manifest.keep or "for ever" if manifest.keep is not None else ""),
            ("tags", ", ".join(manifest.tags)),
            ("notes", manifest.notes),
            ("metrics", ", ".join(f"{name} {value:.6g}" for name, value in manifest.metrics.items())),
            ("continues", manifest.parent.name if manifest.parent else "nothing: the first of its run"),
            ("host", str(manifest.environment.get("host", ""))),
            (
                "versions",
                ", ".join(f"{k} {v}" for k, v in versions.items()) if isinstance(versions, dict) else "",
            ),
            ("git commit", str(manifest.environment.get("git_commit") or "")),
            ("folder", _place(store, found)),
        ]
    )
    yield ""
    yield Table(["file", "holds", "size"], _files(manifest), left=(0, 1))
    yield ""
    rows = [[name, *_part(part)] for name, part in contains.items()]
    yield Table(["tracked", "role", "tensors", "size"], rows, left=(0, 1))
    if tensors is not None:
        yield ""
        rows = [
            [
                one["type"],
                "×".join(map(str, one["shape"])) or "scalar",
                format_bytes(one["bytes"]),
                one["path"],
            ]
            for one in tensors
        ]
        yield Table(["type", "shape", "size", "tensor"], rows, left=(0, 3))
    if costs is not None:
        yield from ("", "policy", *(f"  {line}" for line in costs.lines()))


def _files(manifest: Manifest) -> list[list[str]]:
    """A row for each; where many ranks wrote, one for those that differ only in the rank."""
    if len(manifest.files) <= _FILES_SHOWN:
        return [[file.name, file.role, format_bytes(file.size)] for file in manifest.files]
    counts, sizes = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for file in manifest.files:
        alike = re.sub(r"-r[0-9]{5}(?=\.)", "-r*", file.name), file.role
        counts[alike] += 1
        sizes[alike] += file.size
    return [
        [f"{name} ({plural(count, 'file')})", role, format_bytes(sizes[name, role])]
        for (name, role), count in counts.items()
    ]


def _part(part: Any) -> list[str]:
    if not isinstance(part, dict):
        return ["", "", ""]
    size = part.get("bytes")
    shown = format_bytes(size) if isinstance(size, int) else ""
    return [str(part.get("role", "")), str(part.get("tensors", "")), shown]
