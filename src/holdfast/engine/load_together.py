"""Every rank loads the same checkpoint: the newest that all of them can read."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Protocol, TypeVar

from holdfast.checkpoints.find import Found, committed, look
from holdfast.checkpoints.read import none_is_whole
from holdfast.errors import CorruptCheckpoint, HoldfastError, IncompatibleState, RestoreError, StoreError
from holdfast.format.names import parse_checkpoint_name
from holdfast.ranks.team import Team
from holdfast.stores.base import Store

T = TypeVar("T")


class Mending(Protocol):
    """Puts right what nodes have lost of a checkpoint. Every rank asks equally often."""

    @property
    def why(self) -> str: ...

    def mend(self, found: Found, *, verify: bool) -> bool: ...


def load_together(
    store: Store,
    team: Team,
    limit: float,
    load: Callable[[Found], T],
    reject: Callable[[Found, str], None],
    mending: Mending | None = None,
) -> T | None:
    """What `load` makes of it on this rank. Rank 0 proposes, all vote, one rank that cannot read means the
    next older one for everybody."""
    listed = [(str(found.name), found.sha256) for found in committed(store)] if team.leads else []
    names = json.loads(team.share("candidates", json.dumps(listed).encode(), limit))
    reasons: list[str] = []
    for text, seal in names:
        name = parse_checkpoint_name(text)
        if name is None:
            raise RestoreError(f"rank 0 proposes to restore {text!r}, which names no checkpoint")
        found = look(store, name)
        if seal is not None and found.sha256 not in (None, seal):
            found = Found(name, None, problem="another manifest bears this name on another node")
        if mending is not None:
            mending.mend(found, verify=False)

        def attempt(found: Found = found) -> tuple[T | None, HoldfastError | None, str | None]:
            loaded, failure = _try(load, found)
            return loaded, failure, _first_failure(team.gather("can read", _words(failure), limit))

        loaded, failure, why = attempt()
        if why is not None and mending is not None and not why.startswith(_INCOMPATIBLE):
            # Nothing is missing, so something is damaged.
            lost = mending.why
            if not lost and mending.mend(found, verify=True):
                loaded, failure, why = attempt()
            why = why and "; ".join(filter(None, [why, lost or mending.why]))
        if why is None:
            return loaded
        if isinstance(failure, IncompatibleState):
            raise failure
        if why.startswith(_INCOMPATIBLE):
            raise IncompatibleState(why.removeprefix(_INCOMPATIBLE))
        loaded = None  # its memory, before the next one is read
        reasons.append(f"{name}: {why}")
        reject(found, why)
    if not names:
        return None
    raise none_is_whole(store, reasons)


_INCOMPATIBLE = "! "


def _try(load: Callable[[Found], T], found: Found) -> tuple[T | None, HoldfastError | None]:
    try:
        return load(found), None
    except (CorruptCheckpoint, StoreError, IncompatibleState) as error:
        return None, error


def _words(failure: HoldfastError | None) -> bytes:
    if failure is None:
        return b""
    mark = _INCOMPATIBLE if isinstance(failure, IncompatibleState) else ""
    return (mark + failure.message).encode()


def _first_failure(votes: list[bytes]) -> str | None:
    failed = [(rank, vote.decode()) for rank, vote in enumerate(votes) if vote]
    if not failed:
        return None
    rank, why = failed[0]
    mark = _INCOMPATIBLE if why.startswith(_INCOMPATIBLE) else ""
    return f"{mark}rank {rank}: {why.removeprefix(_INCOMPATIBLE)}"
