"""NaN among the weights of a snapshot, found in its image behind training.

A loss is computed before the step that ruins the weights, so a checkpoint with a good loss may hold bad ones.
Only NaN counts: a mask of -inf among the buffers is nobody's mistake. NumPy and not torch: on the worker
torch would start threads of its own beside those of training.
"""

from __future__ import annotations

import numpy as np
import torch

from holdfast.engine.torch_snapshots import Taken

_CHUNK_BYTES = 1 << 20
_PLAIN = {torch.float16: np.float16, torch.float32: np.float32, torch.float64: np.float64}


def first_nan(taken: Taken) -> str | None:
    """The name of a tensor among the weights that holds NaN."""
    if taken.snapshot is None:
        return None  # Streamed from the live tensors: there is no image to look at.
    images = taken.snapshot.images
    for place in taken.plan.placements:
        if taken.plan.images[place.image].role == "weights" and _holds_nan(
            images[place.image].memory.view[place.start : place.stop], place.dtype
        ):
            return place.label
    return None


def _holds_nan(data: memoryview, dtype: torch.dtype) -> bool:
    chunks = (data[at : at + _CHUNK_BYTES] for at in range(0, len(data), _CHUNK_BYTES))
    if dtype in _PLAIN:
        return any(bool(np.isnan(np.frombuffer(chunk, _PLAIN[dtype])).any()) for chunk in chunks)
    if dtype is torch.bfloat16:
        # All bits of the exponent, and one of the fraction.
        return any(bool(((np.frombuffer(c, np.uint16) & 0x7FFF) > 0x7F80).any()) for c in chunks)
    return False
