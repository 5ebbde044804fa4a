"""Loaders that are not torch's DataLoader: opened at a position, restored by their own state, or read again.

Whatever they draw while being opened is hidden from training's generators.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from holdfast.data.position import Position, Shape
from holdfast.data.positioned import Positioned
from holdfast.data.progress import Progress
from holdfast.data.seeding import FOR_ITERABLE
from holdfast.data.split import Turn
from holdfast.data.torch_streams import OwnStreams
from holdfast.data.torch_watch import Watch, hidden, put_back

_END = object()
log = logging.getLogger("holdfast")


class _Foreign:
    """What the three kinds have in common: batches are all that can be counted."""

    once_each = False
    may_drop = False
    shares_order = False
    checks_indices = False

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.salt = 0

    def _own_streams(self, at: Position) -> OwnStreams:
        return OwnStreams(at.key(FOR_ITERABLE, self.salt))

    @property
    def shape(self) -> Shape:
        return Shape(kind=f"that of {type(self._loader).__name__}", size=None)

    def __len__(self) -> int:
        return len(self._loader)

    def remember(self) -> dict[str, Any]:
        return {}

    def put_back(self, kept: dict[str, Any], at: Position) -> None: ...

    def begin_pass(self, left: Position | None) -> None: ...

    def close(self) -> None: ...

    def _counted(self, batches: Iterator[Any], consumed: int) -> Iterator[tuple[Turn, Any]]:
        for batch in batches:
            consumed += 1
            yield Turn([], consumed, 0), batch


class OpenedAtPosition(_Foreign):
    def __init__(self, loader: Positioned) -> None:
        super().__init__(loader)

    def __len__(self) -> int:
        if self._loader.batches is None:
            raise TypeError("this loader was not told how many batches an epoch has")
        return int(self._loader.batches)

    @property
    def shape(self) -> Shape:
        return Shape(kind="that of a positioned loader", size=self._loader.batches)

    def open(self, at: Position) -> Iterator[tuple[Turn, Any]]:
        batches = self._own_streams(at).run(lambda: iter(self._loader.open_at(at.epoch, at.consumed)))
        return self._counted(batches, at.consumed)


class WithOwnState(_Foreign):
    """A loader with state_dict and load_state_dict, such as torchdata's StatefulDataLoader. With `hidden`,
    what it draws when it is opened is not drawn from training's generators."""

    def __init__(self, loader: Any, *, hidden: bool = True) -> None:
        super().__init__(loader)
        self._is_hidden = hidden
        self._begun = False
        self._kept: dict[str, Any] | None = None
        self._said: str | None = None

    def remember(self) -> dict[str, Any]:
        if self._kept is not None:
            return self._kept
        if not self._begun:
            return {}
        try:
            return {"loader": self._loader.state_dict()}
        except Exception as error:  # noqa: BLE001 - whatever foreign code raises
            # A save must not fail for it: the batches can still be counted.
            if self._said is None:
                self._said = repr(error)
                log.warning(
                    "holdfast: %s.state_dict() raised %s; its position is kept as a number of "
                    "batches, and after a "
                    "restart it is read again from the beginning of the epoch",
                    type(self._loader).__name__, self._said,
                )  # fmt: skip
            return {"raised": self._said}

    def put_back(self, kept: dict[str, Any], at: Position) -> None:
        self._kept = kept

    def open(self, at: Position) -> Iterator[tuple[Turn, Any]]:
        kept, self._kept = self._kept, None
        if kept is None and at.consumed:
            kept = self.remember()  # the pass was left in this process and is taken up again
        if kept and "loader" not in kept:
            self._begun = True
            return self._counted(self._read_again(at), at.consumed)
        if self._is_hidden or at.consumed:
            batches = self._own_streams(at).run(lambda: self._begin(kept))
        else:
            batches = self._begin(kept)
        self._begun = True
        return self._counted(batches, at.consumed)

    def _read_again(self, at: Position) -> Iterator[Any]:
        return self._own_streams(at).run(lambda: _behind(iter(self._loader), at.consumed, self._loader))

    def begin_pass(self, left: Position | None) -> None:
        if self._kept and left is not None:
            # Restored, and the next epoch follows: let the loader end the one it was saved in.
            kept, self._kept = self._kept, None
            if "loader" in kept:
                self._own_streams(left).run(lambda: self._finish(kept))

    def _finish(self, kept: dict[str, Any]) -> None:
        for _ in self._begin(kept):
            pass

    def _begin(self, kept: dict[str, Any] | None) -> Iterator[Any]:
        if kept:
            self._loader.load_state_dict(kept["loader"])
        return iter(self._loader)


class ReadAgain(_Foreign):
    """Any iterable of batches. A list is read from its middle; everything else from its beginning.

    `as_torch`: on training's own generators, as without holdfast. Else, with `seed_samples`, on streams
    that begin with the epoch.
    """

    def __init__(self, loader: Any, *, seed_samples: bool, as_torch: bool = False) -> None:
        super().__init__(loader)
        self._seeded = seed_samples
        self._as_torch = as_torch
        self._watch: Watch | None = None

    def remember(self) -> dict[str, Any]:
        return self._watch.remember() if self._watch is not None else {}

    def put_back(self, kept: dict[str, Any], at: Position) -> None:
        if kept and self._as_torch:
            self._watch = Watch(kept)

    def begin_pass(self, left: Position | None) -> None:
        self._watch = None

    def open(self, at: Position) -> Iterator[tuple[Turn, Any]]:
        if isinstance(self._loader, Sequence):
            return self._counted(islice(self._loader, at.consumed, None), at.consumed)
        if self._as_torch:
            return self._counted(self._as_without_us(at), at.consumed)
        return self._counted(self._after(at), at.consumed)

    def _as_without_us(self, at: Position) -> Iterator[Any]:
        if self._watch is None:
            self._watch = Watch()
            return self._watched(self._watch, iter(self._loader))
        watch = self._watch
        watch.say_if_mixed(type(self._loader).__name__)

        def again() -> Iterator[Any]:
            put_back(watch.begun)
            return _behind(iter(self._loader), at.consumed, self._loader)

        return self._watched(watch, hidden(again))

    def _watched(self, watch: Watch, batches: Iterator[Any]) -> Iterator[Any]:
        while (batch := watch.pull(lambda: next(batches, _END))) is not _END:
            yield batch

    def _after(self, at: Position) -> Iterator[Any]:
        batches = self._drawn(at)
        if at.consumed:
            _say(self._loader, at.consumed)
            progress = Progress("reading again", at.consumed)
            for _ in range(at.consumed):
                if self._own_streams(at).run(lambda: next(batches, _END)) is _END:
                    return
                progress.one_more()
        yield from batches

    def _drawn(self, at: Position) -> Iterator[Any]:
        """With `seed_samples`, on streams that begin with the epoch: reading again gives the same batches."""
        streams = self._own_streams(at)
        batches = streams.run(lambda: iter(self._loader))
        if not self._seeded:
            yield from batches
        while self._seeded and (batch := streams.run(lambda: next(batches, _END))) is not _END:
            yield batch


def _say(loader: Any, consumed: int) -> None:
    warnings.warn(
        f"{type(loader).__name__} keeps no state, so it is read again from the beginning to "
        f"batch {consumed}; holdfast.data.Positioned can open it there at once",
        stacklevel=5,
    )


def _behind(batches: Iterator[Any], consumed: int, loader: Any) -> Iterator[Any]:
    """The same iterator, behind the batches that training had."""
    if consumed:
        _say(loader, consumed)
        progress = Progress("reading again", consumed)
        for _ in islice(batches, consumed):
            progress.one_more()
    return batches
