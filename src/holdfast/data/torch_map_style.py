"""A map-style DataLoader that can be opened at any position, on any number of ranks.

Only who says which samples come next is replaced. Nothing is loaded to get to a position.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from holdfast.data.order import InSequence, Listed, Order, shuffled_by
from holdfast.data.position import Position, Shape
from holdfast.data.seeding import FOR_ORDER, FOR_SAMPLER, FOR_SAMPLES, FOR_WORKERS, derive
from holdfast.data.split import Share, Turn, turns_of_order, turns_of_stream
from holdfast.data.torch_fetch import Request, SeededFetch
from holdfast.data.torch_opened import FromWorkers, InProcess
from holdfast.data.torch_rebuild import Requests, end_workers, open_workers, rebuild
from holdfast.data.torch_sampler_order import SamplerPass, put_back, remember

_MANY = 1 << 13  # indices asked of a sampler at once when passing over them


class MapStyle:
    """`rank` and `world` say how the global order is shared; a DistributedSampler knows that better."""

    shares_order = True
    checks_indices = False

    def __init__(self, loader: DataLoader[Any], *, seed_samples: bool, rank: int, world: int) -> None:
        self._loader = loader
        self._sampler, batch, drop_last = order_giver(loader)
        self._sharers = 0
        if is_distributed(self._sampler):
            rank, world = self._sampler.rank, self._sampler.num_replicas
        elif replicas := own_replicas(self._sampler):
            # The user's sampler gives each rank its part already; dealing it out again would lose most of it.
            self._sharers, rank, world = replicas, 0, 1
        self._share = Share(
            batch=batch or 1,
            rank=rank,
            world=world,
            drop_uneven=is_distributed(self._sampler) and self._sampler.drop_last,
            drop_short=drop_last,
        )
        # Items of the order are single indices, or whole batches where the user's batch sampler makes them.
        self._items_are_batches = batch is None and loader.batch_sampler is not None
        self._one_item_each = self._items_are_batches or loader.batch_sampler is None
        self._memory: dict[str, Any] = {}
        self.salt = 0
        batched = loader.batch_sampler is not None
        self._fetch = SeededFetch(loader.dataset, loader.collate_fn, batched=batched, seeded=seed_samples)
        self._requests = Requests()
        self._worker_seeds = torch.Generator()
        self._rebuilt = rebuild(loader, self._fetch, self._requests, self._worker_seeds)

    @property
    def shape(self) -> Shape:
        return Shape(
            kind=self.kind_of(self._sampler, self._items_are_batches),
            size=self.size_of(self._sampler),
            batch=getattr(self._sampler, "batch_size", None) if self._items_are_batches else None,
            sharers=self._sharers,
            fingerprint=fingerprint(self._loader.dataset),
        )

    @property
    def once_each(self) -> bool:
        sampler = self._sampler
        return type(sampler) is SequentialSampler or is_shuffle(sampler) or is_distributed(sampler)

    @property
    def may_drop(self) -> bool:
        return self._share.drop_short or self._share.drop_uneven

    def __len__(self) -> int:
        size = self.size_of(self._sampler)
        if size is None:
            raise TypeError(f"{type(self._sampler).__name__} has no length")
        return self._share.turns_in(size)

    def remember(self) -> dict[str, Any]:
        return self._memory

    def put_back(self, kept: dict[str, Any], at: Position) -> None:
        if not self.once_each:
            put_back(self._sampler, kept, self._loader.generator)
            self._memory = kept

    def begin_pass(self, left: Position | None) -> None:
        if self.once_each:
            return
        if left is not None:
            self._stand_where_left(left)
        self._memory = remember(self._sampler, self._loader.generator)

    def _stand_where_left(self, left: Position) -> None:
        """Workers ask ahead, and a restored sampler has asked for nothing yet: bring both to what was
        consumed."""
        put_back(self._sampler, self._memory, self._loader.generator, is_same=True)
        take = self._begin_sampling(left)
        remaining = None if left.finished else left.consumed
        while remaining is None or remaining > 0:
            got = len(take(_MANY if remaining is None else min(_MANY, remaining)))
            if got == 0:
                return
            remaining = None if remaining is None else remaining - got

    def open(self, at: Position) -> Iterator[tuple[Turn, Any]]:
        asked: deque[Turn] = deque()
        base, is_old = self._base(FOR_SAMPLES, at), at.recipe == 1
        if not self.once_each:
            put_back(self._sampler, self._memory, self._loader.generator, is_same=True)

        def requests() -> Iterator[Request]:
            before = at.consumed
            for turn in self._turns(at):
                wanted = turn.items[0] if self._one_item_each else turn.items
                asked.append(turn._replace(items=wanted) if self._items_are_batches else turn)
                yield (base, wanted) if is_old or self.once_each else (base, wanted, self._places(before))
                before = turn.consumed

        if self._loader.num_workers == 0 and not self._loader.pin_memory:
            # Nothing is left for a DataLoader to do but its profiling, which costs more than all of ours.
            return InProcess(requests(), self._fetch.__getitem__, asked)
        self._requests.begin = requests
        # Workers that are not seeded per sample must not repeat the numbers of the epoch's first batches.
        self._worker_seeds.manual_seed(derive(FOR_WORKERS, at.seed or 0, at.epoch, at.consumed) >> 1)
        return FromWorkers(open_workers(self._rebuilt), asked, self._requests)

    def _places(self, before: int) -> tuple[int, int]:
        """Of this rank's items in the order. A batch sampler's batches have as many places as they need."""
        if self._items_are_batches:
            return (before + self._share.rank) << 24, 1
        return before + self._share.rank, self._share.world

    def _base(self, purpose: int, at: Position) -> int:
        return at.key(purpose, self.salt)

    def close(self) -> None:
        end_workers(self._rebuilt)

    def _turns(self, at: Position) -> Iterator[Turn]:
        if self.once_each:
            return turns_of_order(self._order(at), at.consumed, self._share)
        return turns_of_stream(self._begin_sampling(at), at.consumed, self._share)

    def _order(self, at: Position) -> Order:
        sampler = self._sampler
        if type(sampler) is SequentialSampler:
            return InSequence(len(sampler))
        if not is_distributed(sampler):
            return shuffled_by(len(sampler), at.key(FOR_ORDER, self.salt))
        if not sampler.shuffle:
            return InSequence(len(sampler.dataset))
        # Its own formula, so that moving to holdfast does not change a run's order.
        generator = torch.Generator().manual_seed(sampler.seed + at.epoch)
        return Listed(torch.randperm(len(sampler.dataset), generator=generator).numpy())

    def _begin_sampling(self, at: Position) -> Callable[[int], list[Any]]:
        if self._loader.generator is not None:
            # A bare DataLoader first draws its workers' seed; a sampler on the same generator follows it.
            torch.empty((), dtype=torch.int64).random_(generator=self._loader.generator)
        return SamplerPass(self._sampler, at.key(FOR_SAMPLER, self.salt), at.epoch).take

    @staticmethod
    def kind_of(sampler: Any, items_are_batches: bool) -> str:
        name = type(sampler).__name__
        if items_are_batches:
            return f"given by the batch sampler {name}"
        if type(sampler) is SequentialSampler:
            return "sequential"
        return "shuffled" if is_shuffle(sampler) else f"given by the sampler {name}"

    @staticmethod
    def size_of(sampler: Any) -> int | None:
        if is_distributed(sampler):
            return len(sampler.dataset)
        try:
            return len(sampler)
        except TypeError:
            return None


def order_giver(loader: DataLoader[Any]) -> tuple[Any, int | None, bool]:
    """Who gives the order: (sampler, batch size, drop_last); batch size None where the giver makes batches or
    the loader loads single samples."""
    batches = loader.batch_sampler
    if batches is None:
        return loader.sampler, None, False
    if type(batches) is BatchSampler:
        return batches.sampler, batches.batch_size, batches.drop_last
    return batches, None, False


def is_shuffle(sampler: Any) -> bool:
    # One with a generator is the user's own order, which is kept.
    return (
        type(sampler) is RandomSampler
        and not sampler.replacement
        and sampler.generator is None
        and sampler.num_samples == len(sampler.data_source)
    )


def is_distributed(sampler: Any) -> bool:
    return type(sampler) is DistributedSampler


def own_replicas(sampler: Any) -> int:
    """Between how many ranks a user's sampler, or the one inside it, splits the data; 0 if it does not."""
    inner = getattr(sampler, "sampler", None)
    return int(getattr(sampler, "num_replicas", 0) or (0 if inner is None else own_replicas(inner)))


def fingerprint(dataset: Any) -> str | None:
    """The dataset's own word for its content, such as Hugging Face datasets keep."""
    for name in ("fingerprint", "_fingerprint"):
        value = getattr(dataset, name, None)
        if isinstance(value, str):
            return value[:128]
    return None
