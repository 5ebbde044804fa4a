"""A store in its place among the others: nearest first."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.checkpoints.proof import is_doubtful
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.stores.base import Store


class HoldersAway(StoreUnavailable):
    """Only nodes that do not answer may have it: lost with them, for all that anybody can tell."""


@dataclass(frozen=True)
class NamedTier:
    """`name` is what the user wrote. `partial` tiers hold the files of some ranks only: one that is missing
    there is no damage. `elsewhere` is another node: it may be lost for good, and then never answers."""

    name: str
    store: Store
    partial: bool = False
    elsewhere: bool = False

    @property
    def must_answer(self) -> bool:
        """Whether not knowing what is here means not knowing which checkpoint is the newest."""
        # What lies on a node may be gone with it, and asking one that is gone would not answer this either.
        return not self.partial and self.store.properties.survives_job


@dataclass(frozen=True)
class Fallback:
    """A copy that could not be used. `file` and `chunk` are None where the whole copy was passed over."""

    checkpoint: str
    tier: str
    why: str
    file: str | None = None
    chunk: int | None = None


def verdict_of(what: str, failures: list[tuple[NamedTier, HoldfastError]]) -> StoreUnavailable | None:
    """Why nobody can tell whether a good copy exists, after every tier failed; None if all of them proved
    that theirs is none."""
    doubts = [(tier, error) for tier, error in failures if is_doubtful(error)]
    if not doubts:
        return None
    said = "; ".join(f"{tier.name}: {error.message}" for tier, error in doubts)
    kind = HoldersAway if all(tier.elsewhere for tier, _ in doubts) else StoreUnavailable
    return kind(f"{what} cannot be read for now: {said}", hint="the storage may be away for a moment")
