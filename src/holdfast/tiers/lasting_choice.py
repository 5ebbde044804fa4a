"""Which checkpoints must reach an outer tier whatever its rhythm: those that its rules keep for longer than
the latest few. Nearer tiers hold only the latest, so what is not copied in time would be lost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from holdfast.checkpoints.retention import Retention, lasting
from holdfast.format.manifest import Manifest


class LastingChoice:
    """`retention` None: somebody else decides. Pure, but for what it remembers of earlier choices."""

    def __init__(self, retention: Retention | None) -> None:
        self._retention = retention
        self._known: dict[str, Manifest] = {}

    def know(self, manifests: Iterable[Manifest]) -> None:
        """These are in the tier already."""
        self._remember(manifests)

    def wants(self, manifest: Manifest) -> bool:
        """Whether this one, beside those before it, is to be kept."""
        return str(manifest.name) in self.wanted([manifest])

    def wanted(self, manifests: Iterable[Manifest]) -> list[str]:
        """Those of `manifests` that are to be kept, oldest first."""
        if self._retention is None:
            return []
        new = list(manifests)
        kept = lasting([*self._known.values(), *new], self._retention)
        chosen = [manifest for manifest in new if manifest.name in kept]
        self._remember(chosen)
        # Of those before, what no rule wants any more will not be compared with again.
        self._known = {name: known for name, known in self._known.items() if known.name in kept}
        return sorted(str(manifest.name) for manifest in chosen)

    @property
    def kept(self) -> list[str]:
        return sorted(self._known)

    def _remember(self, manifests: Iterable[Manifest]) -> None:
        for manifest in manifests:
            slim = replace(manifest, files=(), values={}, contains={}, environment={}, progress={})
            self._known[str(manifest.name)] = slim
