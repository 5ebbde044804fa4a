"""Loads the samples of one batch, each on generators seeded for (seed, epoch, index).

So an augmentation depends on its sample alone: not on workers, batch size, ranks or what was loaded before.
Training's generators are left as they were found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import Dataset, get_worker_info

from holdfast.data.seeding import batch_seed, begin_loading, index_seed, index_seeds
from holdfast.data.torch_streams import STREAMS, Stream

Request = tuple[int, Any]  # (what stands for seed and epoch, the indices or the one index)


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
        self._drawn_from: list[Stream] | None = None

    @property
    def dataset(self) -> Any:
        return self._dataset

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_drawn_from": None}  # streams belong to a process

    def __getitem__(self, request: Request) -> Any:
        base, indices = request
        if not self._seeded:
            return self._load(indices, None)
        in_process = get_worker_info() is None
        drawn_from = self._drawn_from or []
        begin_loading(base)
        # In a worker nobody else draws, so there only the generators that must stay still are looked at.
        marks = {s: s.mark() for s in STREAMS if in_process or s not in drawn_from}
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
        if not self._batched:
            if seeder is not None:
                seeder.seed(index_seed(seeder.base, indices))
            return self._collate(dataset[indices])
        whole = getattr(dataset, "__getitems__", None)
        if whole:
            # The dataset takes the batch at once, so its randomness can only belong to the batch.
            if seeder is not None:
                seeder.batch(indices)
            samples = whole(indices)
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
    """Seeds every generator and notes which of them were drawn from in between."""

    def __init__(self, base: int) -> None:
        super().__init__(base, list(STREAMS))
        self._moved: set[int] = set()
        self._marks: list[Any] | None = None

    def seed(self, seed: int) -> None:
        self._look()
        super().seed(seed)
        self._marks = [stream.mark() for stream in STREAMS]

    def _look(self) -> None:
        if self._marks is not None:
            pairs = enumerate(zip(STREAMS, self._marks, strict=True))
            self._moved |= {i for i, (stream, mark) in pairs if stream.moved(mark)}

    def drawn_from(self) -> list[Stream]:
        self._look()
        return [STREAMS[i] for i in sorted(self._moved)]
