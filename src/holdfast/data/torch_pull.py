"""Pulls batches out of an iterable dataset, in a worker or in-process, and says where the dataset stands.

Never reads further than the batch that was asked for, so the state that goes with a batch belongs to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from torch.utils.data import Dataset, get_worker_info

from holdfast.data.seeding import derive
from holdfast.data.torch_streams import STREAMS


class Ask(NamedTuple):
    """One request to the reader number `reader` of a pass. `start`, in a reader's first request, is the state
    it begins from; `discard` asks for reading without collating."""

    number: int
    base: int
    reader: int
    nth: int
    start: Any
    discard: bool


class Pull(Dataset[Any]):
    """A dataset of answers (over, batch, state) around the user's iterable dataset.

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
    ) -> None:
        self._dataset = dataset
        self._collate = collate
        self._batch = batch
        self._drop_last = drop_last
        self._seeded = seeded
        self._with_state = with_state
        self._pass = -1
        self._items: Iterator[Any] = iter(())

    @property
    def dataset(self) -> Any:
        return self._dataset

    def __getitem__(self, ask: Ask) -> tuple[bool, Any, Any]:
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
        self._items = iter(self._dataset)
        self._pass = ask.number

    def _next(self, discard: bool) -> tuple[bool, Any, Any]:
        if self._batch is None:
            taken = list(islice(self._items, 1))
            over = not taken
        else:
            taken = list(islice(self._items, self._batch))
            over = not taken or (self._drop_last and len(taken) < self._batch)
        if over:
            return True, None, None
        state = self._dataset.state_dict() if self._with_state else None
        if discard:
            return False, None, state
        return False, self._collate(taken[0] if self._batch is None else taken), state
