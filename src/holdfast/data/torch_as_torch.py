"""A map-style DataLoader read as torch reads it: the same draws at the same moments, so the same numbers.

What decides a pass (seeds that were drawn, the sampler's own state, the workers' streams) is noted on the
way. After a restart it is put back, the indices that were consumed are passed over without loading, and
training's generators stand as if nothing had been opened.
"""

from __future__ import annotations

import logging
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from holdfast.data.digest import with_indices
from holdfast.data.order import InSequence, Listed, Order
from holdfast.data.position import Position, Shape
from holdfast.data.seeding import FOR_SAMPLES, derive
from holdfast.data.split import Share, Turn, turns_of_order
from holdfast.data.torch_generators import held_by_dataset
from holdfast.data.torch_map_style import (
    MapStyle,
    fingerprint,
    is_distributed,
    is_shuffle,
    order_giver,
    own_replicas,
)
from holdfast.data.torch_opened import FromWorkers, InProcess
from holdfast.data.torch_plain_fetch import PlainFetch, States, Wanted
from holdfast.data.torch_rebuild import Opening, Requests, rebuild
from holdfast.data.torch_sampler_memory import SamplerMemory, SamplerRun
from holdfast.data.torch_set_by_script import SetByScript
from holdfast.data.torch_streams import STREAMS
from holdfast.errors import IncompatibleState

log = logging.getLogger("holdfast")
T = TypeVar("T")


class AsTorch:
    """Each rank reads its own loader, as it does without holdfast; a DistributedSampler has split it
    already."""

    shares_order = True

    def __init__(self, loader: DataLoader[Any], *, world: int) -> None:
        self._loader = loader
        self._sampler, batch, drop_last = order_giver(loader)
        self._is_alone = world == 1
        spread = is_distributed(self._sampler)
        self._share = Share(
            batch=batch or 1,
            rank=self._sampler.rank if spread else 0,
            world=self._sampler.num_replicas if spread else 1,
            drop_uneven=spread and self._sampler.drop_last,
            drop_short=drop_last,
        )
        self._world = self._share.world if spread else world
        if world > 1 and not spread and not own_replicas(self._sampler):
            log.warning(
                "holdfast: every one of the %d ranks reads all of this loader, as without holdfast; a "
                'DistributedSampler, or run.batches(loader, seeds="sample"), shares it out',
                world,
            )
        self.checks_indices = not spread
        self._items_are_batches = batch is None and loader.batch_sampler is not None
        self._one_item_each = self._items_are_batches or loader.batch_sampler is None
        # BatchSampler begins its sampler with the first batch, and not before.
        self._begins_late = type(loader.batch_sampler) is BatchSampler
        self._memory = SamplerMemory(self._sampler, loader.generator)
        batched = loader.batch_sampler is not None
        self._fetch = PlainFetch(loader.dataset, loader.collate_fn, batched=batched)
        self._datasets = [] if loader.num_workers else held_by_dataset(loader.dataset)
        self._set_by_script = SetByScript(self._decides)
        self._requests = Requests()
        self._opening = Opening(rebuild(loader, self._fetch, self._requests, loader.generator), loader)
        # Of the pass that is under way; what a checkpoint holds.
        self._order: dict[str, Any] | None = None
        self._seeded: int | None = None
        self._workers: dict[int, States] = {}
        # Where new workers shall begin, until they are told; those that stay may be told in a later pass.
        self._starts: dict[int, States] = {}
        # As restored, until the loader is opened.
        self._kept: dict[str, Any] | None = None
        self.salt = 0

    # ---- what it is

    @property
    def shape(self) -> Shape:
        return Shape(
            kind=MapStyle.kind_of(self._sampler, self._items_are_batches),
            size=MapStyle.size_of(self._sampler),
            batch=getattr(self._sampler, "batch_size", None) if self._items_are_batches else None,
            sharers=0 if is_distributed(self._sampler) else own_replicas(self._sampler),
            fingerprint=fingerprint(self._loader.dataset),
        )

    @property
    def once_each(self) -> bool:
        if is_distributed(self._sampler):
            return True
        return self._is_alone and (type(self._sampler) is SequentialSampler or _is_permutation(self._sampler))

    @property
    def is_light(self) -> bool:
        """Whether nothing of it lives from pass to pass but what is kept: no workers, no generators."""
        return not self._loader.persistent_workers and not self._memory.take() and not self._datasets

    @property
    def may_drop(self) -> bool:
        return self._share.drop_short or self._share.drop_uneven

    def __len__(self) -> int:
        return len(self._loader)

    # ---- what is kept

    def remember(self) -> dict[str, Any]:
        if self._kept is not None:
            return self._kept
        if self._opening.base_seed is None and self._order is None:
            return {}
        return {
            "order": self._order,
            "base_seed": self._opening.base_seed,
            "workers": self._loader.num_workers,
            "world": self._world,
            "states": self.states(),
            "sampler": self._memory.take(),
            "dataset": {stream.name: stream.mark() for stream in self._datasets},
            "seeded": self._seeded,
            "set_by_script": self._set_by_script.remember(),
        }

    def _decides(self) -> dict[str, Any]:
        """What a pass begins with, by name."""
        return {**self._memory.by_name(), **{f"dataset.{s.name}": s.mark() for s in self._datasets}}

    def states(self) -> dict[str, States]:
        """Where the workers' streams stand behind the batches that were handed out."""
        return {str(worker): states for worker, states in self._workers.items()}

    def put_back(self, kept: dict[str, Any], at: Position) -> None:
        if not kept:
            return
        self._kept = kept
        newer = self._set_by_script.put_back(kept.get("set_by_script")) if self._is_behind(at) else set()
        script = self._memory.take()
        if (order := kept["order"]) is not None and at.finished and order.get("lists"):
            # A sampler shuffles its own list when its pass begins: bring it to where that pass left it.
            self._hidden(lambda: self._take_up(order).take(1))
        self._memory.put_back(kept["sampler"])
        self._memory.put_back(self._memory.only(script, newer))
        for stream in self._datasets:
            if stream.name in kept["dataset"] and f"dataset.{stream.name}" not in newer:
                stream.restore(kept["dataset"][stream.name])

    def _is_behind(self, at: Position) -> bool:
        """Whether nothing is left of the pass: what comes next is a pass that the script has prepared."""
        try:
            return at.finished or at.batches >= len(self)
        except TypeError:
            return at.finished

    def pass_ended(self) -> None:
        self._set_by_script.pass_ended()

    def begin_pass(self, left: Position | None) -> None:
        kept, self._order, self._seeded = self._kept, None, None
        if kept is not None:
            self._kept = {**kept, "order": None, "seeded": None} if self._workers_stay(kept) else None
        if self._kept is None and not self._opening.is_running:
            self._workers, self._starts = {}, {}
        self._set_by_script.pass_begins()
        self._say_if_repeated(left)

    def _workers_stay(self, kept: dict[str, Any]) -> bool:
        """Persistent workers that the process had which was interrupted: theirs were the same all along."""
        return bool(
            self._loader.persistent_workers
            and kept["base_seed"] is not None
            and kept["workers"] == self._loader.num_workers
        )

    # ---- opening

    def open(self, at: Position) -> Iterator[tuple[Turn, Any]]:
        kept, self._kept = self._kept, None
        if kept is None:
            return self._opened(lambda: self._turns(at), self._opening.fresh, draws=True)
        base_seed = self._opening.base_seed = kept["base_seed"]
        self._workers = {int(worker): states for worker, states in kept["states"].items()}
        self._starts = dict(self._workers)

        def again() -> Iterator[Any]:
            return self._opening.again(base_seed)

        if kept["order"] is None:  # a new pass, with the workers that there were
            return self._opened(lambda: self._turns(at), again)
        self._order, self._seeded = kept["order"], kept["seeded"]
        if self._is_other(kept):
            self._take_over(kept, at)
        return self._hidden(lambda: self._opened(lambda: self._turns_again(at), again, before=at.batches))

    def _opened(
        self,
        turns: Callable[[], Iterator[Turn]],
        open_loader: Callable[[], Iterator[Any]],
        *,
        before: int = 0,
        draws: bool = False,
    ) -> Iterator[tuple[Turn, Any]]:
        asked: deque[Turn] = deque()
        workers = self._loader.num_workers
        starts = self._starts

        def requests(turns: Iterator[Turn]) -> Iterator[Any]:
            number = before % workers if workers else 0
            for worker in range(number):  # so that every worker goes on with the batches that were its own
                yield Wanted(None, starts.pop(worker, None), skipped=True)
            for turn in turns:
                wanted = turn.items[0] if self._one_item_each else turn.items
                asked.append(turn._replace(items=wanted) if self._items_are_batches else turn)
                start = starts.pop(number % workers, None) if starts else None
                plain = start is None and self._seeded is None
                yield wanted if plain else Wanted(wanted, start, self._seeded)
                number += 1

        if workers == 0 and not self._loader.pin_memory:
            # Nothing is left for a DataLoader to do but its profiling, which costs more than all of ours.
            begun = turns()
            if draws:
                self._draw_base_seed()
            return InProcess(requests(begun), self._fetch.load, asked)
        self._requests.begin = lambda: requests(turns())
        return FromWorkers(open_loader(), asked, self._requests, self._heard)

    def _draw_base_seed(self) -> None:
        """torch draws it for every pass, also where there are no workers to seed."""
        drawn = torch.empty((), dtype=torch.int64).random_(generator=self._loader.generator)
        self._opening.base_seed = int(drawn.item())

    def _heard(self, number: int, states: States) -> None:
        """Workers take turns, so the number of an answer says whose it is."""
        if workers := self._loader.num_workers:
            self._workers[number % workers] = states

    def _hidden(self, work: Callable[[], T]) -> T:
        """What opening draws after a restart was drawn before it."""
        generators = self._memory.take().get("generators", {})
        marks = [stream.mark() for stream in STREAMS]
        try:
            return work()
        finally:
            for stream, mark in zip(STREAMS, marks, strict=True):
                stream.restore(mark)
            self._memory.put_back({"generators": generators})

    # ---- the order

    def _turns(self, at: Position) -> Iterator[Turn]:
        """A new pass. What a sampler does when `iter` is called on it, it does now."""
        if self._has_order:
            return self._turns_of_order(at)
        run = SamplerRun(self._sampler, self._memory, self._note)
        if not self._begins_late:
            run.begin()
        return _turns_of(run.take, at.consumed, self._share)

    def _turns_again(self, at: Position) -> Iterator[Turn]:
        """The rest of a pass that another process had begun."""
        if self._has_order:
            return self._turns_of_order(at)
        if self._loader.num_workers:
            # torch begins a sampler twice for its workers, and asks only the second time.
            return _late(lambda: self._after_passing_over(at))
        return self._after_passing_over(at)

    def _after_passing_over(self, at: Position) -> Iterator[Turn]:
        assert self._order is not None
        take = self._take_up(self._order).take
        rest, digest, size = at.consumed, 0, MapStyle.size_of(self._sampler)
        # Batch by batch, as it was read: what a sampler draws at its end was drawn with the last one.
        batch, is_all = self._share.batch, size is not None and at.consumed >= size
        while rest > 0 and (passed := take(batch if is_all else min(rest, batch))):
            rest -= len(passed)
            digest = with_indices(digest, passed)
        _require_same(digest, at, type(self._sampler).__name__)
        return _turns_of(take, at.consumed - rest, self._share)

    @property
    def _has_order(self) -> bool:
        """Whether the whole order follows from a number or two."""
        sampler = self._sampler
        return type(sampler) is SequentialSampler or is_shuffle(sampler) or is_distributed(sampler)

    def _note(self, order: dict[str, Any]) -> None:
        self._order = order

    def _take_up(self, noted: dict[str, Any]) -> SamplerRun:
        run = SamplerRun(self._sampler, self._memory, self._note)
        run.take_up(noted)
        return run

    def _turns_of_order(self, at: Position) -> Iterator[Turn]:
        order = self._whole_order()
        if at.consumed and self.checks_indices:
            passed = zlib.crc32(order.read(0, min(at.consumed, order.size)).data)
            _require_same(passed, at, type(self._sampler).__name__)
        yield from turns_of_order(order, at.consumed, self._share)

    def _whole_order(self) -> Order:
        sampler, noted = self._sampler, self._order
        if type(sampler) is SequentialSampler:
            self._order = {}
            return InSequence(len(sampler))
        if is_distributed(sampler):
            self._order = noted or {"seed": sampler.seed, "epoch": sampler.epoch}
            if not sampler.shuffle:
                return InSequence(len(sampler.dataset))
            seed, size = self._order["seed"] + self._order["epoch"], len(sampler.dataset)
        else:
            # The one number that RandomSampler draws when it is first asked.
            drawn = noted["seed"] if noted else int(torch.empty((), dtype=torch.int64).random_().item())
            self._order = {"seed": drawn}
            seed, size = drawn, len(sampler)
        return Listed(torch.randperm(size, generator=torch.Generator().manual_seed(seed)).numpy())

    # ---- what is said

    def _is_other(self, kept: dict[str, Any]) -> bool:
        if self._seeded is not None:
            return False
        changed = kept["workers"] != self._loader.num_workers or kept["world"] != self._world
        # Samples that were seen to draw nothing, in workers that could tell, do not care who loads them.
        return changed and not (kept["workers"] and self._loader.num_workers and not kept["states"])

    def _take_over(self, kept: dict[str, Any], at: Position) -> None:
        self._seeded = derive(FOR_SAMPLES, kept["base_seed"] or 0, at.epoch, at.passes)
        self._workers, self._starts = {}, {}
        log.warning(
            "holdfast: epoch %d was begun with %d workers on %d ranks and goes on with %d on %d: the "
            "samples that "
            "remain are the same; random numbers inside them are seeded per sample until the epoch ends",
            at.epoch, kept["workers"], kept["world"], self._loader.num_workers, self._world,
        )  # fmt: skip

    def _say_if_repeated(self, left: Position | None) -> None:
        sampler = self._sampler
        if not is_distributed(sampler) or not sampler.shuffle or left is None or left.epoch:
            return
        if sampler.epoch == 0 and left.passes == 0:
            log.warning(
                "holdfast: sampler.set_epoch(epoch) was not called, so every epoch has the same "
                "order, as it has "
                "without holdfast"
            )

    def close(self) -> None:
        self._opening.close()


def _turns_of(take: Callable[[int], list[Any]], consumed: int, share: Share) -> Iterator[Turn]:
    """Batch by batch, as torch's BatchSampler makes them."""
    while len(block := take(share.batch)) == share.batch:
        consumed += share.batch
        yield Turn(block, consumed, 0)
    if block and not share.drop_short:
        yield Turn(block, consumed + len(block), 0)


def _late(begin: Callable[[], Iterator[Turn]]) -> Iterator[Turn]:
    yield from begin()


def _is_permutation(sampler: Any) -> bool:
    return (
        type(sampler) is RandomSampler
        and not sampler.replacement
        and sampler.num_samples == len(sampler.data_source)
    )


def _require_same(digest: int, at: Position, name: str) -> None:
    if at.digest is not None and digest != at.digest:
        raise IncompatibleState(
            f"the {at.consumed:,} indices that {name} gave before the restart are not those that it "
            f"gives now, so "
            "some samples would come twice and some never",
            hint="give the sampler a generator of its own or state_dict and load_state_dict; or pass "
            'changed_data="restart" to begin the epoch again',
        )
