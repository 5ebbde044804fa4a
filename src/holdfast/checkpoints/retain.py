"""Delete checkpoints nobody wants any more: only after a newer one is committed and read back whole.

When anything looks wrong (a listing shorter than what we wrote, a successor that does not verify) it
deletes nothing and says why. Damaged and foreign checkpoints are evidence; they are never touched.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from holdfast.checkpoints.find import Found, committed
from holdfast.checkpoints.retention import FLOOR, Best, Retention, parse_keep, select
from holdfast.checkpoints.verify import verify
from holdfast.errors import CorruptCheckpoint, InternalError, StoreError, StoreNotFound
from holdfast.format.names import CheckpointName, parse_checkpoint_name
from holdfast.stores.base import Store
from holdfast.stores.leftovers import sweep

log = logging.getLogger("holdfast")
__all__ = ["Best", "Ledger", "Pruning", "Retention", "parse_keep", "prune"]


@dataclass
class Ledger:
    """What this process knows of one store. `committed` lets `prune` notice a listing that lost entries."""

    committed: set[str] = field(default_factory=set)
    verified: set[str] = field(default_factory=set)
    damaged: set[str] = field(default_factory=set)
    resumed_from: str | None = None


@dataclass(frozen=True)
class Pruning:
    """What was done. `refused` says why nothing was; `failed` names what could not be removed."""

    retired: tuple[str, ...] = ()
    swept: tuple[str, ...] = ()
    kept: tuple[tuple[str, str], ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    refused: str | None = None
    # Something may go once the newest have been read back.
    waits: bool = False


def prune(
    store: Store,
    retention: Retention,
    ledger: Ledger,
    *,
    retired: Callable[[str, str], None] | None = None,
    spare: Collection[str] = (),
    read_back: bool = True,
) -> Pruning:
    """Retire what `retention` does not want and sweep what dead writers left. Raises Fenced, nothing else
    of the store's errors once deletion has begun: an old checkpoint too many hurts nobody.

    The newest two that verify stay, whatever else. Without `read_back` nothing is read here: only what the
    ledger says was read before counts, and nothing goes until that are two."""
    ours = set(ledger.committed)
    found = committed(store)
    listed = {str(one.name) for one in found}
    if not listed:
        return Pruning(refused=f"{store.where} lists no checkpoint at all")
    if lost := _unexplained(store, ledger, ours, listed):
        return Pruning(refused=f"{store.where} no longer lists {lost}, which this process committed")
    own = _own_names(store)
    kept = _reasons_to_keep(own, found, retention)
    kept.update({one.name: "still being copied outward" for one in found if str(one.name) in spare})
    doomed = [one for one in found if one.name not in kept]
    if doomed:
        # Unreadable ones stay in line: while the newest of all is damaged, what is older is precious.
        line = [one for one in found if one.manifest is None or one.manifest.store in own]
        whole = _newest_whole(store, line, ledger, read_back=read_back)
        if not read_back and len(whole) < FLOOR and str(line[0].name) not in ledger.damaged:
            return Pruning(kept=_texts(kept), waits=True)
        if (read_back and line[0].name not in whole) or len(whole) < FLOOR or _is_damaged(line[0], ledger):
            return Pruning(refused=f"fewer than {FLOOR} of the newest checkpoints verify", kept=_texts(kept))
        kept.update({name: f"among the newest {FLOOR} that verify" for name in whole if name not in kept})
        _keep_origin(kept, whole, ledger)
        doomed = [one for one in doomed if one.name not in kept]
    gone, failed = _retire(store, doomed, ledger, retired)
    swept, unswept = _sweep(store)
    return Pruning(tuple(gone), tuple(swept), _texts(kept), tuple(failed + unswept))


def _unexplained(store: Store, ledger: Ledger, ours: set[str], listed: set[str]) -> str | None:
    """One that this process committed and the listing lacks, though nobody has removed it.

    Somebody may have, by hand: asked for by name it is not there either, and others still are. A folder that
    was unmounted, or a listing that is cut short, lacks all of them, or has what it does not list."""
    for name in sorted(ours - listed):
        if not ours & listed:
            return name
        try:
            store.manifest(name)
        except StoreNotFound:
            log.warning("holdfast: %s in %s was removed by somebody else", name, store.where)
            ledger.committed.discard(name)
            ledger.verified.discard(name)
        except (StoreError, CorruptCheckpoint):
            return name
        else:
            return name
    return None


def _reasons_to_keep(
    own: Collection[str], found: list[Found], retention: Retention
) -> dict[CheckpointName, str]:
    ours = [one.manifest for one in found if one.manifest and one.manifest.store in own]
    kept = select(ours, retention)
    for one in found:
        if one.manifest is None:
            kept[one.name] = f"unreadable, left for inspection: {one.problem}"
        elif one.manifest.store not in own:
            kept[one.name] = "belongs to another store"
    return kept


def _own_names(store: Store) -> set[str]:
    # What a folder was copied with is its own; other stores are not copied by hand.
    return {store.uuid, *getattr(store, "ancestors", ())}


def _is_damaged(found: Found, ledger: Ledger) -> bool:
    return found.manifest is None or str(found.name) in ledger.damaged


def _newest_whole(
    store: Store, found: list[Found], ledger: Ledger, *, read_back: bool
) -> list[CheckpointName]:
    """The newest two that verify now, digests and all, unless this process did that already."""
    whole: list[CheckpointName] = []
    for one in found:
        if len(whole) == FLOOR:
            break
        seen = str(one.name) in ledger.verified
        if not seen and not read_back:
            continue
        # One thread, bytes only: this runs behind a training that wants the cores and the interpreter.
        if verify(store, one, deep=not seen, threads=1, headers=False).is_whole:
            ledger.verified.add(str(one.name))
            whole.append(one.name)
    return whole


def _keep_origin(kept: dict[CheckpointName, str], whole: list[CheckpointName], ledger: Ledger) -> None:
    """What this run resumed from stays until the run has two verified checkpoints of its own."""
    origin = parse_checkpoint_name(ledger.resumed_from or "")
    if origin is not None and sum(str(name) in ledger.committed for name in whole) < FLOOR:
        kept.setdefault(origin, "this run resumed from it and has not yet verified two of its own")


def _retire(
    store: Store, doomed: list[Found], ledger: Ledger, tell: Callable[[str, str], None] | None
) -> tuple[list[str], list[tuple[str, str]]]:
    gone: list[str] = []
    for one in reversed(doomed):
        name = str(one.name)
        # Before the attempt: a place that is half gone must not look like a listing that lost entries.
        ledger.committed.discard(name)
        ledger.verified.discard(name)
        try:
            store.retire(name)
        except StoreError as error:
            return gone, [(name, error.message)]
        gone.append(name)
        if tell is not None:
            tell(name, "no rule keeps it")
    return gone, []


def _sweep(store: Store) -> tuple[list[str], list[tuple[str, str]]]:
    swept: list[str] = []
    try:
        sweep(store, swept)
    except (StoreError, InternalError) as error:
        return swept, [("leftovers", error.message)]
    return swept, []


def _texts(kept: dict[CheckpointName, str]) -> tuple[tuple[str, str], ...]:
    return tuple((str(name), why) for name, why in sorted(kept.items(), reverse=True))
