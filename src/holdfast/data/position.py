"""Where training is in a loader's data, and what a call for an epoch's batches means there. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from holdfast.data.seeding import derive
from holdfast.errors import IncompatibleState, SetupError

# 2 since passes know their recipe. Positions of version 1 are read, and their pass ends as it was begun.
VERSION = 2
RECIPE = 2  # what goes into the seeds of a new pass; see `Position.key`


@dataclass(frozen=True, slots=True)
class Position:
    """`consumed` counts what all ranks together were handed of this pass, in items of the loader's order.

    `passes` counts whole passes over one epoch's number (a validation set read twice), `served` this rank's
    batches since the run began, `batches` those of this pass, whichever number of ranks they were handed to.
    `seed` is the seed that this pass was begun with, None where torch's own draws decide it. `digest` is
    that of the indices handed out, None where nobody counted.
    """

    epoch: int
    seed: int | None
    consumed: int = 0
    served: int = 0
    passes: int = 0
    finished: bool = False
    batches: int = 0
    digest: int | None = None
    recipe: int = 1

    def key(self, purpose: int, salt: int) -> int:
        """What the random numbers of this pass begin with. `salt` stands for the loader, and for the rank
        where that reads data of its own: loaders of equal length must not have one order, nor ranks one
        stream."""
        if self.recipe == 1:
            return derive(purpose, self.seed or 0, self.epoch)
        return derive(purpose, self.seed or 0, self.epoch, salt, self.passes)


class Begin(Enum):
    REST = "the rest of the pass"
    NOTHING = "nothing: the pass was finished before the restart"
    AFRESH = "a new pass from the beginning"


def begin(at: Position | None, *, restored: bool, epoch: int, name: str) -> Begin:
    """What `batches(epoch)` gives, standing `at` a position (None before the first pass).

    A pass that was left unfinished is continued, in the same process as after a restart. A finished one gives
    a whole pass again, except once: right after a restart the finished epoch gives nothing, because the loop
    that asks is the one that had already finished it.
    """
    if at is None or epoch > at.epoch:
        return Begin.AFRESH
    if epoch < at.epoch:
        raise SetupError(
            f"the loader {name!r} stands in epoch {at.epoch} and was asked for epoch {epoch}",
            hint="epochs only go forward; give the second use of the loader a name of its own",
        )
    if not at.finished:
        return Begin.REST
    return Begin.NOTHING if restored else Begin.AFRESH


def after(at: Position | None, epoch: int, seed: int | None) -> Position:
    """The beginning of a new pass."""
    new = Position(epoch=epoch, seed=seed, digest=0, recipe=RECIPE)
    if at is None:
        return new
    return replace(new, served=at.served, passes=at.passes + 1 if at.epoch == epoch else 0)


@dataclass(frozen=True)
class Shape:
    """What a loader and a saved position must agree on for the position to mean anything.

    `batch` is set only where positions are counted in batches; `sharers` only where the user's own sampler
    splits the data between that many ranks. `fingerprint` is the dataset's own word for its content.
    """

    kind: str
    size: int | None
    batch: int | None = None
    sharers: int = 0
    fingerprint: str | None = None


def position_to_state(at: Position | None, shape: Shape) -> dict[str, Any]:
    return {
        "version": VERSION,
        "position": None if at is None else asdict(at),
        "shape": asdict(shape),
    }


def position_from_state(state: Mapping[str, Any], name: str) -> tuple[Position | None, Shape]:
    try:
        if state["version"] not in (1, VERSION):
            raise IncompatibleState(
                f"the data position of {name!r} has version {state['version']}, newer than {VERSION}",
                hint="resume with the version of holdfast that wrote it, or a newer one",
            )
        raw = state["position"]
        return None if raw is None else Position(**raw), Shape(**state["shape"])
    except (KeyError, TypeError) as error:
        raise IncompatibleState(f"the data position of {name!r} cannot be read: {error!r}") from error


def differences(saved: Shape, now: Shape) -> list[str]:
    """Every way in which the loader is not the one that the position was saved with, for people to read."""
    found = []
    if saved.kind != now.kind:
        found.append(f"its order was {saved.kind} and is {now.kind}")
    if saved.size != now.size:
        found.append(f"it had {_count(saved.size)} and has {_count(now.size)}")
    if saved.batch != now.batch:
        found.append(f"its batches held {saved.batch} and hold {now.batch}")
    if saved.sharers != now.sharers:
        found.append(
            f"its sampler split it for {saved.sharers or 1} ranks and splits it for {now.sharers or 1}"
        )
    if None not in (saved.fingerprint, now.fingerprint) and saved.fingerprint != now.fingerprint:
        found.append(f"its fingerprint was {saved.fingerprint} and is {now.fingerprint}")
    return found


def _count(size: int | None) -> str:
    return "an unknown number of items" if size is None else f"{size:,} items"


def restarted(at: Position) -> Position:
    """The same epoch from its beginning."""
    return replace(at, consumed=0, batches=0, finished=False, digest=None if at.digest is None else 0)
