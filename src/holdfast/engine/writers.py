"""Who takes part in writing a checkpoint: this process alone, or every rank."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from holdfast.checkpoints.bytes_source import BytesSource
from holdfast.checkpoints.write import CheckpointDraft, Committed, write_checkpoint, write_copy
from holdfast.checkpoints.write_together import decline, write_together
from holdfast.errors import StoreError
from holdfast.format.image import ImageLayout
from holdfast.format.rank_record import ImageHeader, RankRecord, record_name
from holdfast.ranks.ballot import Ballot
from holdfast.ranks.team import Team
from holdfast.stores.base import ImageSource, Store

log = logging.getLogger("holdfast")


class Writer(Protocol):
    def write(
        self,
        save: str,
        draft: CheckpointDraft,
        sources: Sequence[ImageSource],
        layouts: Mapping[str, ImageLayout],
        shared: str,
        in_memory: Callable[[], None],
    ) -> Committed:
        """Durable when it returns. `shared` stands for how common tensors were divided; `in_memory` is called
        as soon as a killed process would find the checkpoint in its memory tier."""
        ...

    def decline(self, save: str, error: str) -> None:
        """This process takes no part in a save that others may be waiting for."""
        ...


class Alone:
    def __init__(self, store: Store, memory: Store | None = None) -> None:
        self._store = store
        self._memory = memory

    def write(
        self,
        save: str,
        draft: CheckpointDraft,
        sources: Sequence[ImageSource],
        layouts: Mapping[str, ImageLayout],
        shared: str,
        in_memory: Callable[[], None],
    ) -> Committed:
        memory = self._memory
        if memory is self._store and memory is not None:
            committed = write_checkpoint(memory, draft, sources)
            in_memory()
            return committed
        if memory is None or not all(source.concurrent for source in sources):
            return write_checkpoint(self._store, draft, sources)
        try:
            near = write_checkpoint(memory, draft, sources)
        except StoreError as error:
            log.warning("holdfast: step %d is not kept in memory: %s", draft.step, error)
            return write_checkpoint(self._store, draft, sources)
        in_memory()
        write_copy(self._store, near.manifest, memory.manifest(str(near.name)), sources)
        return near

    def decline(self, save: str, error: str) -> None:
        pass


class Everybody:
    def __init__(self, store: Store, team: Team, ballot: Ballot) -> None:
        self._store = store
        self._team = team
        self._ballot = ballot

    def write(
        self,
        save: str,
        draft: CheckpointDraft,
        sources: Sequence[ImageSource],
        layouts: Mapping[str, ImageLayout],
        shared: str,
        in_memory: Callable[[], None],
    ) -> Committed:
        team = self._team
        headers = {file: ImageHeader.of(layout) for file, layout in layouts.items()}
        record = RankRecord(team.rank, team.world, draft.values, headers).to_bytes()
        mine = BytesSource(record_name(team.rank), record)
        # The values are in the record: a thousand ranks' values would make every listing slow.
        draft = replace(draft, world=team.world, values={}, roles={**draft.roles, mine.name: "rank"})
        agrees_on: dict[str, Any] = {
            "step": draft.step,
            "progress": dict(draft.progress),
            "tracked objects": sorted(draft.contains),
            "shared tensors": shared,
        }
        return write_together(team, self._ballot, save, self._store, draft, [*sources, mine], agrees_on)

    def decline(self, save: str, error: str) -> None:
        decline(self._team, self._ballot, save, error)
