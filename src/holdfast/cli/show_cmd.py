"""`holdfast show`: everything one checkpoint says about itself, and what the run has measured so far."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from holdfast.checkpoints.find import Found, committed
from holdfast.checkpoints.read import require_manifest
from holdfast.cli.exit_codes import OK
from holdfast.cli.json_output import add_json_option, print_json
from holdfast.cli.list_cmd import summary
from holdfast.cli.measured_policy import Measured, measure
from holdfast.cli.run_folder import add_run_argument, choose, open_run
from holdfast.cli.stored_state import StoredTensor, leaves_of, read_layouts
from holdfast.cli.terminal import age, clean, columns, when
from holdfast.clock import SystemClock
from holdfast.stores.directory import CKPT, DirectoryStore
from holdfast.units import format_bytes


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
    tensors = _tensors(store, found) if options.tensors else None
    measured = measure(store, found) if options.policy else None
    if options.json:
        print_json(_described(store, found, tensors, measured))
        return OK
    _print(store, found)
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


def _tensors(store: DirectoryStore, found: Found) -> list[dict[str, Any]]:
    leaves = leaves_of(found, read_layouts(store, found)).values()
    return [
        {"path": leaf.label, "type": t.kind, "shape": list(t.shape), "bytes": t.nbytes, "file": t.file}
        for leaf in leaves
        if isinstance(t := leaf.value, StoredTensor)
    ]


def _described(
    store: DirectoryStore, found: Found, tensors: list[dict[str, Any]] | None, measured: Measured | None
) -> dict[str, Any]:
    manifest = require_manifest(found)
    place = Path(store.where) / CKPT / str(found.name)
    said: dict[str, Any] = {
        "run": store.where,
        **summary(store, found),
        "progress": manifest.progress,
        "contains": manifest.contains,
        "files": [
            {"name": file.name, "role": file.role, "bytes": file.size, "path": place / file.name}
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


def _print(store: DirectoryStore, found: Found) -> None:
    manifest = require_manifest(found)
    ago = age(manifest.created, SystemClock().wall())
    epoch = manifest.progress.get("epoch")
    # Whoever saves through another framework's loop does not tell us of its epochs.
    epochs = "" if epoch is None else f", {clean(epoch)} epochs completed"
    finished = " (training was complete)" if manifest.progress.get("complete") is True else ""
    facts = [
        ("checkpoint", str(found.name)),
        ("step", f"{found.step:,}{epochs}{finished}"),
        ("saved", when(manifest.created) + (f", {ago}" if ago else "")),
        ("why", clean(manifest.reason)),
        ("kept", clean(manifest.keep or "for ever") if manifest.keep is not None else ""),
        ("tags", clean(", ".join(manifest.tags))),
        ("notes", clean(manifest.notes)),
        ("metrics", clean(", ".join(f"{name} {value:.6g}" for name, value in manifest.metrics.items()))),
        ("continues", manifest.parent.name if manifest.parent else "nothing: the first of its run"),
        *_surroundings(manifest.environment),
        ("folder", clean(Path(store.where) / CKPT / str(found.name))),
    ]
    for name, text in facts:
        if text:
            print(f"{name:<11} {text}")
    print()
    rows = [[clean(file.name), clean(file.role), format_bytes(file.size)] for file in manifest.files]
    for line in columns(["file", "holds", "size"], rows, left=(0, 1)):
        print(line)
    print()
    rows = [[clean(name), *_part(part)] for name, part in manifest.contains.items()]
    for line in columns(["tracked", "role", "tensors", "size"], rows, left=(0, 1)):
        print(line)


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
