"""What `run.batches(loader)` gives: like the loader, but it goes on where training was.

Iterating opens a pass, as it does with a DataLoader; between two batches lies the boundary of a step, where
a run may save or must stop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakSet

from holdfast.data.torch_feed import Feed
from holdfast.engine.loop_notices import say_if_counted_around
from holdfast.engine.torch_session import Session


class Batches:
    """A loader-like object: `len`, and every attribute that the loader itself has."""

    def __init__(self, loader: Any, open_pass: Callable[[], Pass], feed: Callable[[], Feed]) -> None:
        self._loader = loader
        self._open_pass = open_pass
        self._feed = feed
        self._by_hand: Pass | None = None

    def __iter__(self) -> Iterator[Any]:
        by_hand, self._by_hand = self._by_hand, None
        if by_hand is not None and not by_hand.is_over:
            return by_hand  # a few were taken with next() before the loop
        return self._open_pass()

    def __next__(self) -> Any:
        if self._by_hand is None:
            self._by_hand = self._open_pass()
        return next(self._by_hand)

    def __len__(self) -> int:
        """Batches of a whole epoch, wherever training is in it."""
        return len(self._feed())

    @property
    def position(self) -> int:
        """How many batches of this epoch training has had."""
        return self._feed().batches_done

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)


class Enumerated:
    """Index in the epoch and batch. After a restart it goes on with the index that comes next."""

    def __init__(self, batches: Batches, start: int) -> None:
        self._batches = batches
        self._start = start

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        opened = iter(self._batches)
        return self._counted(opened, self._start + self._batches.position)

    def _counted(self, opened: Iterator[Any], index: int) -> Iterator[tuple[int, Any]]:
        for batch in opened:
            yield index, batch
            index += 1

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._batches, name)


class Pass:
    """One pass over a loader. `holding` are those whose batch training has; `on_stop` is told when this one
    is cut short."""

    def __init__(
        self,
        session: Session,
        feed: Feed,
        batches: Iterator[Any],
        holding: WeakSet[Pass],
        on_stop: Callable[[], None],
    ) -> None:
        self._session = session
        self._feed = feed
        self._batches = batches
        self._holding = holding
        self._on_stop = on_stop
        self._is_inner = False
        self._taken_up_behind = feed.batches_done
        self.step_at_batch = 0
        self._steps_at_begin = self._steps
        self.is_over = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        session = self._session
        if self.is_over:
            raise StopIteration
        is_elsewhere = threading.get_ident() != session.boundary.thread
        self._feed.read_elsewhere(is_elsewhere)
        if is_elsewhere:
            # Somebody fetches ahead in another thread: boundaries belong to the one that trains.
            return next(self._batches)
        if self in self._holding:
            self._holding.discard(self)
            self._boundary()
        if self._taken_up_behind:
            say_if_counted_around(self, self._taken_up_behind, self._feed.name)
            self._taken_up_behind = 0
        try:
            batch = next(self._batches)
        except StopIteration:
            self.is_over = True
            session.meter.pause()
            if self._feed.trained_on:
                session.hold()
            raise
        # Inside the step on another loader's batch: that one's step is none of this one's.
        self._is_inner = len(self._holding) > 0
        if not self._is_inner:
            session.boundary.batch_begins(is_trained_on=self._feed.trained_on)
        self.step_at_batch = session.state.step
        self._holding.add(self)
        return batch

    def _boundary(self) -> None:
        session, feed = self._session, self._feed
        if not self._is_inner and session.state.step == self.step_at_batch:
            session.boundary.batch_ended()
        if not feed.trained_on:
            # Validation is no place to save (averaged weights may stand in for the model) and is not cut
            # short (the rest of the epoch would take its numbers for whole); but it is a sign of life.
            session.sign_of_life()
            return
        if session.boundary.stepped:
            session.end_step(None, {})
        session.save_best()
        # Over a training set that is only evaluated there is nothing to take up, so that is not cut short.
        if self._steps != self._steps_at_begin and session.must_stop():
            self.is_over = True
            self._on_stop()
            raise StopIteration

    @property
    def _steps(self) -> tuple[int, int]:
        return self._session.boundary.optimizer_steps, self._session.state.step
