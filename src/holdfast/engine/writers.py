"""Who takes part in writing a checkpoint: this process alone, or every rank."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from holdfast.checkpoints.bytes_source import BytesSource
from holdfast.checkpoints.rank_claims import RankClaims
from holdfast.checkpoints.write import (
    CheckpointDraft,
    Committed,
    draft_manifest,
    write_checkpoint,
    write_copy,
)
from holdfast.checkpoints.write_on_nodes import NodeSave, write_on_nodes
from holdfast.checkpoints.write_together import decline, write_together
from holdfast.engine.node_meeting import Nodes
from holdfast.engine.together import Together
from holdfast.errors import StoreError, StoreFull
from holdfast.format.image import ImageLayout
from holdfast.format.manifest import Manifest
from holdfast.format.rank_record import ImageHeader, RankRecord, record_name
from holdfast.ranks.ballot import Ballot
from holdfast.ranks.team import Team
from holdfast.stores.base import ImageSource, Store
from holdfast.tiers.node_ranks import with_nodes

log = logging.getLogger("holdfast")


class Writer(Protocol):
    def write(
        self,
        save: str,
        draft: CheckpointDraft,
        sources: Sequence[ImageSource],
        layouts: Mapping[str, ImageLayout],
        claims: RankClaims,
        in_memory: Callable[[], None],
    ) -> Committed:
        """Durable when it returns. `claims` is what this rank says about tensors it holds with others;
        `in_memory` is called as soon as a killed process would find the checkpoint in its memory tier."""
        ...

    def decline(self, save: str, error: str) -> None:
        """This process takes no part in a save that others may be waiting for."""
        ...


class Alone:
    """`instead` takes what `store` has no room for, where `store` is memory: a small /dev/shm must not mean
    that nothing is saved."""

    def __init__(self, store: Store, memory: Store | None = None, instead: Store | None = None) -> None:
        self._store = store
        self._memory = memory
        self._instead = instead

    def write(
        self,
        save: str,
        draft: CheckpointDraft,
        sources: Sequence[ImageSource],
        layouts: Mapping[str, ImageLayout],
        claims: RankClaims,
        in_memory: Callable[[], None],
    ) -> Committed:
        memory = self._memory
        if memory is self._store and memory is not None:
            try:
                committed = write_checkpoint(memory, draft, sources)
            except StoreFull as error:
                if self._instead is None:
                    raise
                log.warning(
                    "holdfast: memory has no room for checkpoints, from now on they go to %s: %s",
                    self._instead.where, error,
                )  # fmt: skip
                self._store, self._memory = self._instead, None
                return write_checkpoint(self._store, draft, sources)
            in_memory()
            return committed
        if memory is None or not all(source.concurrent for source in sources):
            return write_checkpoint(self._store, draft, sources)
        try:
            near = write_checkpoint(memory, draft, sources)
        except StoreError as error:
            log.warning("holdfast: step %d is not kept in memory: %s", draft.step, error)
            if isinstance(error, StoreFull):
                # Said once, and not tried again at every save.
                self._memory = None
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
        claims: RankClaims,
        in_memory: Callable[[], None],
    ) -> Committed:
        draft, files, agrees_on = _as_rank(self._team, draft, sources, layouts)
        return write_together(self._team, self._ballot, save, self._store, draft, files, agrees_on, claims)

    def decline(self, save: str, error: str) -> None:
        decline(self._team, self._ballot, save, error)


def writer_for(store: Store, together: Together | None) -> Writer:
    """Where the run has no tiers but its own folder."""
    return Alone(store) if together is None else Everybody(store, together.team, together.ballot)


class Duties(Protocol):
    """What the nodes of a run say and hear along with each checkpoint."""

    @property
    def nodes(self) -> Nodes: ...

    def says(self) -> Mapping[str, Any]: ...

    def decide(self, said: Sequence[Mapping[str, Any]], manifest: Manifest) -> Mapping[str, Any]: ...

    def kept(self, told: Mapping[str, Any]) -> None: ...


class OnNodes:
    """Every rank, into the store of its own node."""

    def __init__(self, team: Team, ballot: Ballot, duties: Duties) -> None:
        self._team = team
        self._ballot = ballot
        self._duties = duties

    def write(
        self,
        save: str,
        draft: CheckpointDraft,
        sources: Sequence[ImageSource],
        layouts: Mapping[str, ImageLayout],
        claims: RankClaims,
        in_memory: Callable[[], None],
    ) -> Committed:
        duties, nodes = self._duties, self._duties.nodes
        draft, files, agrees_on = _as_rank(self._team, draft, sources, layouts)
        draft = replace(draft, environment=with_nodes(draft.environment, nodes.of_rank))
        without_files = draft_manifest(nodes.mine, draft)
        mine = NodeSave(
            nodes.mine, nodes.acts, duties.says(), lambda name, said: duties.decide(said, without_files)
        )
        committed, told = write_on_nodes(
            self._team, self._ballot, save, mine, draft, files, agrees_on, claims
        )
        duties.kept(told)
        return committed

    def decline(self, save: str, error: str) -> None:
        decline(self._team, self._ballot, save, error)


def _as_rank(
    team: Team,
    draft: CheckpointDraft,
    sources: Sequence[ImageSource],
    layouts: Mapping[str, ImageLayout],
) -> tuple[CheckpointDraft, list[ImageSource], dict[str, Any]]:
    """What one of several ranks writes, and what must be equal on all of them."""
    headers = {file: ImageHeader.of(layout) for file, layout in layouts.items()}
    record = RankRecord(team.rank, team.world, draft.values, headers).to_bytes()
    mine = BytesSource(record_name(team.rank), record)
    # The values are in the record: a thousand ranks' values would make every listing slow.
    draft = replace(draft, world=team.world, values={}, roles={**draft.roles, mine.name: "rank"})
    agrees_on = {
        "step": draft.step,
        "progress": dict(draft.progress),
        "tracked objects": sorted(draft.contains),
    }
    return draft, [*sources, mine], agrees_on
