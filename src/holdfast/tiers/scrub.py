"""Look at every copy in every tier, and put right what another copy can put right.

Removes nothing but damaged files whose replacement is there. Where the last good copy of anything is gone, it
says so and changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from holdfast.checkpoints.verified import Copy, VerifiedFile
from holdfast.errors import CorruptCheckpoint, HoldfastError, StoreNotFound
from holdfast.format.manifest import FileRecord, parse_manifest
from holdfast.format.names import CheckpointName, parse_checkpoint_name
from holdfast.stores.base import Store
from holdfast.tiers.bandwidth import Bandwidth
from holdfast.tiers.copying import LadderSource
from holdfast.tiers.ladder import Ladder
from holdfast.tiers.named_tier import NamedTier


@dataclass
class CopyState:
    """One checkpoint in one tier. `repaired` says what is right again, `refused` why something is not."""

    tier: NamedTier
    problems: list[str] = field(default_factory=list)
    repaired: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    bytes_checked: int = 0
    bad_files: dict[str, FileRecord] = field(default_factory=dict)
    bad_manifest: bool = False

    @property
    def is_whole(self) -> bool:
        """As it is now, after any repair."""
        return len(self.repaired) == len(self.bad_files) + self.bad_manifest


@dataclass
class Scrubbed:
    """One checkpoint in all tiers that hold it. `lost` names what is good in none of them."""

    name: CheckpointName
    copies: list[CopyState]
    lost: list[str] = field(default_factory=list)

    @property
    def is_restorable(self) -> bool:
        return not self.lost

    @property
    def is_whole(self) -> bool:
        return self.is_restorable and all(copy.is_whole for copy in self.copies)


def scrub(
    tiers: Sequence[NamedTier],
    *,
    step: int | None = None,
    deep: bool = True,
    repair: bool = False,
    checked: Callable[[int], None] | None = None,
) -> list[Scrubbed]:
    """Every copy of every checkpoint (of `step`), newest first.

    `repair` needs `deep`, and tiers that this process has claimed. `checked(count)` hears of bytes compared.
    """
    ladder = Ladder(tiers)
    names = [name for name in map(parse_checkpoint_name, ladder.names()) if name]
    holding = {tier.name: frozenset(tier.store.names()) for tier in tiers}
    found = []
    for name in sorted((n for n in names if step in (None, n.step)), reverse=True):
        copies = [CopyState(tier) for tier in tiers if str(name) in holding[tier.name]]
        one = Scrubbed(name, copies)
        found.append(one)
        _look(ladder, one, deep, checked or (lambda count: None))
        if repair and deep:
            _repair(ladder, one)
    return found


def _look(ladder: Ladder, one: Scrubbed, deep: bool, checked: Callable[[int], None]) -> None:
    name = str(one.name)
    try:
        right = ladder.manifest(name)
        manifest = parse_manifest(right)
    except HoldfastError as error:
        one.lost.append(f"no manifest of {name} is whole: {error.message}")
        for copy in one.copies:
            copy.bad_manifest = True
            copy.problems.append(error.message)
        return
    for copy in one.copies:
        wrong = manifest_problems(copy.tier.store, name, right)
        copy.problems += wrong
        copy.bad_manifest = bool(wrong)
    for record in manifest.files:
        good: set[int] = set()
        for copy in one.copies:
            good |= _look_at_file(copy, name, record, deep, checked)
        bad = sorted(set(range(len(record.digests))) - good)
        if bad or (not record.digests and all(record.name in copy.bad_files for copy in one.copies)):
            one.lost.append(f"{record.name}: chunk {', '.join(map(str, bad[:5]))} is good in no tier")


def _look_at_file(
    copy: CopyState, name: str, record: FileRecord, deep: bool, checked: Callable[[int], None]
) -> set[int]:
    """The chunks that are good here. What is wrong is noted."""
    store, where = copy.tier.store, f"{record.name} of {name} in {copy.tier.store.where}"

    def count(count: int) -> None:
        copy.bytes_checked += count
        checked(count)

    here = Copy(store.where, lambda: store.open(name, record.name))
    try:
        with VerifiedFile(record, name, [here]).opened() as file:
            bad = file.bad_chunks(threads=1, checked=count, unreadable_too=True) if deep else []
    except StoreNotFound:
        if not copy.tier.partial:
            _note(copy, record, f"{where} is missing")
        return set()
    except HoldfastError as error:
        # A file of another size, among others: the ladder passes over it, its chunks cannot serve a repair.
        _note(copy, record, error.message)
        return set()
    if bad:
        chunks = ", ".join(str(one.index) for one in bad[:5])
        _note(copy, record, f"{where} is damaged in chunk {chunks}")
    return set(range(len(record.digests))) - {one.index for one in bad}


def _note(copy: CopyState, record: FileRecord, problem: str) -> None:
    copy.bad_files[record.name] = record
    copy.problems.append(problem)


def _repair(ladder: Ladder, one: Scrubbed) -> None:
    if one.lost:
        for copy in one.copies:
            if copy.problems:
                copy.refused += one.lost
        return
    name = str(one.name)
    for copy in one.copies:
        for record in copy.bad_files.values():
            try:
                mend_file(ladder, copy.tier.store, name, record)
                copy.repaired.append(record.name)
            except HoldfastError as error:
                copy.refused.append(f"{record.name}: {error.message}")
        if copy.bad_manifest:
            try:
                _repair_manifest(ladder, copy, name)
                copy.repaired.append("the manifest")
            except HoldfastError as error:
                copy.refused.append(f"the manifest: {error.message}")


def _repair_manifest(ladder: Ladder, copy: CopyState, name: str) -> None:
    right = ladder.manifest(name)
    try:
        other = copy.tier.store.manifest(name)
    except HoldfastError:
        other = right
    if other != right:
        # Whole, only different: nobody can say which is meant, so neither is touched.
        raise CorruptCheckpoint(f"{copy.tier.name} holds another checkpoint of this name")
    copy.tier.store.publish(name, right)


# ---- Put right bytes in the place of damaged ones. The one exception to "committed files never change".
#
# A damaged file is not what was committed. Its replacement is written beside it, made durable and
# compared with the manifest's digests; only then does the damaged one go. At no moment is there less than
# there was before.


def mend_file(ladder: Ladder, store: Store, name: str, record: FileRecord) -> None:
    """Replace one file by the good chunks of all tiers, this one's own among them. Raises and changes nothing
    if any chunk is good nowhere."""
    file = ladder.open(name, record.name)
    try:
        source = LadderSource(record, file, Bandwidth(None), threading.Event())
        store.write(name, source, expect=record, replace=True)
    finally:
        file.close()


def manifest_problems(store: Store, name: str, right: bytes) -> list[str]:
    """What is wrong with a tier's own commit record, both copies where there are two."""
    try:
        found = store.manifest(name)
    except HoldfastError as error:
        return [error.message]
    if found != right:
        return [f"{store.where} holds another checkpoint of the name {name}"]
    return store.damaged_records(name, right)
