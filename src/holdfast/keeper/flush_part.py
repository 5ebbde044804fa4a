"""One keeper's part of a flush: some files of a checkpoint, from wherever they are good, to the run's folder.

Every chunk is checked when it is read, and what was written is compared with the manifest. The leader
commits, once all parts are there.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.errors import CorruptCheckpoint, HoldfastError, RestoreError
from holdfast.format.manifest import parse_manifest
from holdfast.format.sealed import seal_of
from holdfast.stores.base import Store
from holdfast.stores.store import CheckpointStore
from holdfast.tiers.checked_files import CheckedFiles
from holdfast.tiers.rebuild import MendedFile, ParityOfCheckpoint


@dataclass(frozen=True)
class Part:
    """`seal` tells the manifest apart from any other of the same name. `epoch` is the leader's claim."""

    run: str
    epoch: int
    name: str
    seal: str
    files: tuple[str, ...]


def manifest_with(seal: str, name: str, stores: Mapping[str, Store]) -> bytes:
    """From whichever node has exactly this one."""
    for store in stores.values():
        # A node that cannot answer is passed over: another can.
        with contextlib.suppress(HoldfastError):
            manifest = store.manifest(name)
            if seal_of(manifest) == seal:
                return manifest
    raise RestoreError(f"no node has the manifest of {name} any more")


def write_part(part: Part, stores: Mapping[str, Store], cancel: threading.Event) -> int:
    """Bytes written. RestoreError where too little is left of a file."""
    manifest = manifest_with(part.seal, part.name, stores)
    wanted = [record for record in parse_manifest(manifest).files if record.name in part.files]
    if len(wanted) != len(part.files):
        raise RestoreError(f"{part.name} does not have all the files that were asked for")
    written = 0
    with CheckpointStore(part.run) as target, CheckedFiles(part.name, stores, cancel=cancel) as files:
        target.join(part.epoch)
        files.know(parse_manifest(manifest).files)
        parity = ParityOfCheckpoint(files, part.seal)
        for record in wanted:
            came = target.write(part.name, MendedFile(record, files, parity))
            if replace(came, role=record.role) != record:
                raise CorruptCheckpoint(
                    f"{record.name} came to {target.where} with other bytes than its manifest says"
                )
            written += record.size
    return written


def share_out(
    sizes: Mapping[str, int], holders: Mapping[str, Sequence[int]], keepers: Sequence[int]
) -> dict[int, list[str]]:
    """Which keeper writes which file: one that has it, if any, and of those the one with least to do."""
    load = dict.fromkeys(sorted(keepers), 0)
    shares: dict[int, list[str]] = {number: [] for number in load}
    for file in sorted(sizes, key=lambda name: (-sizes[name], name)):
        able = [number for number in holders.get(file, ()) if number in load] or list(load)
        chosen = min(able, key=lambda number: (load[number], number))
        load[chosen] += sizes[file]
        shares[chosen].append(file)
    return {number: files for number, files in shares.items() if files}
