"""torch.distributed.checkpoint with checksums, atomic commits, retention and fencing, and without pickle."""

from __future__ import annotations

from holdfast.integrations.torch_dcp_reader import HoldfastReader
from holdfast.integrations.torch_dcp_writer import HoldfastWriter

__all__ = ["HoldfastReader", "HoldfastWriter"]
