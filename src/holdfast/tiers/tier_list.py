"""tiers.json in a run's folder: which tiers the run has, for whoever comes without the training script.

Tiers that an earlier attempt had and this one has not are remembered too: they may hold checkpoints. A list
that was copied with the folder names the places of another run, and counts for nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from holdfast.errors import CorruptCheckpoint, SetupError, StoreError
from holdfast.format.sealed import seal, unseal
from holdfast.stores.os_errors import store_errors
from holdfast.stores.store import CheckpointStore
from holdfast.stores.stored_file import read_regular
from holdfast.tiers.words import Tier

FILE = "tiers.json"
_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class TierList:
    """`now` are written and read, `former` only read."""

    now: tuple[Tier, ...] = ()
    former: tuple[Tier, ...] = ()


def remember_tiers(run: str | os.PathLike[str], tiers: Sequence[Tier]) -> TierList:
    """Record the tiers of this attempt, durably. The run's folder must exist."""
    before = recall_tiers(run)
    places = {tier.location for tier in tiers}
    former = [tier for tier in (*before.now, *before.former) if tier.location not in places]
    said = TierList(tuple(tiers), tuple({tier.location: tier for tier in reversed(former)}.values()))
    if said != before:
        record = {
            "format": 1,
            "run": _uuid(run),
            "now": [tier.to_json() for tier in said.now],
            "former": [tier.to_json() for tier in said.former],
        }
        _replace(os.fspath(run), seal(record))
    return said


def recall_tiers(run: str | os.PathLike[str]) -> TierList:
    """What was recorded; empty if nothing was."""
    path = os.path.join(os.fspath(run), FILE)
    try:
        with store_errors("read the list of tiers", path):
            record = unseal(read_regular(path, _MAX_BYTES))
        if record.get("run") not in (None, _uuid(run)):
            return TierList()
        return TierList(_tiers(record["now"]), _tiers(record["former"]))
    except StoreError:
        if not os.path.lexists(path):
            return TierList()
        raise
    except (CorruptCheckpoint, SetupError, KeyError, TypeError) as error:
        raise StoreError(
            f"{path} is damaged: {error}", hint="move it away and give tiers= again, as the run had them"
        ) from error


def _uuid(run: str | os.PathLike[str]) -> str | None:
    try:
        return CheckpointStore(run).uuid
    except StoreError:
        return None


def _tiers(raw: Any) -> tuple[Tier, ...]:
    known = {field.name for field in fields(Tier)}
    return tuple(Tier(**{name: one[name] for name in known}) for one in raw)


def _replace(run: str, data: bytes) -> None:
    part = os.path.join(run, f"{FILE}.{os.urandom(4).hex()}.part")
    with store_errors("record the tiers", run):
        with open(part, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, os.path.join(run, FILE))
        folder = os.open(run, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
