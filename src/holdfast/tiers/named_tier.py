"""A store in its place among the others: nearest first."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.stores.base import Store


@dataclass(frozen=True)
class NamedTier:
    """`name` is what the user wrote. `partial` tiers hold the files of some ranks only: one that is missing
    there is no damage."""

    name: str
    store: Store
    partial: bool = False

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
