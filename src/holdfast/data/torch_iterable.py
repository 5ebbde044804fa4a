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
from holdfast.data.torch_pull import Answer, Ask, Pull
from holdfast.data.torch_rebuild import Opening, Requests, end_workers, open_workers, rebuild
from holdfast.data.torch_streams import STREAMS
from holdfast.data.torch_watch import Watch, hidden, put_back


@dataclass
class _Reader:
    """One worker's part of a pass: batches that training had from it, and where its dataset stood then."""

    done: int = 0
    state: Any = None
    ended: bool = False
    streams: Any = None


class IterableStyle:
    once_each = False
    may_drop = False
    shares_order = False
    checks_indices = False

    def __init__(
        self, loader: DataLoader[Any], *, seed_samples: bool, world: int, as_torch: bool = False
    ) -> None:
        self._loader = loader
        self._as_torch = as_torch
        self.salt = 0
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
            seeded=seed_samples and not as_torch,
            with_state=self._by_state,
            with_streams=as_torch,
        )
        seeds = loader.generator if as_torch else self._worker_seeds
        self._rebuilt = rebuild(loader, pull, self._requests, seeds)
        self._opening = Opening(self._rebuilt, loader)
        self._base_seed: int | None = None  # as restored, until the loader is opened
        self._begun: dict[int, Any] = {}  # where the workers' streams stood when the pass began
        self._starts: dict[int, Any] = {}  # where new workers' streams shall begin, until they are told
        self._watch: Watch | None = None

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
        kept: dict[str, Any] = {}
        if self._by_count:
            kept = {"dataset": self._state_by_count()}
        elif self._by_state or self._as_torch:
            kept = {"readers": [asdict(reader) for reader in self._readers], "next": self._next}
        if self._as_torch:
            seed = self._opening.base_seed if self._base_seed is None else self._base_seed
            begun = {str(n): streams for n, streams in self._begun.items()}
            watch = self._watch.remember() if self._watch else None
            kept |= {"base_seed": seed, "begun": begun, "watch": watch}
        return kept

    def _state_by_count(self) -> Any:
        samples = self._consumed * self._samples_per_step
        return self._dataset.state_dict(num_samples=samples, from_beginning=True)

    def put_back(self, kept: dict[str, Any], at: Position) -> None:
        self._consumed = at.consumed
        if self._by_count:
            self._dataset.load_state_dict(kept["dataset"])
        elif "readers" in kept:
            self._readers = [_Reader(**reader) for reader in kept["readers"]]
            self._next = kept["next"]
        self._base_seed = kept.get("base_seed")
        if self._as_torch and "readers" in kept:
            self._begun = {int(n): streams for n, streams in kept["begun"].items()}
            self._starts = {n: reader.streams for n, reader in enumerate(self._readers) if reader.streams}
        self._watch = Watch(kept["watch"]) if kept.get("watch") else None

    def begin_pass(self, left: Position | None) -> None:
        streams = {n: reader.streams for n, reader in enumerate(self._readers) if reader.streams}
        self._begin_readers()
        self._begun = {}
        if self._loader.persistent_workers:
            # Workers that stay go on with their streams, those of a process that was interrupted, too.
            self._begun = streams
            for n, mine in streams.items():
                self._readers[n].streams = mine
        else:
            self._base_seed, self._starts = None, {}
        self._watch = None

    def _begin_readers(self) -> None:
        self._readers, self._next, self._consumed = self._fresh_readers(), 0, 0

    def open(self, at: Position) -> Iterator[tuple[Turn, Any]]:
        if self._as_torch:
            return self._open_as_torch(at)
        return self._open_seeded(at)

    def _open_as_torch(self, at: Position) -> Iterator[tuple[Turn, Any]]:
        """In the same order as torch, drawing where torch draws; after a restart, drawing nothing."""
        self._opened += 1
        again = self._stand_at(at)
        base_seed, self._base_seed = self._base_seed, None
        self._requests.begin = lambda: self._asks(at, self._opened, again, keep_turns=True)
        if base_seed is None and not at.consumed:
            self._watch = None if self._loader.num_workers else Watch()
            return self._watched(self._answers(self._opening.fresh(), 0, 0))
        if not again:
            loaded = hidden(lambda: self._opening.again(base_seed))
            return self._watched(self._answers(loaded, at.consumed, 0))
        if self._watch is not None:
            self._watch.say_if_mixed(f"the iterable dataset {type(self._dataset).__name__}")
        return self._watched(hidden(lambda: self._read_again(at, base_seed)))

    def _read_again(self, at: Position, base_seed: int | None) -> Iterator[tuple[Turn, Any]]:
        """Opened and read up to `at`, from the streams as they were when the pass began."""
        if self._watch is not None:
            put_back(self._watch.begun)
        answers = self._answers(self._opening.again(base_seed), 0, at.consumed)
        # Not one batch further: that one is drawn from training's streams, which stand before it.
        next(answers, None)
        return answers

    def _watched(self, answers: Iterator[tuple[Turn, Any]]) -> Iterator[tuple[Turn, Any]]:
        watch = self._watch
        if watch is None or self._by_state or self._by_count:
            return answers
        return iter(lambda: watch.pull(lambda: next(answers, None)), None)

    def _stand_at(self, at: Position) -> int:
        """Bring the dataset to where it was left; returns how many batches must be read again for that."""
        if self._by_count and at.consumed:
            self._dataset.load_state_dict(self._state_by_count())
        elif not self._by_state and not self._by_count:
            if at.consumed:
                # From the beginning, streams included.
                self._begin_readers()
                self._starts = dict(self._begun)
            return at.consumed
        elif self._by_count:
            self._readers = self._fresh_readers()
        return 0

    def _open_seeded(self, at: Position) -> Iterator[tuple[Turn, Any]]:
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(at.epoch)
        again = self._stand_at(at)
        self._opened += 1
        self._worker_seeds.manual_seed(derive(FOR_WORKERS, at.seed or 0, at.epoch, at.consumed) >> 1)
        self._requests.begin = lambda: self._asks(at, self._opened, again)
        try:
            yield from self._answers(open_workers(self._rebuilt), at.consumed - again, again)
        finally:
            self._requests.begin = None

    def close(self) -> None:
        end_workers(self._rebuilt)

    def _asks(self, at: Position, opened: int, again: int, keep_turns: bool = False) -> Iterator[Ask]:
        """One request after another to the readers in turn; those that have ended say so again."""
        base = at.key(FOR_ITERABLE, self.salt)
        readers, first = [_Reader(**asdict(reader)) for reader in self._readers], self._next
        if keep_turns:  # so that worker n is reader n, with its seeds and its streams
            for which in range(first):
                yield Ask(opened, base, which, 0, None, False, False, skipped=True)
        count = 0
        while not all(reader.ended for reader in self._readers):
            which, nth = (first + count) % len(readers), count // len(readers)
            begin = readers[which] if nth == 0 else _Reader()
            done = readers[which].done + nth
            streams = self._starts.pop(which, None)
            yield Ask(opened, base, which, done, begin.state, begin.ended, count < again, streams)
            count += 1

    def _answers(self, loaded: Iterator[Answer], consumed: int, again: int) -> Iterator[tuple[Turn, Any]]:
        first = self._next
        progress = self._say_read_again(again) if again else None
        marks = [stream.mark() for stream in STREAMS] if again and not self._as_torch else []
        answers = (answer for answer in loaded if not answer.skipped)
        for count, (batch, state, last, empty, streams, _) in enumerate(answers):
            which = (first + count) % len(self._readers)
            reader = self._readers[which]
            # A dataset at its end may say that it stands at its beginning, so the end itself is remembered.
            reader.ended = last
            if empty:
                if all(other.ended for other in self._readers):
                    return
                continue
            reader.state, reader.done, reader.streams = state, reader.done + 1, streams
            self._next = (which + 1) % len(self._readers)
            consumed += 1
            self._consumed = consumed
            if consumed > again:
                yield Turn([], consumed, 0), batch
            elif progress is not None:
                progress.one_more()
                if consumed == again and self._as_torch:
                    yield Turn([], consumed, 0), None  # to `_read_again`, which throws it away
                if consumed == again and marks:
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
