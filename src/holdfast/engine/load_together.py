"""Every rank loads the same checkpoint: the newest that all of them can read."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Protocol, TypeVar

from holdfast.checkpoints.find import Found, committed, look, look_again
from holdfast.checkpoints.proof import PROVEN, READING, in_doubt, is_doubtful, persist
from holdfast.checkpoints.read import none_is_whole
from holdfast.errors import (
    HoldfastError,
    IncompatibleState,
    NewerFormat,
    RestoreError,
    StoreError,
    StoreUnavailable,
)
from holdfast.format.names import CheckpointName, parse_checkpoint_name
from holdfast.ranks.team import Team
from holdfast.stores.base import Store
from holdfast.stores.patience import Patience
from holdfast.tiers.named_tier import HoldersAway

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
    patience: Patience = READING,
) -> T | None:
    """What `load` makes of it on this rank. Rank 0 proposes, all vote, one rank that proves it damaged means
    the next older one for everybody; one that cannot tell stops them all."""
    found_here = persist(lambda: committed(store), patience) if team.leads else []
    listed = [(str(found.name), found.sha256) for found in found_here]
    names = json.loads(team.share("candidates", json.dumps(listed).encode(), limit))
    reasons: list[str] = []
    for text, seal in names:
        name = parse_checkpoint_name(text)
        if name is None:
            raise RestoreError(f"rank 0 proposes to restore {text!r}, which names no checkpoint")
        found = _look(store, name, patience)
        if seal is not None and found.sha256 not in (None, seal):
            found = Found(name, None, problem="another manifest bears this name on another node")
        if mending is not None:
            mending.mend(found, verify=False)

        def attempt(found: Found = found) -> tuple[T | None, HoldfastError | None, str | None]:
            loaded, failure = _try(store, load, found, patience)
            return loaded, failure, _first_failure(team.gather("can read", _words(failure), limit))

        loaded, failure, why = attempt()
        if why is not None and mending is not None and not why.startswith((_INCOMPATIBLE, _DOUBTFUL)):
            # Nothing is missing, so something is damaged.
            lost = mending.why
            if not lost and mending.mend(found, verify=True):
                loaded, failure, why = attempt()
            why = why and "; ".join(filter(None, [why, lost or mending.why]))
        if why is None:
            return loaded
        if why.startswith(_INCOMPATIBLE):
            mine = isinstance(failure, (IncompatibleState, NewerFormat))
            raise failure if mine and failure else IncompatibleState(why.removeprefix(_INCOMPATIBLE))
        if why.startswith(_DOUBTFUL):
            raise in_doubt(name, store.where, StoreUnavailable(why.removeprefix(_DOUBTFUL)))
        loaded = None  # its memory, before the next one is read
        reasons.append(f"{name}: {why}")
        reject(found, why)
    if not names:
        return None
    raise none_is_whole(store, reasons)


# Before what a rank says: it must not be passed over, because it does not fit, or because nobody can tell.
_INCOMPATIBLE, _DOUBTFUL = "! ", "? "


def _look(store: Store, name: CheckpointName, patience: Patience) -> Found:
    """What its manifest says; read patiently, because all ranks will act on it."""
    found = look(store, name)
    try:
        return persist(lambda: _read(look_again(store, found)), patience)
    except StoreError:
        return found


def _read(found: Found) -> Found:
    if found.error is not None and is_doubtful(found.error):
        raise found.error
    return found


def _try(
    store: Store, load: Callable[[Found], T], found: Found, patience: Patience
) -> tuple[T | None, HoldfastError | None]:
    try:
        return persist(lambda: load(look_again(store, found)), patience), None
    except (*PROVEN, StoreError, IncompatibleState, NewerFormat) as error:
        return None, error


def _words(failure: HoldfastError | None) -> bytes:
    if failure is None:
        return b""
    mark = _INCOMPATIBLE if isinstance(failure, (IncompatibleState, NewerFormat)) else ""
    if is_doubtful(failure) and not isinstance(failure, HoldersAway):
        mark = _DOUBTFUL
    return (mark + failure.message).encode()


def _first_failure(votes: list[bytes]) -> str | None:
    """One rank's proof decides, also where another cannot tell."""
    failed = [(_weight(vote.decode()), rank, vote.decode()) for rank, vote in enumerate(votes) if vote]
    if not failed:
        return None
    _, rank, why = min(failed)
    mark = why[:2] if why.startswith((_INCOMPATIBLE, _DOUBTFUL)) else ""
    return f"{mark}rank {rank}: {why.removeprefix(mark)}"


def _weight(vote: str) -> int:
    return 0 if vote.startswith(_INCOMPATIBLE) else 2 if vote.startswith(_DOUBTFUL) else 1
