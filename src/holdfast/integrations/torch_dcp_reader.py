"""Load through torch.distributed.checkpoint from a holdfast folder: on any number of ranks, verified."""

from __future__ import annotations

import io
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from holdfast.capture.torch_leaves import TORCH_LEAVES, leaf_from_bytes
from holdfast.checkpoints.find import Found, committed, look_again
from holdfast.checkpoints.proof import PROVEN
from holdfast.checkpoints.ranges import chunks_of, read_chunks
from holdfast.checkpoints.read import load_surely, require_manifest
from holdfast.contents.dcp import DCP_KEY
from holdfast.contents.regions import Region, row_major
from holdfast.errors import (
    CorruptCheckpoint,
    IncompatibleState,
    NoValidCheckpoint,
    RestoreError,
    StoreNotFound,
)
from holdfast.format.image import ITEM_BYTES, ImageLayout
from holdfast.format.tree import inflate
from holdfast.integrations.checkpoint_ids import step_in
from holdfast.integrations.torch_dcp_metadata import ObjectPlace, TensorPlace, decode_metadata
from holdfast.stores.base import Store
from holdfast.stores.store import CheckpointStore

log = logging.getLogger("holdfast")
Spans = Mapping[str, Mapping[str, tuple[int, int]]]


class HoldfastReader(StorageReader):
    """For `dcp.load`: the newest checkpoint in the folder, or the one of `step`.

    >>> dcp.load(state, storage_reader=HoldfastReader("runs/llama"))

    Each rank reads the chunks that hold what it needs and compares every one with its digest. DCP loads in
    place: after a CorruptCheckpoint the tensors hold a mixture, so load an older step over it.
    """

    def __init__(self, path: str | os.PathLike[str], step: int | None = None, *, threads: int = 4) -> None:
        super().__init__()
        self.path = os.path.abspath(os.fspath(path))
        self.step = step
        self.bytes_read = 0
        self._threads = threads
        self._store = CheckpointStore(self.path)
        self._found: Found | None = None
        self._places: dict[Any, TensorPlace | ObjectPlace] = {}

    # ---- what DCP calls, in this order

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self._found = None
        if checkpoint_id is not None:
            self.step = step_in(checkpoint_id)

    # Without the **kwargs of the abstract method: given those, DCP answers any failure by trying again for
    # metadata of a single rank, and damage would turn into another way of loading.
    def read_metadata(self) -> Metadata:
        self._found = self._choose()
        metadata = decode_metadata(require_manifest(self._found))
        metadata.storage_meta = StorageMeta(
            checkpoint_id=os.path.join(self.path, "ckpt", str(self._found.name))
        )
        return metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        self._places = metadata.storage_data
        self.bytes_read = 0

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        found = self._chosen
        return replace(plan, storage_data=(str(found.name), found.sha256))

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        # Each rank has looked for itself, and a save may have been committed in between.
        chosen = sorted({plan.storage_data for plan in plans})
        if len(chosen) > 1:
            raise RestoreError(
                f"the ranks do not see the same newest checkpoint in {self.path}: "
                + ", ".join(name for name, _ in chosen[:4]),
                hint="name one: HoldfastReader(path, step=...)",
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        wants: list[_Range] = []
        objects: list[Callable[[], None]] = []
        for item in plan.items:
            place = self._places[item.storage_index]
            if isinstance(place, ObjectPlace):
                objects.append(_wanted_object(item, place, planner, wants))
            elif item.type == LoadItemType.BYTE_IO:
                raise IncompatibleState(f"{item.storage_index.fqn!r} was saved as a tensor")
            else:
                wants.append(_wanted_tensor(item, place, planner))
        self.bytes_read += _read(self._store, self._chosen, wants, self._spans(), self._threads)
        for load in objects:
            load()
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return os.path.isdir(os.path.join(os.fspath(checkpoint_id), "ckpt"))

    # ---- how

    @property
    def _chosen(self) -> Found:
        return self._found if self._found is not None else self._choose()

    def _choose(self) -> Found:
        if not Path(self.path).is_dir():
            raise StoreNotFound(f"there is no folder {self.path}", hint="is this the path that was saved to?")
        found = committed(self._store)
        if not found:
            raise _nothing_here(self.path)
        wanted = [one for one in found if self.step in (None, one.step)]
        if not wanted:
            steps = ", ".join(str(one.step) for one in found[:8])
            raise StoreNotFound(
                f"no checkpoint of step {self.step} in {self.path}", hint=f"the newest are those of {steps}"
            )
        for one in wanted:
            try:
                manifest = load_surely(self._store, one, require_manifest)
            except PROVEN:
                log.warning("holdfast: %s is unreadable and passed over: %s", one.name, one.problem)
                continue
            if DCP_KEY not in manifest.values:
                raise IncompatibleState(
                    f"checkpoint {one.name} in {self.path} was not saved through DCP",
                    hint="restore it with holdfast.Run or holdfast.restore",
                )
            return look_again(self._store, one)
        raise NoValidCheckpoint(
            f"{self.path} holds {len(wanted)} such checkpoints and none is readable: {wanted[0].problem}",
            hint="restore them from another copy",
        )

    def _spans(self) -> dict[str, dict[str, tuple[int, int]]]:
        """Which tensors lie where, for the message about damage."""
        spans: dict[str, dict[str, tuple[int, int]]] = {}
        for index, place in self._places.items():
            if isinstance(place, TensorPlace):
                part = f"{index.fqn}@{','.join(map(str, index.offset or ()))}"
                spans.setdefault(place.file, {})[part] = (place.start, place.stop)
        return spans


@dataclass
class _Range:
    """Bytes [start, stop) of `file`. `into` gives the memory for them when the first has come, `done` is
    called once when all have; neither is ever called from two threads at once."""

    file: str
    start: int
    stop: int
    into: Callable[[], torch.Tensor]
    done: Callable[[], None]
    _memory: torch.Tensor | None = field(default=None, init=False)
    _missing: int = field(default=-1, init=False)

    def memory(self) -> torch.Tensor:
        if self._memory is None:
            self._memory = self.into()
        return self._memory

    def came(self, nbytes: int) -> None:
        self._missing = (self.stop - self.start if self._missing < 0 else self._missing) - nbytes
        if self._missing == 0:
            self.done()
            self._memory = None


def _read(store: Store, found: Found, wants: Sequence[_Range], spans: Spans, threads: int) -> int:
    """Fill everything wanted and return how many bytes were read for it.

    CorruptCheckpoint names the file, the chunk and, by `spans`, the tensors in it.
    """
    for want in wants:
        if want.start == want.stop:
            want.done()
    by_chunk = chunks_of(found, wants)
    placing = threading.Lock()

    def take(name: str, index: int, start: int, chunk: memoryview) -> None:
        data = torch.frombuffer(chunk, dtype=torch.uint8)
        for want in by_chunk[name, index]:
            low, high = max(want.start, start), min(want.stop, start + len(chunk))
            with placing:
                memory = want.memory()
            memory[low - want.start : high - want.start].copy_(data[low - start : high - start])
            with placing:
                want.came(high - low)

    layouts = {name: ImageLayout(b"", 0, {}, named) for name, named in spans.items()}
    hint = "load an older one: HoldfastReader(path, step=...); see holdfast list"
    return read_chunks(store, found, by_chunk, take, threads=threads, layouts=layouts, hint=hint)


def _wanted_tensor(item: ReadItem, place: TensorPlace, planner: LoadPlanner) -> _Range:
    box = Region(tuple(item.storage_offsets), tuple(item.lengths))
    first, count = box.span_within(Region.whole(place.shape))
    nbytes = count * place.dtype.itemsize
    start = place.start + first * place.dtype.itemsize
    memory: list[torch.Tensor] = []

    def into() -> torch.Tensor:
        target = planner.resolve_tensor(item).detach()
        # Whole rows into a plain tensor in this memory: no detour.
        direct = target.device.type == "cpu" and target.is_contiguous() and target.dtype is place.dtype
        if direct and target.nbytes == nbytes:
            memory[:] = [target.reshape(-1).view(torch.uint8)]
        else:
            memory[:] = [torch.empty(nbytes, dtype=torch.uint8)]
        return memory[0]

    def done() -> None:
        target = planner.resolve_tensor(item).detach()
        if tuple(target.shape) != tuple(item.lengths):
            raise IncompatibleState(
                f"{item.dest_index.fqn!r}: {list(item.lengths)} are stored, {list(target.shape)} wanted"
            )
        raw = memory.pop() if memory else torch.empty(0, dtype=torch.uint8)
        if raw.numel() and raw.data_ptr() != target.data_ptr():
            rows = raw.view(place.dtype).as_strided(box.shape, row_major(place.shape))
            target.copy_(rows)
        planner.commit_tensor(item, target)

    return _Range(place.file, start, start + nbytes, into, done)


def _wanted_object(
    item: ReadItem, place: ObjectPlace, planner: LoadPlanner, wants: list[_Range]
) -> Callable[[], None]:
    """Ask for the object's tensors, and return what hands it to the planner once they are there."""
    raws: list[tuple[dict[str, Any], torch.Tensor]] = []

    def ask(entry: dict[str, Any]) -> None:
        nbytes = ITEM_BYTES[entry["code"]] * int(torch.Size(entry["dims"]).numel())
        raw = torch.empty(nbytes, dtype=torch.uint8)
        raws.append((entry, raw))
        wants.append(_Range(place.file, entry["at"], entry["at"] + nbytes, lambda: raw, lambda: None))

    inflate(place.node, place.values, ask, TORCH_LEAVES)

    def load() -> None:
        ready = iter(raws)

        def tensor(_: dict[str, Any]) -> Any:
            entry, raw = next(ready)
            return leaf_from_bytes(entry, entry["code"], entry["dims"], raw)

        try:
            value = inflate(place.node, place.values, tensor, TORCH_LEAVES)
        except (KeyError, TypeError, RuntimeError, AttributeError) as error:
            raise CorruptCheckpoint(f"{item.storage_index.fqn!r} cannot be rebuilt: {error!r}") from error
        # A planner expects what torch.save gives. Made here, from checked values: no pickle is ever stored.
        serialised = io.BytesIO()
        torch.save(value, serialised)
        serialised.seek(0)
        planner.load_bytes(item, serialised)

    return load


def _nothing_here(path: str) -> StoreNotFound:
    if (Path(path) / ".metadata").exists():
        return StoreNotFound(
            f"{path} was written by DCP's FileSystemWriter",
            hint="load it with FileSystemReader and save it once with HoldfastWriter",
        )
    return StoreNotFound(f"no checkpoint in {path}", hint="is this the path that was saved to?")
