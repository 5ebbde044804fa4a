"""A map-style DataLoader that can be opened at any position: the user's loader rebuilt around our own requests.

Everything the user chose stays (workers, collating, pinning, prefetching, contexts); only who says which samples
come next is replaced. Opening it never draws from training's generators.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from holdfast.data.order import InSequence, Listed, Order, shuffled
from holdfast.data.seeding import FOR_SAMPLES, FOR_WORKERS, derive
from holdfast.data.split import Share, Turn, turns_of_order, turns_of_stream
from holdfast.data.torch_fetch import Request, SeededFetch, WorkerStart
from holdfast.data.torch_sampler_order import SamplerPass, put_back, remember


class MapStyle:
    """`seed_samples` as in Feed; `rank` and `world` say how the global order is shared."""

    def __init__(self, loader: DataLoader[Any], *, seed_samples: bool, rank: int, world: int) -> None:
        self._loader = loader
        sampler, batch, drop_last = _order_giver(loader)
        self._sampler = sampler
        self._split_by_sampler = world > 1 and _knows_its_rank(sampler) and not _is_distributed(sampler)
        if self._split_by_sampler:
            rank, world = 0, 1
        self.share = Share(
            batch=batch or 1,
            rank=rank,
            world=world,
            drop_uneven=_is_distributed(sampler) and sampler.drop_last,
            drop_short=drop_last,
        )
        # Items of the order are single indices, or whole batches where the user's batch sampler makes them.
        self._items_are_batches = batch is None and loader.batch_sampler is not None
        self._items_are_requests = self._items_are_batches or loader.batch_sampler is None
        self._requests = _Requests()
        self._worker_seeds = torch.Generator()
        self._rebuilt = self._rebuild(seed_samples)

    @property
    def kind(self) -> str:
        """The word that a saved position and this loader must agree on."""
        if self._items_are_batches:
            return f"batch sampler {type(self._sampler).__name__}"
        if _is_shuffle(self._sampler):
            return "shuffled"
        if type(self._sampler) is SequentialSampler:
            return "sequential"
        return f"sampler {type(self._sampler).__name__}"

    @property
    def shared_by(self) -> int:
        """Ranks between which a user's own sampler has split the data itself, or 0 if that is our work."""
        return int(getattr(self._sampler, "num_replicas", 0)) if self._split_by_sampler else 0

    @property
    def size(self) -> int | None:
        """Items in the order of a whole epoch, where that is known."""
        if _is_distributed(self._sampler):
            return len(self._sampler.dataset)
        try:
            return len(self._sampler)
        except TypeError:
            return None

    @property
    def once_each(self) -> bool:
        """Whether an epoch is promised to hold every index of the dataset once."""
        return (
            type(self._sampler) is SequentialSampler
            or _is_shuffle(self._sampler)
            or _is_distributed(self._sampler)
        )

    def __len__(self) -> int:
        if self.size is None:
            raise TypeError(f"{type(self._sampler).__name__} has no length")
        return self.share.turns_in(self.size)

    def remember(self) -> dict[str, Any]:
        """What the coming pass of a user's sampler depends on; empty where (seed, epoch) says it all."""
        return {} if self.once_each else remember(self._sampler, self._loader.generator)

    def put_back(self, kept: dict[str, Any]) -> None:
        if not self.once_each:
            put_back(self._sampler, kept, self._loader.generator)

    def advance(self, epoch: int, seed: int, consumed: int | None) -> None:
        """Take the user's sampler through `consumed` items of a pass (all: None), as training did once."""
        if not self.once_each:
            whole = self.share.stride
            taken = self._begin_pass(seed, epoch)
            left = consumed
            while left is None or left > 0:
                got = len(taken(min(whole, left) if left is not None else whole))
                if got == 0:
                    return
                left = None if left is None else left - got

    def open(self, epoch: int, seed: int, start: int) -> Iterator[tuple[Turn, Any]]:
        """The batches from item `start` of the epoch on, each with the turn that asked for it."""
        asked: deque[Turn] = deque()
        base = derive(FOR_SAMPLES, seed, epoch)

        def requests() -> Iterator[Request]:
            for turn in self._turns(epoch, seed, start):
                asked.append(turn)
                yield base, turn.items[0] if self._items_are_requests else turn.items

        self._requests.begin = requests
        # Workers that are not seeded per sample must not repeat the numbers of the epoch's first batches.
        self._worker_seeds.manual_seed(derive(FOR_WORKERS, seed, epoch, start) >> 1)
        for batch in self._rebuilt:
            yield asked.popleft(), batch

    def _turns(self, epoch: int, seed: int, start: int) -> Iterator[Turn]:
        if self.once_each:
            return turns_of_order(self._order(epoch, seed), start, self.share)
        return turns_of_stream(self._begin_pass(seed, epoch), start, self.share)

    def _order(self, epoch: int, seed: int) -> Order:
        sampler = self._sampler
        if type(sampler) is SequentialSampler:
            return InSequence(len(sampler))
        if not _is_distributed(sampler):
            return shuffled(len(sampler), seed, epoch)
        size = len(sampler.dataset)
        if not sampler.shuffle:
            return InSequence(size)
        generator = torch.Generator().manual_seed(sampler.seed + epoch)
        return Listed(torch.randperm(size, generator=generator).numpy())

    def _begin_pass(self, seed: int, epoch: int) -> Callable[[int], list[Any]]:
        if self._loader.generator is not None:
            # A bare DataLoader first draws its workers' seed; a sampler on the same generator follows it.
            torch.empty((), dtype=torch.int64).random_(generator=self._loader.generator)
        return SamplerPass(self._sampler, seed, epoch).take

    def _rebuild(self, seed_samples: bool) -> DataLoader[Any]:
        loader = self._loader
        if not loader.in_order:
            warnings.warn(
                "in_order=False is not used: a position in the data needs batches in a fixed order",
                stacklevel=4,
            )
        options: dict[str, Any] = {}
        if loader.num_workers > 0:
            options = {
                "multiprocessing_context": loader.multiprocessing_context,
                "prefetch_factor": loader.prefetch_factor,
                "persistent_workers": loader.persistent_workers,
                "worker_init_fn": WorkerStart(loader.worker_init_fn),
            }
        if loader.pin_memory_device:
            options["pin_memory_device"] = loader.pin_memory_device
        batched = loader.batch_sampler is not None
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # what there is to warn of, the user's own loader has said already
            return DataLoader(
                SeededFetch(loader.dataset, loader.collate_fn, batched=batched, seeded=seed_samples),
                batch_size=None,
                sampler=self._requests,
                collate_fn=_as_it_is,
                num_workers=loader.num_workers,
                pin_memory=loader.pin_memory,
                timeout=loader.timeout,
                generator=self._worker_seeds,
                **options,
            )


class _Requests:
    """The sampler of the rebuilt loader. torch may call `iter` on it twice for one pass, so it keeps no
    position of its own."""

    begin: Callable[[], Iterator[Request]] | None = None

    def __iter__(self) -> Iterator[Request]:
        return iter(()) if self.begin is None else self.begin()


def _as_it_is(batch: Any) -> Any:
    return batch


def _order_giver(loader: DataLoader[Any]) -> tuple[Any, int | None, bool]:
    """Who gives the order: (sampler, batch size, drop_last); batch size None where the giver makes batches or
    the loader loads single samples."""
    batches = loader.batch_sampler
    if batches is None:
        return loader.sampler, None, False
    if type(batches) is BatchSampler:
        return batches.sampler, batches.batch_size, batches.drop_last
    return batches, None, False


def _is_shuffle(sampler: Any) -> bool:
    # One with a generator is the user's own order, which is kept.
    return (
        type(sampler) is RandomSampler
        and not sampler.replacement
        and sampler.generator is None
        and sampler.num_samples == len(sampler.data_source)
    )


def _is_distributed(sampler: Any) -> bool:
    return type(sampler) is DistributedSampler


def _knows_its_rank(sampler: Any) -> bool:
    inner = getattr(sampler, "sampler", None)
    return hasattr(sampler, "num_replicas") or (inner is not None and _knows_its_rank(inner))
