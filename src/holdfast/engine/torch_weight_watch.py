"""Whether weights move where no optimizer says so: updates by hand, fused kernels, wrappers without hooks.

A step moves most of the weights that have gradients. One that moves alone (an embedding with max_norm is
clipped in the forward pass) is no step. A sample, and cheap: it never waits for an accelerator.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch

_WEIGHTS = 32
_SPOT_BYTES = 16

_Note = tuple[int, int, bytes]


class WeightWatch:
    """`weights` lists what is trained; asked anew at every look, for modules may be replaced."""

    def __init__(self, weights: Callable[[], Sequence[torch.Tensor]]) -> None:
        self._weights = weights
        self._noted: dict[int, _Note] = {}

    def look(self) -> bool:
        """Whether most of them have moved since the last look. The first look answers no."""
        before, self._noted = self._noted, {id(w): _note(w) for w in self._sample()}
        changed = [before[i] != note for i, note in self._noted.items() if i in before]
        return 2 * sum(changed) > len(changed)

    def forget(self) -> None:
        """They have moved, and that is known."""
        self._noted.clear()

    def _sample(self) -> list[torch.Tensor]:
        weights = [w for w in self._weights() if w.grad is not None] or list(self._weights())
        return weights[:: max(1, len(weights) // _WEIGHTS)]


def _note(weight: torch.Tensor) -> _Note:
    version = -1 if weight.is_inference() else weight._version
    # A write through `.data` counts no version. The bytes of an accelerator are not worth waiting for.
    plain = type(weight) in (torch.Tensor, torch.nn.Parameter) and weight.device.type == "cpu"
    if not plain or not weight.is_contiguous() or weight.is_conj() or weight.is_neg():
        return weight.data_ptr() if plain else 0, version, b""
    start, size = weight.data_ptr(), weight.nbytes
    spots = {0, size // 2, max(0, size - _SPOT_BYTES)}
    return start, version, b"".join(ctypes.string_at(start + s, min(_SPOT_BYTES, size - s)) for s in spots)
