"""Hands a loader's batches to training and knows, at every moment, exactly what training has consumed.

The position moves when a batch is handed out, never when a worker loads ahead.
"""

from __future__ import annotations

import logging
import sys
import threading
import warnings
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NoReturn

from holdfast.data.ahead import Ahead
from holdfast.data.audit_log import AuditRecord
from holdfast.data.digest import with_indices
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
from holdfast.data.seeding import derive
from holdfast.data.source import Source
from holdfast.data.split import Turn
from holdfast.data.torch_as_torch import AsTorch
from holdfast.data.torch_sources import source_of
from holdfast.errors import IncompatibleState, InternalError, SetupError

log = logging.getLogger("holdfast")


class Feed:
    """One loader, its position, and the batches that remain.

    Without a `seed` the loader is read as torch reads it: what it draws decides the order and the samples.
    With one, the seed, the epoch and the name decide the order of a shuffling loader and, with
    `seed_samples`, the randomness inside every sample; several ranks split that order between them, and
    `split=False` gives every rank all of it. `changed_data="restart"` begins the epoch again if the dataset
    is not the one that was saved.

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
        seed: int | None,
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
        self._make_from = partial(source_of, seed_samples=seed_samples, rank=rank, world=world)
        self._rank = rank
        self._loader: Any = loader
        self._opened: Source | None = self._make(as_torch=seed is None)
        # Between passes, where nobody but its user is to keep the loader alive.
        self._parked: tuple[Shape, dict[str, Any]] | None = None
        self.may_let_go = False
        self._lock = threading.Lock()
        self._ahead = Ahead()
        # Where the last batches were handed out from: those that were only fetched ahead come again.
        self._recent: deque[tuple[Position, Any]] = deque(maxlen=256)
        self._again = 0
        self._unsure = False
        self._is_old_way = False  # the pass under way was begun by the other of the two ways, and ends by it
        self._at: Position | None = None
        self._restored = False
        self._calls = 0

    def _make(self, *, as_torch: bool) -> Source:
        return self._make_from(self._loader, as_torch=as_torch)

    @property
    def _source(self) -> Source:
        if self._opened is None:
            raise InternalError(f"the loader {self.name!r} was let go and not given again")
        return self._opened

    @_source.setter
    def _source(self, source: Source) -> None:
        self._opened = source

    def attach(self, loader: Any) -> None:
        """The loader again, of which nothing was kept between its passes."""
        if self._opened is None:
            self._loader, self._parked = loader, None
            self._opened = self._make(as_torch=self._seed is None)

    def _let_go(self) -> None:
        """A loop that makes a loader per rollout would keep all of them, with their data."""
        source = self._source
        if self.may_let_go and isinstance(source, AsTorch) and source.is_light:
            self._parked = source.shape, source.remember()
            source.close()
            self._opened = self._loader = None

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank."""
        return len(self._source)

    @property
    def trained_on(self) -> bool:
        """Whether a step was ever made while training held a batch of this loader."""
        if not self._trained_on and self._steps is not None and self._steps_at_batch is not None:
            self._trained_on = not self._whole_passes and (self._steps(),) != self._steps_at_batch
        return self._trained_on

    @property
    def batches_done(self) -> int:
        return 0 if self._at is None or self._at.finished else self._at.batches

    @property
    def passes_done(self) -> int:
        return 0 if self._at is None else self._at.passes + self._at.finished

    def batches(self, epoch: int, *, counted: bool = True) -> Iterator[Any]:
        """The batches of `epoch` that training has not had yet. `counted`: epochs are counted by the run.

        A pass that was left unfinished is continued; a finished one is given whole again, except that right
        after a restart the epoch that had been finished gives nothing the first time.
        """
        restored, self._restored = self._restored, False
        self._calls += 1
        what = begin(self._at, restored=restored, epoch=epoch, name=self.name)
        if not self.trained_on or (what is Begin.REST and self._seed is None and not restored):
            # A loop that was left and begun again begins again, as it does over the loader itself.
            what = Begin.AFRESH
        if not counted and restored and what is Begin.REST and self._has_no_rest():
            what = Begin.AFRESH
        if what is Begin.NOTHING and counted:
            return iter(())
        if what is not Begin.REST or self._at is None:
            if self._is_old_way:
                self._source.close()
                self._source, self._is_old_way = self._make(as_torch=self._seed is None), False
            self._source.begin_pass(self._at)
            self._at = after(self._at, epoch, self._seed)
        self._source.salt = self._salt()
        self._ahead.begin()
        self._recent.clear()
        return _Serving(self, self._at, self._calls)

    def _has_no_rest(self) -> bool:
        """Whether the last batch of the pass was handed out, though nobody has asked for one more."""
        try:
            return self._at is not None and self._at.batches >= len(self._source)
        except TypeError:
            return False

    def _handing_out(self, at: Position, turn: Turn) -> Position:
        """Before training has it: a batch that is handed out counts, whatever becomes of it."""
        with self._lock:
            return self._counted(at, turn)

    def read_elsewhere(self, is_elsewhere: bool) -> None:
        """Whether the batch that is asked for next goes to another thread than the one that trains."""
        self._ahead.is_elsewhere = is_elsewhere

    def _counted(self, at: Position, turn: Turn) -> Position:
        if self._audit is not None:
            self._audit(self._record(at, turn))
        if self._steps is not None:
            self._ahead.handed(self._step())
            self._recent.append((at, self._source.states() if isinstance(self._source, AsTorch) else None))
        counts = at.digest is not None and self._source.checks_indices
        digest = with_indices(at.digest or 0, turn.items) if counts else None
        self._at = replace(
            at, consumed=turn.consumed, served=at.served + 1, batches=at.batches + 1, digest=digest
        )
        return self._at

    def _step(self) -> int:
        steps = self._steps() if self._steps is not None else 0
        return int(steps[-1] if isinstance(steps, tuple) else steps)

    def _lend(self) -> None:
        """From here on, notice the step that may be made before the next batch is asked for."""
        self._steps_at_batch = None if self._steps is None else (self._steps(),)

    def _take_back(self) -> None:
        self._trained_on = self.trained_on
        self._steps_at_batch = None

    def _passed(self, at: Position, *, is_whole: bool) -> None:
        self._at = replace(at, finished=True)
        if isinstance(self._source, AsTorch):
            self._source.pass_ended()
        # One that was cut short is not whole, and the audit does not ask that it be.
        if self._audit is not None and is_whole:
            self._audit(replace(self._record(at, Turn([], at.consumed, 0)), ended=True))
        self._let_go()

    def close(self) -> None:
        """Workers that stay from pass to pass end here."""
        if self._opened is not None:
            self._opened.close()

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
            again=self._again,
            unsure=self._unsure,
        )

    def state_dict(self) -> dict[str, Any]:
        """Exactly what training has been handed so far: a few numbers, whatever the dataset's size."""
        with self._lock:  # another thread may be reading
            return self._state()

    def _state(self) -> dict[str, Any]:
        shape, kept = self._parked or (self._source.shape, self._source.remember())
        at, untrained = self._at, self._ahead.untrained(self._step())
        if self.trained_on and 0 < untrained <= len(self._recent):
            # Fetched ahead, and not trained on at this boundary: after a restart they come again.
            at, states = self._recent[-untrained]
            kept = kept if states is None else {**kept, "states": states}
        state = {**position_to_state(at, shape), "trained_on": self.trained_on, "source": kept}
        unsure = self.trained_on and self._steps is not None and not self._ahead.is_sure(self._step())
        if not self._ahead.known and not unsure:
            return state
        return {**state, "ahead": {**self._ahead.state(), "again": untrained, "unsure": unsure}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Stand where `state_dict` was taken. Before the first `batches`; nothing is loaded yet."""
        if self._calls:
            raise SetupError(f"the loader {self.name!r} is in use, too late to restore its position")
        at, saved = position_from_state(state, self.name)
        if at is None:
            return
        self._trained_on = bool(state["trained_on"]) and not self._whole_passes
        if (at.seed is None) != (self._seed is None) and self.trained_on and not at.finished:
            self._say_other_way(at)
            self._source.close()
            self._source, self._is_old_way = self._make(as_torch=at.seed is None), True
        changes = differences(saved, self._source.shape)
        if changes and self.trained_on and not at.finished:
            at = self._after_change(at, "; ".join(changes))
        elif not changes and self._is_source_of(at):
            self._source.put_back(dict(state["source"]), at)
        if (
            None not in (at.seed, self._seed)
            and at.seed != self._seed
            and self.trained_on
            and not at.finished
        ):
            warnings.warn(
                f"the run's seed was {at.seed} and is {self._seed}: epoch {at.epoch} of the loader "
                f"{self.name!r} goes on with the old one, so that every sample comes once; the next epoch "
                "takes the new one",
                stacklevel=2,
            )
        self._at, self._restored = at, True
        if ahead := state.get("ahead"):
            self._ahead.load(ahead)
            self._again = ahead["again"]
            self._unsure = ahead.get("unsure", False)

    def _salt(self) -> int:
        """The loader by its name; and the rank, where ranks do not share one order."""
        name = zlib.crc32(self.name.encode())
        return name if self._source.shares_order else derive(name, self._rank)

    def _is_source_of(self, at: Position) -> bool:
        """Whether what is kept with `at` was kept by the way that reads now."""
        return ((at.seed is None) == (self._seed is None)) is not self._is_old_way

    def _say_other_way(self, at: Position) -> None:
        old, new = "torch's own draws", f"seed {self._seed} of the run"
        if self._seed is None:
            old, new = f"seed {at.seed} of the run", "torch's own draws, as without holdfast"
        log.warning(
            "holdfast: epoch %d of the loader %r was begun with data decided by %s, and ends with "
            "it; from the next "
            "epoch on %s decide",
            at.epoch, self.name, old, new,
        )  # fmt: skip

    @property
    def shape(self) -> Shape:
        return self._parked[0] if self._parked else self._source.shape

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
        before.close()
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


class _Serving:
    """The batches of one pass, from a position on. A class and not a generator: an error that is caught by
    the loop must not end the epoch."""

    def __init__(self, feed: Feed, at: Position, call: int) -> None:
        self._feed = feed
        self._at = at
        self._call = call
        self._limit = sys.maxsize if feed.limit is None else feed.limit
        self._is_over = False
        # Now and not with the first batch: torch draws and starts workers when `iter` is called.
        self._turns = iter(feed._source.open(at)) if at.batches < self._limit else iter(())

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        feed = self._feed
        if self._is_over:
            raise StopIteration
        feed._take_back()
        feed._require_newest(self._call)
        if self._at.batches >= self._limit:
            self._end()
        try:
            turn, batch = next(self._turns)
        except StopIteration:
            self._end()
        except Exception:
            # torch leaves out a batch that cannot be loaded, and so do we.
            if (failed := getattr(self._turns, "failed", None)) is not None:
                self._at = feed._handing_out(self._at, failed)
            raise
        feed._require_newest(self._call)
        self._at = feed._handing_out(self._at, turn)
        feed._lend()
        return batch

    def __del__(self) -> None:
        # A loop that was left: steps from now on are not made on this loader's batch.
        if not getattr(self, "_is_over", True) and self._call == self._feed._calls:
            self._feed._take_back()

    def _end(self) -> NoReturn:
        self._is_over = True
        self._turns = iter(())
        self._feed._passed(self._at, is_whole=self._at.batches < self._limit)
        raise StopIteration
