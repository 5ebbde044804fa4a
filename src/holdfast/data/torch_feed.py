"""Hands a loader's batches to training and knows, at every moment, exactly what training has consumed.

The position moves when a batch is handed out, never when a worker loads ahead.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from holdfast.data.audit_log import AuditRecord
from holdfast.data.position import (
    Begin,
    Position,
    Shape,
    after,
    begin,
    differences,
    position_from_state,
    position_to_state,
    restarted,
)
from holdfast.data.split import Turn
from holdfast.data.torch_sources import source_of
from holdfast.errors import IncompatibleState, SetupError


class Feed:
    """One loader, its position, and the batches that remain.

    `seed` and the epoch decide the order of a shuffling loader and, with `seed_samples`, the randomness
    inside every sample. With several ranks the order is split between them; `split=False` gives every rank
    all of it. `changed_data="restart"` begins the epoch again if the dataset is not the one that was saved.

    `whole_passes` is for evaluation: every call of `batches` gives a whole pass, whatever was saved. `steps`
    gives a value that changes with every step of training; where it is given, a loader that no step was ever
    made on is taken for evaluation by itself, because half a validation has no meaning.

    `limit` ends every pass after so many batches.
    """

    def __init__(
        self,
        loader: Any,
        *,
        name: str,
        seed: int,
        rank: int = 0,
        world: int = 1,
        seed_samples: bool = True,
        audit: Callable[[AuditRecord], None] | None = None,
        split: bool = True,
        whole_passes: bool = False,
        steps: Callable[[], Any] | None = None,
        changed_data: Literal["error", "restart"] = "error",
        limit: int | None = None,
    ) -> None:
        if not 0 <= rank < world:
            raise SetupError(f"rank {rank} of {world} is impossible for the loader {name!r}")
        self.name = name
        self._seed = seed
        self._audit = audit
        self._whole_passes = whole_passes
        self._steps = steps
        self._trained_on = steps is None and not whole_passes
        self._steps_at_batch: tuple[Any] | None = None  # while training holds a batch
        self._changed_data = changed_data
        self.limit = limit
        if not split:
            rank, world = 0, 1
        self._source = source_of(loader, seed_samples=seed_samples, rank=rank, world=world)
        self._at: Position | None = None
        self._restored = False
        self._calls = 0

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank."""
        return len(self._source)

    @property
    def trained_on(self) -> bool:
        """Whether a step was ever made while training held a batch of this loader."""
        if not self._trained_on and self._steps is not None and self._steps_at_batch is not None:
            self._trained_on = not self._whole_passes and (self._steps(),) != self._steps_at_batch
        return self._trained_on

    def batches(self, epoch: int) -> Iterator[Any]:
        """The batches of `epoch` that training has not had yet.

        A pass that was left unfinished is continued; a finished one is given whole again, except that right
        after a restart the epoch that had been finished gives nothing the first time.
        """
        restored, self._restored = self._restored, False
        self._calls += 1
        what = begin(self._at, restored=restored, epoch=epoch, name=self.name)
        if not self.trained_on:
            what = Begin.AFRESH
        if what is Begin.NOTHING:
            return iter(())
        if what is Begin.AFRESH or self._at is None:
            self._source.begin_pass(self._at)
            self._at = after(self._at, epoch, self._seed)
        return self._serve(self._at, self._calls)

    def _serve(self, at: Position, call: int) -> Iterator[Any]:
        limit = sys.maxsize if self.limit is None else self.limit
        turns = iter(self._source.open(at)) if at.batches < limit else iter(())
        for turn, batch in turns:
            self._require_newest(call)
            if self._audit is not None:
                self._audit(self._record(at, turn))
            at = replace(at, consumed=turn.consumed, served=at.served + 1, batches=at.batches + 1)
            self._at = at
            yield from self._lend(batch)
            self._require_newest(call)
            if at.batches >= limit:
                break
        self._at = replace(at, finished=True)
        # One that was cut short is not whole, and the audit does not ask that it be.
        if self._audit is not None and at.batches < limit:
            self._audit(replace(self._record(at, Turn([], at.consumed, 0)), ended=True))

    def _lend(self, batch: Any) -> Iterator[Any]:
        """Hand a batch out, and notice the step that may be made before it comes back."""
        self._steps_at_batch = None if self._steps is None else (self._steps(),)
        try:
            yield batch
        finally:
            self._trained_on = self.trained_on
            self._steps_at_batch = None

    def _require_newest(self, call: int) -> None:
        if call != self._calls:
            raise SetupError(
                f"two loops over the loader {self.name!r} run at once, so it has no one position",
                hint="wrap the loader twice, under two names",
            )

    def _record(self, at: Position, turn: Turn) -> AuditRecord:
        return AuditRecord(
            feed=self.name,
            served=at.served,
            epoch=at.epoch,
            passes=at.passes,
            consumed=turn.consumed,
            indices=turn.items,
            padding=turn.padding,
            size=self._source.shape.size,
            once_each=self._source.once_each,
            may_drop=self._source.may_drop,
        )

    def state_dict(self) -> dict[str, Any]:
        """Exactly what training has been handed so far: a few numbers, whatever the dataset's size."""
        state = position_to_state(self._at, self._source.shape)
        return {**state, "trained_on": self.trained_on, "source": self._source.remember()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Stand where `state_dict` was taken. Before the first `batches`; nothing is loaded yet."""
        if self._calls:
            raise SetupError(f"the loader {self.name!r} is in use, too late to restore its position")
        at, saved = position_from_state(state, self.name)
        if at is None:
            return
        self._trained_on = bool(state["trained_on"]) and not self._whole_passes
        changes = differences(saved, self._source.shape)
        if changes and self.trained_on and not at.finished:
            at = self._after_change(at, "; ".join(changes))
        elif not changes:
            self._source.put_back(dict(state["source"]), at)
        if at.seed != self._seed and self.trained_on and not at.finished:
            warnings.warn(
                f"the run's seed was {at.seed} and is {self._seed}: epoch {at.epoch} of the loader "
                f"{self.name!r} goes on with the old one, so that every sample comes once; the next epoch "
                "takes the new one",
                stacklevel=2,
            )
        self._at, self._restored = at, True

    @property
    def shape(self) -> Shape:
        return self._source.shape

    def is_like(self, other: Shape) -> bool:
        """Whether a position in `other` means something here."""
        return not differences(other, self.shape)

    def takes_up(self, epoch: int) -> bool:
        """Whether the next `batches(epoch)` goes on with a pass that training was in before a restart."""
        return self._restored and self.trained_on and self._at is not None and self._at.epoch == epoch

    def is_between_passes(self, epoch: int) -> bool:
        """Whether nothing of `epoch` is begun and unfinished."""
        return self._at is None or self._at.finished or self._at.epoch < epoch

    def follow(self, before: Feed) -> None:
        """Count on from `before`, whose loader this one's replaces. Only between passes."""
        self._at = before._at
        self._trained_on = before.trained_on and not self._whole_passes

    def _after_change(self, at: Position, what: str) -> Position:
        if self._changed_data == "restart":
            warnings.warn(
                f"the loader {self.name!r} is not the one that was saved ({what}): "
                f"epoch {at.epoch} starts again",
                stacklevel=3,
            )
            return restarted(at)
        raise IncompatibleState(
            f"the loader {self.name!r} is not the one that was saved in epoch {at.epoch}: {what}",
            hint='finish the epoch with the old data, or pass changed_data="restart" to begin it again',
        )
