"""Pulls batches out of an iterable dataset, in a worker or in-process, and says where the dataset stands.

Never reads further than the batch that was asked for, so the state that goes with a batch belongs to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from torch.utils.data import Dataset, get_worker_info

from holdfast.data.seeding import derive
from holdfast.data.torch_generators import held_by_dataset
from holdfast.data.torch_plain_fetch import Moving, States
from holdfast.data.torch_streams import STREAMS


class Ask(NamedTuple):
    """One request to a reader for its `nth` batch of a pass. A reader's first request says where it begins:
    at a state, at its end, or (neither) at the beginning. `discard` asks for reading without collating,
    `streams` puts a worker's streams where they were, and one that is `skipped` only keeps the workers'
    turns."""

    number: int
    base: int
    reader: int
    nth: int
    start: Any
    at_end: bool
    discard: bool
    streams: States | None = None
    skipped: bool = False


class Answer(NamedTuple):
    """`last` says that the reader has come to its end, with this batch or (`empty`) before it."""

    batch: Any
    state: Any
    last: bool
    empty: bool = False
    streams: States | None = None
    skipped: bool = False


class Pull(Dataset[Any]):
    """A dataset of answers around the user's iterable dataset.

    With `seeded`, the default generators are seeded before every batch, so that reading again from the
    beginning gives the same samples, and training's generators are left alone.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[Any], Any],
        *,
        batch: int | None,
        drop_last: bool,
        seeded: bool,
        with_state: bool,
        with_streams: bool = False,
    ) -> None:
        self._dataset = dataset
        self._collate = collate
        self._batch = batch
        self._drop_last = drop_last
        self._seeded = seeded
        self._with_state = with_state
        self._with_streams = with_streams
        self._moving: Moving | None = None
        self._pass = -1
        self._items: Iterator[Any] = iter(())

    @property
    def dataset(self) -> Any:
        return self._dataset

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_moving": None}  # streams belong to a process

    def __getitem__(self, ask: Ask) -> Answer:
        if self._with_streams:
            return self._on_own_streams(ask)
        return self._answer(ask)

    def _on_own_streams(self, ask: Ask) -> Answer:
        """On those of this process, as torch leaves them; a worker says where they stand behind the batch."""
        info = get_worker_info()
        if info is not None and self._moving is None:
            self._moving = Moving([*STREAMS, *held_by_dataset(self._dataset)])
        if ask.skipped:
            return Answer(None, None, last=False, skipped=True)
        if ask.number != self._pass:
            self._begin(ask)
            if ask.streams is not None and self._moving is not None:
                self._moving.put_back(ask.streams)
        answer = self._next(ask.discard)
        return answer if self._moving is None else answer._replace(streams=self._moving.states())

    def _answer(self, ask: Ask) -> Answer:
        in_process = get_worker_info() is None
        marks = [stream.mark() for stream in STREAMS] if in_process and self._seeded else []
        try:
            if self._seeded:
                seed = derive(ask.base, ask.reader, ask.nth)
                for stream in STREAMS:
                    stream.seed(seed)
            if ask.number != self._pass:
                self._begin(ask)
            return self._next(ask.discard)
        finally:
            for stream, mark in zip(STREAMS, marks, strict=False):
                stream.restore(mark)

    def _begin(self, ask: Ask) -> None:
        info = get_worker_info()
        if info is not None:
            # After a resume another process may read on for this reader, and datasets share out by this id.
            object.__setattr__(info, "id", ask.reader)
        if ask.start is not None:
            self._dataset.load_state_dict(ask.start)
        self._items = iter(()) if ask.at_end else iter(self._dataset)
        self._pass = ask.number

    def _next(self, discard: bool) -> Answer:
        wanted = self._batch or 1
        taken = list(islice(self._items, wanted))
        short = len(taken) < wanted
        if not taken or (short and self._drop_last):
            return Answer(None, None, last=True, empty=True)
        state = self._dataset.state_dict() if self._with_state else None
        if discard:
            return Answer(None, state, last=short)
        return Answer(self._collate(taken[0] if self._batch is None else taken), state, last=short)
