"""A store on which nothing can be removed: pruning runs its own code on it and only says what it would do."""

from __future__ import annotations

from holdfast.cli.read_only_store import ReadOnlyStore


class DryRun(ReadOnlyStore):
    def retire(self, name: str) -> None:
        """Only pretended."""
