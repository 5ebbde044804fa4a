"""Who restores: which rank of how many, what stands in each place, and whether what was saved is its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.capture.torch_groups import Ranks, mesh_ranks
from holdfast.capture.torch_shards import is_sharded
from holdfast.errors import IncompatibleState
from holdfast.format.rank_sets import parse_ranks, spell_ranks
from holdfast.format.tree import show_path

# What stands now where a stored tensor belongs, by the path inside the state; None if nothing does. The shape
# of the stored one is None where it is not known yet.
Live = Callable[[tuple[Any, ...], Sequence[int] | None], Any]


@dataclass(frozen=True)
class Reader:
    """`groups` are the ranks that keep a live tensor (by id) equal; `alike` says of tracked objects whether
    the groups that saved them held the same parameters, as far as the checkpoint knows."""

    live: Live
    rank: int
    world: int
    saved_world: int
    groups: Mapping[int, Ranks] = field(default_factory=dict)
    alike: Mapping[str, bool] = field(default_factory=dict)

    def require_unambiguous(
        self, path: tuple[Any, ...], said: Mapping[str, Any], target: Any, base: int
    ) -> None:
        """IncompatibleState where several groups of ranks held different parameters under this name, and the
        ranks that hold it together now are not of one of them."""
        if "ranks" not in said and ("global" in said or "shared" in said):
            return
        saved = set(parse_ranks(said["ranks"])) if "ranks" in said else {base}
        now = self._group_of(target)
        if len(saved) == self.saved_world or (self.world == self.saved_world and saved.issuperset(now)):
            return
        if self.alike.get(path[0], True):
            return
        raise IncompatibleState(
            f"{show_path(path)} was held by rank{'s' if len(saved) > 1 else ''} {spell_ranks(saved)} of "
            f"{self.saved_world}, other ranks held something else under this name, and now it belongs to "
            f"rank{'s' if len(now) > 1 else ''} {spell_ranks(now)} of {self.world}",
            hint=f"start with {self.saved_world} ranks in the same groups as when it was saved",
        )

    def _group_of(self, target: Any) -> Ranks:
        if is_sharded(target):
            return mesh_ranks(target)
        return self.groups.get(id(target), (self.rank,))

    def copies_of(self, target: Any) -> list[int]:
        """The ranks that hold the same block of it as this one."""
        if not is_sharded(target) or (coordinate := target.device_mesh.get_coordinate()) is None:
            return []
        along = tuple(
            slice(None) if placement.is_replicate() else at
            for at, placement in zip(coordinate, target.placements, strict=True)
        )
        return [int(rank) for rank in target.device_mesh.mesh[along].flatten().tolist()]
