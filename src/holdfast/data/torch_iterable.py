"""A DataLoader over an iterable dataset: continued by the dataset's own state, or else read again.

Its readers are its workers (or the process itself). They take turns, which is torch's order; each has its own
state, so the number of workers must stay the same until the epoch has ended.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader

from holdfast.data.position import Position, Shape
from holdfast.data.progress import Progress
from holdfast.data.seeding import FOR_ITERABLE, FOR_WORKERS, derive
from holdfast.data.split import Turn
from holdfast.data.torch_pull import Ask, Pull
from holdfast.data.torch_rebuild import Requests, rebuild
from holdfast.data.torch_streams import STREAMS


@dataclass
class _Reader:
    """One worker's part of a pass: batches that training had from it, and where its dataset stood then."""

    done: int = 0
    state: Any = None
    ended: bool = False


class IterableStyle:
    once_each = False
    may_drop = False

    def __init__(self, loader: DataLoader[Any], *, seed_samples: bool, world: int) -> None:
        self._loader = loader
        dataset: Any = loader.dataset
        self._dataset = dataset
        self._samples_per_step = (loader.batch_size or 1) * world
        stateful = hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")
        # Mosaic-style datasets are told how many samples all ranks consumed; their workers need no asking.
        self._by_count = stateful and "num_samples" in inspect.signature(dataset.state_dict).parameters
        self._by_state = stateful and not self._by_count
        self._seeded = seed_samples
        self._consumed = 0
        self._next = 0
        self._readers = self._fresh_readers()
        self._opened = 0
        self._requests = Requests()
        self._worker_seeds = torch.Generator()
        pull = Pull(
            self._dataset,
            loader.collate_fn,
            batch=loader.batch_size,
            drop_last=loader.drop_last,
            seeded=seed_samples,
            with_state=self._by_state,
        )
        self._rebuilt = rebuild(loader, pull, self._requests, self._worker_seeds)

    def _fresh_readers(self) -> list[_Reader]:
        return [_Reader() for _ in range(max(1, self._loader.num_workers))]

    @property
    def shape(self) -> Shape:
        try:
            size: int | None = len(self._dataset)
        except TypeError:
            size = None
        kind = f"an iterable dataset's, with {len(self._readers)} reading"
        return Shape(kind=kind, size=size, batch=self._loader.batch_size)

    def __len__(self) -> int:
        return len(self._loader)

    def remember(self) -> dict[str, Any]:
        if self._by_count:
            return {"dataset": self._state_by_count()}
        if self._by_state:
            return {"readers": [asdict(reader) for reader in self._readers], "next": self._next}
        return {}

    def _state_by_count(self) -> Any:
        samples = self._consumed * self._samples_per_step
        return self._dataset.state_dict(num_samples=samples, from_beginning=True)

    def put_back(self, kept: dict[str, Any], at: Position) -> None:
        self._consumed = at.consumed
        if self._by_count:
            self._dataset.load_state_dict(kept["dataset"])
        elif self._by_state:
            self._readers = [_Reader(**reader) for reader in kept["readers"]]
            self._next = kept["next"]

    def begin_pass(self, left: Position | None) -> None:
        self._readers, self._next, self._consumed = self._fresh_readers(), 0, 0

    def open(self, at: Position) -> Iterator[tuple[Turn, Any]]:
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(at.epoch)
        again = 0
        if self._by_count and at.consumed:
            self._dataset.load_state_dict(self._state_by_count())
        elif not self._by_state and not self._by_count:
            self.begin_pass(None)
            again = at.consumed
        elif self._by_count:
            self._readers = self._fresh_readers()
        self._opened += 1
        self._worker_seeds.manual_seed(derive(FOR_WORKERS, at.seed, at.epoch, at.consumed) >> 1)
        self._requests.begin = lambda: self._asks(at, self._opened, again)
        try:
            yield from self._answers(at.consumed - again, again)
        finally:
            self._requests.begin = None

    def _asks(self, at: Position, opened: int, again: int) -> Iterator[Ask]:
        """One request after another to the readers in turn; those that have ended say so again."""
        base = derive(FOR_ITERABLE, at.seed, at.epoch)
        readers, first = [_Reader(**asdict(reader)) for reader in self._readers], self._next
        count = 0
        while not all(reader.ended for reader in self._readers):
            which, nth = (first + count) % len(readers), count // len(readers)
            begin = readers[which] if nth == 0 else _Reader()
            done = readers[which].done + nth
            yield Ask(opened, base, which, done, begin.state, begin.ended, discard=count < again)
            count += 1

    def _answers(self, consumed: int, again: int) -> Iterator[tuple[Turn, Any]]:
        first = self._next
        progress = self._say_read_again(again) if again else None
        marks = [stream.mark() for stream in STREAMS] if again else []
        for count, (batch, state, last, empty) in enumerate(self._rebuilt):
            which = (first + count) % len(self._readers)
            reader = self._readers[which]
            # A dataset at its end may say that it stands at its beginning, so the end itself is remembered.
            reader.ended = last
            if empty:
                if all(other.ended for other in self._readers):
                    return
                continue
            reader.state, reader.done = state, reader.done + 1
            self._next = (which + 1) % len(self._readers)
            consumed += 1
            self._consumed = consumed
            if consumed > again:
                yield Turn([], consumed, 0), batch
            elif progress is not None:
                progress.one_more()
                if consumed == again:
                    # Unseeded samples drew from training's generators, which have been through this already.
                    for stream, mark in zip(STREAMS, marks, strict=True):
                        stream.restore(mark)

    def _say_read_again(self, batches: int) -> Progress:
        warnings.warn(
            f"the iterable dataset {type(self._dataset).__name__} keeps no state, so it is read again from "
            f"the beginning to batch {batches}; give it state_dict and load_state_dict to continue at once",
            stacklevel=5,
        )
        return Progress("reading again", batches)
