"""Loads the samples of one batch, each on generators seeded for (seed, epoch, index), and for its place
where an index may come twice.

So an augmentation depends on its sample alone: not on workers, batch size, ranks or what was loaded before.
Training's generators are left as they were found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import Dataset, get_worker_info

from holdfast.data.seeding import batch_seed, begin_loading, index_seed, index_seeds, placed
from holdfast.data.torch_streams import STREAMS, Stream

PROBED_SAMPLES = 4
# What stands for seed and epoch; the indices or the one index; where an index may come twice, the places of
# the order that they have: the first, and how far it is to the next.
Request = tuple[int, Any] | tuple[int, Any, tuple[int, int]]


class SeededFetch(Dataset[Any]):
    """A dataset of whole batches around the user's dataset of samples.

    Seeding three generators costs as much as a trivial sample, so only those that the dataset draws from are
    seeded. The first batch of a process finds out which; the others are watched. If a watched one moves later
    (an augmentation that few samples get), that batch is loaded again, seeded, and the generator joins the
    rest.
    """

    def __init__(self, dataset: Any, collate: Callable[[Any], Any], *, batched: bool, seeded: bool) -> None:
        self._dataset = dataset
        self._collate = collate
        self._batched = batched
        self._seeded = seeded
        self._base = 0
        self._places: tuple[int, int] | None = None
        self._drawn_from: list[Stream] | None = None
        self._marks: dict[Stream, Any] | None = None

    @property
    def dataset(self) -> Any:
        return self._dataset

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_drawn_from": None, "_marks": None}  # streams belong to a process

    def __getitem__(self, request: Request) -> Any:
        base, indices, *rest = request
        self._places = rest[0] if rest else None
        if not self._seeded:
            return self._load(indices, None)
        in_process = get_worker_info() is None
        self._base = base
        begin_loading(base, self._places[0] if self._places else None)
        marks = self._marks
        if marks is None:
            marks = {stream: stream.mark() for stream in STREAMS}
            if not in_process:
                # In a worker nobody else draws: what stands still now must stand there after every batch.
                self._marks = marks
        try:
            return self._load_seeded(base, indices, marks)
        finally:
            begin_loading(None)
            if in_process:
                for stream in STREAMS if self._drawn_from is None else self._drawn_from:
                    stream.restore(marks[stream])

    def _load_seeded(self, base: int, indices: Any, marks: dict[Stream, Any]) -> Any:
        if self._drawn_from is None:
            probe = _Probe(base)
            result = self._load(indices, probe)
            self._drawn_from = probe.drawn_from()
            # Those that nobody drew from are not put back by the caller any more.
            for stream in STREAMS:
                stream.restore(marks[stream])
            if not probe.missed:
                return result
        while True:
            drawn_from = self._drawn_from
            result = self._load(indices, _Seeder(base, drawn_from) if drawn_from else None)
            newly = [s for s in STREAMS if s not in drawn_from and s.moved(marks[s])]
            if not newly:
                return result
            for stream in newly:
                stream.restore(marks[stream])
            self._drawn_from = [*drawn_from, *newly]

    def _load(self, indices: Any, seeder: _Seeder | None) -> Any:
        dataset = self._dataset
        places = self._places if self._seeded else None
        if not self._batched:
            if seeder is not None:
                seed = index_seed(seeder.base, indices)
                seeder.seed(placed(seed, places[0]) if places else seed)
            return self._collate(dataset[indices])
        whole = getattr(dataset, "__getitems__", None)
        if whole:
            # The dataset takes the batch at once, so its randomness can only belong to the batch.
            if seeder is not None:
                seeder.batch(indices)
            samples = whole(indices)
        elif places is not None:
            samples = self._load_placed(indices, places, seeder)
        elif seeder is None:
            samples = [dataset[index] for index in indices]
        else:
            samples = []
            for index, seed in zip(indices, index_seeds(seeder.base, indices), strict=True):
                seeder.seed(seed)
                samples.append(dataset[index])
        if seeder is not None:
            seeder.batch(indices)
        return self._collate(samples)

    def _load_placed(self, indices: Any, places: tuple[int, int], seeder: _Seeder | None) -> list[Any]:
        samples = []
        for number, index in enumerate(indices):
            place = places[0] + number * places[1]
            begin_loading(self._base, place)
            if seeder is not None:
                seeder.seed(placed(index_seed(seeder.base, index), place))
            samples.append(self._dataset[index])
        return samples


class _Seeder:
    def __init__(self, base: int, streams: list[Stream]) -> None:
        self.base = base
        self._streams = streams

    def batch(self, indices: Any) -> None:
        self.seed(batch_seed(self.base, indices[0] if len(indices) else 0))

    def seed(self, seed: int) -> None:
        for stream in self._streams:
            stream.seed(seed)


class _Probe(_Seeder):
    """Seeds every generator and notes which of them were drawn from in between; after the first few samples
    only those, because workers begin anew with every epoch. `missed`: another one was drawn from after all.
    """

    def __init__(self, base: int) -> None:
        super().__init__(base, list(STREAMS))
        self._moved: list[Stream] = []
        self._marks: dict[Stream, Any] = {}
        self._seedings = 0
        self.missed = False

    def seed(self, seed: int) -> None:
        if self._seedings <= PROBED_SAMPLES:
            self._look()
        if self._seedings == PROBED_SAMPLES:
            self._streams = list(self._moved)
            self._marks = {stream: stream.mark() for stream in STREAMS if stream not in self._moved}
        self._seedings += 1
        super().seed(seed)
        if self._seedings <= PROBED_SAMPLES:
            self._marks = {stream: stream.mark() for stream in STREAMS}

    def _look(self) -> list[Stream]:
        newly = [s for s, mark in self._marks.items() if s not in self._moved and s.moved(mark)]
        self._moved += newly
        return newly

    def drawn_from(self) -> list[Stream]:
        self.missed = bool(self._look()) and self._seedings > PROBED_SAMPLES
        return [stream for stream in STREAMS if stream in self._moved]
