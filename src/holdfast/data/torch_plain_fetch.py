"""Loads one batch as torch does, and says where the loading process's random streams stand behind it.

Nothing is seeded here. A worker begins with torch's own seeds, and what it draws is what it draws without
holdfast; its states go with its batches, so that another process can go on where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch.utils.data import Dataset, get_worker_info

from holdfast.data.torch_fetch import SeededFetch
from holdfast.data.torch_generators import held_by_dataset
from holdfast.data.torch_streams import STREAMS, Stream

States = dict[str, Any]


class Wanted(NamedTuple):
    """A request with more to it than indices, which travel bare: a class costs more to send than they do.
    `start` puts the worker's streams where they were; `seeded` is the base of seeds per sample, where those
    have taken over; one that is `skipped` only keeps the workers' turns."""

    indices: Any
    start: States | None = None
    seeded: int | None = None
    skipped: bool = False


class Loaded(NamedTuple):
    """A batch with more to it; others travel bare."""

    batch: Any
    states: States | None
    skipped: bool = False


class Moving:
    """Which streams of this process moved since it began, and where they stand. Cheap: once per batch."""

    def __init__(self, streams: list[Stream]) -> None:
        self._streams = streams
        self._marks = {stream.name: stream.mark() for stream in streams}
        self._moved: set[str] = set()

    def put_back(self, states: States) -> None:
        for stream in self._streams:
            if stream.name in states:
                stream.restore(states[stream.name])
                self._moved.add(stream.name)

    def states(self) -> States | None:
        for stream in self._streams:
            if stream.name not in self._moved and stream.moved(self._marks[stream.name]):
                self._moved.add(stream.name)
        return {s.name: s.mark() for s in self._streams if s.name in self._moved} or None


class PlainFetch(Dataset[Any]):
    """A dataset of whole batches around the user's dataset of samples."""

    def __init__(self, dataset: Any, collate: Callable[[Any], Any], *, batched: bool) -> None:
        self._dataset = dataset
        self._collate = collate
        self._batched = batched
        self._seeded = SeededFetch(dataset, collate, batched=batched, seeded=True)
        self._moving: Moving | None = None

    @property
    def dataset(self) -> Any:
        return self._dataset

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_moving": None}  # streams belong to a process

    def __getitem__(self, wanted: Any) -> Any:
        if get_worker_info() is None:
            return self.load(wanted)
        if self._moving is None:
            self._moving = Moving([*STREAMS, *held_by_dataset(self._dataset)])
        is_skipped = False
        if type(wanted) is Wanted:
            if wanted.start is not None:
                self._moving.put_back(wanted.start)
            is_skipped = wanted.skipped
        batch = None if is_skipped else self.load(wanted)
        states = self._moving.states()
        return Loaded(batch, states, is_skipped) if states is not None or is_skipped else batch

    def load(self, wanted: Any) -> Any:
        """What torch's own fetcher does, line by line."""
        dataset, indices = self._dataset, wanted
        if type(wanted) is Wanted:
            indices = wanted.indices
            if wanted.seeded is not None:
                return self._seeded[wanted.seeded, indices]
        if not self._batched:
            return self._collate(dataset[indices])
        if hasattr(dataset, "__getitems__") and dataset.__getitems__:
            return self._collate(dataset.__getitems__(indices))
        return self._collate([dataset[index] for index in indices])
