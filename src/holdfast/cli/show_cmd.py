"""`holdfast show`: everything one checkpoint says about itself, and what the run has measured so far."""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from typing import Any

from holdfast.checkpoints.find import Found, committed
from holdfast.checkpoints.read import require_manifest
from holdfast.cli.exit_codes import OK
from holdfast.cli.json_output import add_json_option, print_json
from holdfast.cli.list_cmd import summary
from holdfast.cli.measured_policy import Measured, measure
from holdfast.cli.ranks_said import ranks_of
from holdfast.cli.run_folder import add_run_argument, choose, open_folder, open_run
from holdfast.cli.terminal import age, clean, columns, plural, when
from holdfast.clock import SystemClock
from holdfast.contents.state import StoredState, read_state
from holdfast.errors import CorruptCheckpoint, StoreError
from holdfast.format.manifest import Manifest
from holdfast.stores.base import Store
from holdfast.stores.directory import CKPT
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


def run(options: argparse.Namespace) -> int:
    store = open_run(options.run_folder)
    found = choose(store, options.which)
    state = _state(store, found, needed=options.tensors)
    tensors = _tensors(state) if state and options.tensors else None
    contains = _contains(require_manifest(found), state)
    measured = None
    if options.policy:
        measured = measure(open_folder(options.run_folder, "what saving has cost"), found)
    if options.json:
        print_json(_described(store, found, contains, tensors, measured))
        return OK
    _print(store, found, contains)
    if tensors is not None:
        _print_tensors(tensors)
    if measured is not None:
        print("\npolicy")
        for line in measured.lines():
            print(f"  {clean(line)}")
    newer = [one for one in committed(store) if one.name > found.name and one.manifest is None]
    if options.which is None and newer:
        why = clean(newer[0].problem)
        print(f"holdfast: {newer[0].name} is newer but unreadable: {why}", file=sys.stderr)
    return OK


def _state(store: Store, found: Found, *, needed: bool) -> StoredState | None:
    """Where a manifest knows only rank 0's part, the ranks' records tell the rest."""
    if not needed and require_manifest(found).world == 1:
        return None
    try:
        return read_state(store, found)
    except (CorruptCheckpoint, StoreError) as error:
        if needed:
            raise
        print(f"holdfast: sizes are those of rank 0 only: {clean(error.message)}", file=sys.stderr)
        return None


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
    measured: Measured | None,
) -> dict[str, Any]:
    manifest = require_manifest(found)
    place = _place(store, found)
    said: dict[str, Any] = {
        "run": store.where,
        **summary(store, found),
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
    if tensors is not None:
        said["tensors"] = tensors
    if measured is not None:
        said["policy"] = measured
    return said


def _place(store: Store, found: Found) -> str:
    return f"{store.where.rstrip('/')}/{CKPT}/{found.name}"


def _print(store: Store, found: Found, contains: dict[str, Any]) -> None:
    manifest = require_manifest(found)
    ago = age(manifest.created, SystemClock().wall())
    epoch = manifest.progress.get("epoch")
    # Whoever saves through another framework's loop does not tell us of its epochs.
    epochs = "" if epoch is None else f", {clean(epoch)} epoch{'' if epoch == 1 else 's'} completed"
    finished = " (training was complete)" if manifest.progress.get("complete") is True else ""
    ranks = ranks_of(manifest)
    facts = [
        ("checkpoint", str(found.name)),
        ("step", f"{found.step:,}{epochs}{finished}"),
        ("saved", when(manifest.created) + (f", {ago}" if ago else "")),
        ("ranks", f"{ranks:,}, which saved it together" if ranks > 1 else ""),
        ("why", clean(manifest.reason)),
        ("kept", clean(manifest.keep or "for ever") if manifest.keep is not None else ""),
        ("tags", clean(", ".join(manifest.tags))),
        ("notes", clean(manifest.notes)),
        ("metrics", clean(", ".join(f"{name} {value:.6g}" for name, value in manifest.metrics.items()))),
        ("continues", manifest.parent.name if manifest.parent else "nothing: the first of its run"),
        *_surroundings(manifest.environment),
        ("folder", clean(_place(store, found))),
    ]
    for name, text in facts:
        if text:
            print(f"{name:<11} {text}")
    print()
    for line in columns(["file", "holds", "size"], _files(manifest), left=(0, 1)):
        print(line)
    print()
    rows = [[clean(name), *_part(part)] for name, part in contains.items()]
    for line in columns(["tracked", "role", "tensors", "size"], rows, left=(0, 1)):
        print(line)


def _files(manifest: Manifest) -> list[list[str]]:
    """A row for each; where many ranks wrote, one for those that differ only in the rank."""
    if len(manifest.files) <= _FILES_SHOWN:
        return [[clean(file.name), clean(file.role), format_bytes(file.size)] for file in manifest.files]
    counts, sizes = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for file in manifest.files:
        alike = re.sub(r"-r[0-9]{5}(?=\.)", "-r*", file.name), file.role
        counts[alike] += 1
        sizes[alike] += file.size
    return [
        [f"{clean(name)} ({plural(count, 'file')})", clean(role), format_bytes(sizes[name, role])]
        for (name, role), count in counts.items()
    ]


def _surroundings(environment: Any) -> list[tuple[str, str]]:
    """The environment is an open record of the writer: any of it may be missing or of another kind."""
    versions = environment.get("versions")
    text = ", ".join(f"{k} {v}" for k, v in versions.items()) if isinstance(versions, dict) else ""
    return [
        ("host", clean(environment.get("host", ""))),
        ("versions", clean(text)),
        ("git commit", clean(environment.get("git_commit") or "")),
    ]


def _part(part: Any) -> list[str]:
    if not isinstance(part, dict):
        return ["", "", ""]
    size = part.get("bytes")
    return [
        clean(part.get("role", "")),
        clean(part.get("tensors", "")),
        format_bytes(size) if isinstance(size, int) else "",
    ]


def _print_tensors(tensors: list[dict[str, Any]]) -> None:
    print()
    rows = [
        [
            clean(tensor["type"]),
            "×".join(map(str, tensor["shape"])) or "scalar",
            format_bytes(tensor["bytes"]),
            clean(tensor["path"]),
        ]
        for tensor in tensors
    ]
    for line in columns(["type", "shape", "size", "tensor"], rows, left=(0, 3)):
        print(line)
