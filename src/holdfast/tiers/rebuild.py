"""After a loss: the files that a node must have, from copies where there are any, otherwise from parity.

Whatever is written was checked against the manifest, chunk by chunk. Nothing is guessed: where too little is
left, the answer says which files are gone and which nodes would have been needed.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from holdfast.errors import HoldfastError, RestoreError
from holdfast.format.manifest import FileRecord, parse_manifest
from holdfast.format.sealed import seal_of
from holdfast.stores.node_side import NodeSide
from holdfast.tiers.bandwidth import Bandwidth, Cancelled
from holdfast.tiers.checked_files import CheckedFiles, ChunkLost
from holdfast.tiers.protect import PulledFile
from holdfast.tiers.protect_stored import is_stored
from holdfast.tiers.rebuild_parity import ParityOfCheckpoint


@dataclass(frozen=True)
class Rebuilt:
    """What one node has again. `from_parity` are those of which at least one chunk had to be computed."""

    name: str
    good_already: tuple[str, ...]
    copied: tuple[str, ...]
    from_parity: tuple[str, ...]
    bytes_read: int


def rebuild(
    manifest: bytes,
    me: str,
    stores: Mapping[str, NodeSide],
    wanted: Collection[str],
    *,
    bandwidth: Bandwidth | None = None,
    cancel: threading.Event | None = None,
) -> Rebuilt:
    """Bring the `wanted` files into the store of node `me`, and commit them there.

    `stores` has every node that may be reached, by its logical name, this one's too. What this node has
    already is checked and replaced only if it is damaged. RestoreError says what is beyond repair; files that
    could be had are kept for the next attempt, but the place is not committed. Afterwards `protect` gives the
    node its share for the others again.
    """
    parsed, mine = parse_manifest(manifest), stores[me]
    name = str(parsed.name)
    records = [record for record in parsed.files if record.name in wanted]
    unknown = set(wanted) - {record.name for record in records}
    if unknown:
        raise RestoreError(f"checkpoint {name} has no file {', '.join(sorted(unknown))}")
    good: list[str] = []
    copied: list[str] = []
    computed: list[str] = []
    gone: dict[str, str] = {}
    with CheckedFiles(name, {me: mine, **stores}, bandwidth=bandwidth, cancel=cancel) as files:
        files.know(parsed.files)
        parity = ParityOfCheckpoint(files, seal_of(manifest))
        for record in records:
            if is_stored(mine, name, record):
                good.append(record.name)
                continue
            source = MendedFile(record, files, parity)
            try:
                mine.put(name, source, expect=record, replace=record.name in files.held.get(me, {}))
            except Cancelled:
                raise
            except RestoreError as error:
                gone[record.name] = error.message
                continue
            (computed if source.was_computed else copied).append(record.name)
        if gone:
            raise _too_little_left(name, gone, files)
        mine.settle(name, manifest)
        return Rebuilt(name, tuple(good), tuple(copied), tuple(computed), files.bytes_read)


class MendedFile(PulledFile):
    """Each chunk from a node that has it good; one that nobody has, from parity."""

    def __init__(self, record: FileRecord, files: CheckedFiles, parity: ParityOfCheckpoint) -> None:
        super().__init__(record, self._chunk)
        self.was_computed = False
        self._files = files
        self._parity = parity

    def _chunk(self, file: str, index: int, buffer: memoryview) -> None:
        try:
            self._files.chunk_into(file, index, buffer)
        except ChunkLost as lost:
            self._parity.chunk_into(lost, buffer)
            self.was_computed = True


def _too_little_left(name: str, gone: Mapping[str, str], files: CheckedFiles) -> HoldfastError:
    silent = [f"{node} ({why})" for node, why in sorted(files.silent.items())]
    nodes = f"; nodes that could not help: {', '.join(silent)}" if silent else ""
    details = "".join(f"\n  {file}: {why}" for file, why in sorted(gone.items()))
    return RestoreError(
        f"{len(gone)} files of {name} cannot be rebuilt: {', '.join(sorted(gone))}{nodes}{details}",
        hint="bring those nodes back, restore from an outer tier, or take an older checkpoint",
    )
