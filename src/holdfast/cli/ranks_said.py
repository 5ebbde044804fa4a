"""How many ranks wrote a checkpoint."""

from __future__ import annotations

from holdfast.contents.dcp import is_dcp
from holdfast.format.manifest import Manifest


def ranks_of(manifest: Manifest) -> int:
    # DCP's ranks commit through one of them, and each that held anything wrote one file.
    return max(len(manifest.files), 1) if is_dcp(manifest) else manifest.world
