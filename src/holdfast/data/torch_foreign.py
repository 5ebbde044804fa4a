"""Loaders that are not torch's DataLoader: opened at a position, restored by their own state, or read again.

Whatever they draw while being opened is hidden from training's generators.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from holdfast.data.position import Position, Shape
from holdfast.data.positioned import Positioned
from holdfast.data.progress import Progress
from holdfast.data.seeding import FOR_ITERABLE, derive
from holdfast.data.split import Turn
from holdfast.data.torch_streams import OwnStreams

_END = object()


def _own_streams(at: Position) -> OwnStreams:
    return OwnStreams(derive(FOR_ITERABLE, at.seed, at.epoch))


class _Foreign:
    """What the three kinds have in common: batches are all that can be counted."""

    once_each = False
    may_drop = False

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    @property
    def shape(self) -> Shape:
        return Shape(kind=f"that of {type(self._loader).__name__}", size=None)

    def __len__(self) -> int:
        return len(self._loader)

    def remember(self) -> dict[str, Any]:
        return {}

    def put_back(self, kept: dict[str, Any], at: Position) -> None: ...

    def begin_pass(self, left: Position | None) -> None: ...

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
        batches = _own_streams(at).run(lambda: iter(self._loader.open_at(at.epoch, at.consumed)))
        return self._counted(batches, at.consumed)


class WithOwnState(_Foreign):
    """A loader with state_dict and load_state_dict, such as torchdata's StatefulDataLoader."""

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._begun = False
        self._kept: dict[str, Any] | None = None

    def remember(self) -> dict[str, Any]:
        if self._kept is not None:
            return self._kept
        return {"loader": self._loader.state_dict()} if self._begun else {}

    def put_back(self, kept: dict[str, Any], at: Position) -> None:
        self._kept = kept

    def open(self, at: Position) -> Iterator[tuple[Turn, Any]]:
        kept, self._kept = self._kept, None
        if kept is None and at.consumed:
            kept = self.remember()  # the pass was left in this process and is taken up again
        batches = _own_streams(at).run(lambda: self._begin(kept))
        self._begun = True
        return self._counted(batches, at.consumed)

    def begin_pass(self, left: Position | None) -> None:
        if self._kept and left is not None:
            # Restored, and the next epoch follows: let the loader end the one it was saved in.
            kept, self._kept = self._kept, None
            _own_streams(left).run(lambda: self._finish(kept))

    def _finish(self, kept: dict[str, Any]) -> None:
        for _ in self._begin(kept):
            pass

    def _begin(self, kept: dict[str, Any] | None) -> Iterator[Any]:
        if kept:
            self._loader.load_state_dict(kept["loader"])
        return iter(self._loader)


class ReadAgain(_Foreign):
    """Any iterable of batches. A list is read from its middle; everything else from its beginning."""

    def __init__(self, loader: Any, *, seed_samples: bool) -> None:
        super().__init__(loader)
        self._seeded = seed_samples

    def open(self, at: Position) -> Iterator[tuple[Turn, Any]]:
        if isinstance(self._loader, Sequence):
            return self._counted(islice(self._loader, at.consumed, None), at.consumed)
        return self._counted(self._after(at), at.consumed)

    def _after(self, at: Position) -> Iterator[Any]:
        batches = self._drawn(at)
        if at.consumed:
            warnings.warn(
                f"{type(self._loader).__name__} keeps no state, so it is read again from the beginning to "
                f"batch {at.consumed}; holdfast.data.Positioned can open it there at once",
                stacklevel=5,
            )
            progress = Progress("reading again", at.consumed)
            for _ in range(at.consumed):
                if _own_streams(at).run(lambda: next(batches, _END)) is _END:
                    return
                progress.one_more()
        yield from batches

    def _drawn(self, at: Position) -> Iterator[Any]:
        """With `seed_samples`, on streams that begin with the epoch: reading again gives the same batches."""
        streams = _own_streams(at)
        batches = streams.run(lambda: iter(self._loader))
        if not self._seeded:
            yield from batches
        while self._seeded and (batch := streams.run(lambda: next(batches, _END))) is not _END:
            yield batch
